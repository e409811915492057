// Two clips side by side, playing in step: the left one leads, the right one follows.
import { acceleratorTime, clipName, duration, money } from "./format.js";
import { Answer, Badge, ClipName, Heading, Said } from "./parts.js";
import { h, useEffect, useRef, useState } from "./react.js";
import { Go } from "./route.js";
import { useServer } from "./server.js";

const FRAME_S = 1 / 25;
const DRIFT_S = 0.05;

export function Compare({ route, batch, batchId, isFirst }) {
  const [otherBatch, otherClip] = route.other.split(":");
  const left = useServer(`batches/${batchId}/clips/${route.clip}`);
  const right = useServer(`batches/${otherBatch}/clips/${otherClip}`);
  return h(
    "section",
    { className: "stack" },
    h("header", { className: "top" }, h(Heading, { isFirst }, "Compare")),
    h(Answer, { answer: left, what: "the first clip" }, (first) =>
      h(Answer, { answer: right, what: "the second clip" }, (second) =>
        h(Pair, { route, clips: [first, second], currency: batch?.currency }),
      ),
    ),
  );
}

function Pair({ route, clips, currency }) {
  const videos = [useRef(null), useRef(null)];
  const player = usePlayer(videos);
  const [sound, setSound] = useState(0);
  return h(
    "div",
    { className: "stack", onKeyDown: player.onKeyDown },
    h(
      "div",
      { className: "pair" },
      clips.map((clip, side) =>
        h(Side, {
          key: side,
          clip,
          route,
          video: videos[side],
          isMuted: sound !== side,
          player: side === 0 ? player : {},
        }),
      ),
    ),
    h(Controls, { player, sound, setSound }),
    h(Differences, { clips, currency }),
  );
}

function Side({ clip, route, video, isMuted, player }) {
  const changes = { batch: clip.batch_id, clip: clip.clip_id };
  return h(
    "figure",
    { className: "side" },
    clip.media
      ? h("video", {
          ref: video,
          className: "player",
          src: clip.media.clip,
          poster: clip.media.poster,
          preload: "auto",
          muted: isMuted,
          playsInline: true,
          onClick: player.toggle,
          onEnded: player.onEnded,
          onDurationChange: player.onTime,
          "aria-label": clipName(clip),
        })
      : h("p", { className: "quiet" }, "This clip is not there."),
    h(
      "figcaption",
      null,
      h(Go, { route, changes, className: "link" }, h(ClipName, { clip })),
      " ",
      h(Badge, { state: clip.state }),
    ),
  );
}

function Controls({ player, sound, setSound }) {
  const { time, length, isPlaying } = player.state;
  const sounds = [
    ["Sound left", 0],
    ["Sound right", 1],
    ["Silent", -1],
  ];
  const press = (label, onClick, text) =>
    h("button", { type: "button", className: "button", "aria-label": label, onClick }, text);
  return h(
    "div",
    { className: "controls", role: "group", "aria-label": "Both clips" },
    h(
      "button",
      { type: "button", className: "button primary play", onClick: player.toggle },
      isPlaying ? "Pause" : "Play",
    ),
    press("One frame back", () => player.seek(time - FRAME_S), "‹"),
    h("input", {
      type: "range",
      className: "seek",
      "aria-label": "Position",
      "aria-valuetext": `${time.toFixed(2)} seconds`,
      min: 0,
      max: length || 1,
      step: FRAME_S / 2,
      value: time,
      onChange: (event) => player.seek(Number(event.target.value)),
    }),
    press("One frame on", () => player.seek(time + FRAME_S), "›"),
    h("output", { className: "quiet clock" }, `${time.toFixed(2)} / ${length.toFixed(2)} s`),
    h(
      "select",
      {
        className: "field",
        "aria-label": "Sound",
        value: sound,
        onChange: (event) => setSound(Number(event.target.value)),
      },
      sounds.map(([text, value]) => h("option", { key: value, value }, text)),
    ),
  );
}

/** Plays, seeks and keeps two videos in step. */
function usePlayer(videos) {
  const [state, setState] = useState({ time: 0, length: 0, isPlaying: false });
  const both = () => videos.map((video) => video.current).filter(Boolean);
  const update = () => {
    const [lead] = both();
    if (lead) setState({ time: lead.currentTime, length: lead.duration || 0, isPlaying: !lead.paused });
  };
  const seek = (time) => {
    for (const video of both()) {
      video.pause();
      video.currentTime = Math.max(0, Math.min(time, video.duration || 0));
    }
    update();
  };
  const toggle = async () => {
    const [lead] = both();
    if (!lead.paused) return seek(lead.currentTime);
    align(both());
    await Promise.all(both().map((video) => video.play()));
    update();
  };
  const onEnded = () => {
    for (const video of both()) video.currentTime = 0;
    for (const video of both()) video.play();
  };
  useEffect(() => {
    if (!state.isPlaying) return undefined;
    let frame = 0;
    const follow = () => {
      if (both()[0] && !both()[0].ended) align(both());
      update();
      frame = requestAnimationFrame(follow);
    };
    frame = requestAnimationFrame(follow);
    return () => cancelAnimationFrame(frame);
  }, [state.isPlaying]);
  const onKeyDown = (event) => {
    if (event.key !== " " || event.target.matches("button, input, select, a")) return;
    event.preventDefault();
    toggle();
  };
  return { state, seek, toggle, onEnded, onTime: update, onKeyDown };
}

function align([lead, follower]) {
  if (!follower || follower.seeking) return;
  const time = Math.min(lead.currentTime, follower.duration || 0);
  if (Math.abs(follower.currentTime - time) > DRIFT_S) follower.currentTime = time;
}

/** What the two have in common and where they differ. */
function Differences({ clips, currency }) {
  const rows = [
    ["Prompt", (clip) => clip.prompt],
    ["Caption", (clip) => (clip.caption === clip.prompt ? null : clip.caption)],
    ["Profile", (clip) => clip.profile],
    ["Seed", (clip) => String(clip.seed)],
    ["Time", (clip) => duration(clip.seconds)],
    ["Accelerator", (clip) => acceleratorTime(clip.accelerator_seconds)],
    ["Cost", (clip) => money(clip.cost, currency)],
    ["Flags", (clip) => clip.flags.join(", ")],
    ...settingRows(clips),
  ];
  return h(
    "div",
    { className: "table-box", tabIndex: 0, role: "region", "aria-label": "Differences" },
    h(
      "table",
      { className: "differences" },
      h(
        "tbody",
        null,
        rows.map(([name, read]) => h(Difference, { key: name, name, values: clips.map(read) })),
      ),
    ),
  );
}

function Difference({ name, values }) {
  if (!values.some(Boolean)) return null;
  const isDifferent = values[0] !== values[1];
  return h(
    "tr",
    { "data-different": isDifferent || undefined },
    h("th", { scope: "row" }, name, isDifferent && h("span", { className: "unseen" }, " (differs)")),
    values.map((value, side) => h("td", { key: side }, h(Said, { text: value || "–", className: "three-lines" }))),
  );
}

/** The settings that the two profiles do not share, by their dotted names. */
function settingRows(clips) {
  const flat = clips.map((clip) => flatten(clip.settings));
  const names = [...new Set(flat.flatMap((each) => [...each.keys()]))];
  const different = names.filter((name) => flat[0].get(name) !== flat[1].get(name));
  return different.map((name) => [name, (clip) => flatten(clip.settings).get(name)]);
}

function flatten(value, name = "", into = new Map()) {
  if (value !== null && typeof value === "object" && !Array.isArray(value)) {
    for (const [key, inner] of Object.entries(value)) flatten(inner, name ? `${name}.${key}` : key, into);
  } else {
    into.set(name, JSON.stringify(value));
  }
  return into;
}
