// One clip: the picture first, then what it was made from, what each stage did, and every way on from here.
import { RerunClip } from "./actions.js";
import { acceleratorTime, clipName, duration, flagName, money } from "./format.js";
import { Neighbours } from "./neighbours.js";
import { Answer, Badge, Clamped, ClipName, Facts, Heading, Json, Poster, Said, When } from "./parts.js";
import { Quality } from "./quality.js";
import { h, useState } from "./react.js";
import { AirflowLink, Go } from "./route.js";
import { useServer } from "./server.js";
import { Timeline } from "./timeline.js";

const isOpen = (clip) => clip.state === "running" || clip.state === "waiting";

export function Clip({ route, batch, mayAct, isFirst, batchId }) {
  const answer = useServer(`batches/${batchId}/clips/${route.clip}`, isOpen);
  return h(
    "section",
    { className: "stack" },
    h(Answer, { answer, what: "the clip" }, (clip) =>
      h(
        "div",
        { className: "stack" },
        h(Neighbours, { route, batchId, clipId: clip.clip_id }),
        h(Head, { clip, mayAct, isFirst }),
        clip.store_problem && h("p", { className: "refusal", role: "status" }, h(Said, { text: clip.store_problem })),
        h(
          "div",
          { className: "clip" },
          h(
            "div",
            { className: "seen" },
            h(Picture, { clip }),
            clip.media && h(Quality, { quality: clip.quality }),
            h(Timeline, { steps: clip.timeline, currency: batch?.currency }),
          ),
          h(Origin, { clip, currency: batch?.currency }),
        ),
        h(Others, { clip, route }),
        h(
          "div",
          { className: "stack tight" },
          h(Json, { title: "Settings", value: clip.settings }),
          h(Json, { title: "Recipe", value: clip.recipe }),
        ),
      ),
    ),
  );
}

function Head({ clip, mayAct, isFirst }) {
  return h(
    "header",
    { className: "stack tight" },
    h(
      "div",
      { className: "top" },
      h(
        "div",
        { className: "title" },
        h(Heading, { isFirst }, h(ClipName, { clip })),
        h(Badge, { state: clip.state }),
        clip.flags.map((flag) => h(Badge, { key: flag, state: "flagged", label: flagName(flag) })),
      ),
      h(
        "div",
        { className: "actions" },
        clip.media && h("a", { className: "button", href: clip.media.download, download: "" }, "Download"),
        mayAct && h(RerunClip, { batchId: clip.batch_id, clip }),
      ),
    ),
    clip.reason &&
      h(
        "p",
        { className: "refusal" },
        clip.failed_stage && h("strong", null, `Failed in ${clip.failed_stage}: `),
        h(Said, { text: clip.reason }),
      ),
    h(
      "p",
      { className: "quiet small links" },
      h(AirflowLink, { path: clip.task_path }, "Task in Airflow"),
      h(AirflowLink, { path: clip.log_path }, "Log"),
      clip.manifest && h("a", { className: "link", href: clip.manifest }, "Manifest"),
    ),
  );
}

function Picture({ clip }) {
  if (!clip.media) return h("div", { className: "picture" }, h(Poster, { clip }));
  const { media } = clip;
  return h(
    "div",
    { className: "picture" },
    h("video", {
      className: "player",
      src: media.clip,
      poster: media.poster,
      controls: true,
      preload: "metadata",
      loop: true,
      playsInline: true,
      "aria-label": clipName(clip),
    }),
  );
}

function Origin({ clip, currency }) {
  const images = clip.figures.map((figure) => h(FigureImage, { key: figure.number, figure }));
  return h(
    "div",
    { className: "origin stack tight" },
    h("h2", null, "Prompt"),
    h(Clamped, { text: clip.prompt }),
    images.length > 0 && h("div", { className: "figures" }, images),
    clip.caption &&
      clip.caption !== clip.prompt && [
        h("h2", { key: "title" }, "Caption"),
        h(Clamped, { key: "text", text: clip.caption }),
      ],
    h(Facts, {
      entries: [
        ["Profile", [h(Said, { key: "name", text: clip.profile }), clip.is_experimental && ", experimental"]],
        ["Tier", clip.tier],
        ["Seed", h("code", null, clip.seed)],
        ["Tags", clip.tags.length > 0 && h(Said, { text: clip.tags.join(", ") })],
        ["Other names", clip.names.length > 1 && h(Said, { text: clip.names.slice(1).join(", ") })],
        ["Delivery", clip.deliveries.length > 0 && h(Said, { text: clip.deliveries.map(placeOf).join(", ") })],
        ["Accelerator", acceleratorTime(clip.accelerator_seconds)],
        ["Time", duration(clip.seconds)],
        ["Cost", money(clip.cost, currency)],
        ["Shard", clip.shard === null ? null : String(clip.shard)],
        ["Updated", h(When, { at: clip.updated_at })],
        ["Clip", h("code", null, clip.clip_id.slice(0, 12))],
      ].filter(([, value]) => value !== false),
    }),
    clip.media &&
      h(
        "a",
        { href: clip.media.contact_sheet },
        h("img", {
          className: "sheet",
          src: clip.media.contact_sheet,
          alt: `Contact sheet of ${clipName(clip)}`,
          loading: "lazy",
        }),
      ),
  );
}

function placeOf({ target, name }) {
  return `${target}: ${name}`;
}

function FigureImage({ figure }) {
  const [isGone, setGone] = useState(false);
  const label = `Figure ${figure.number}`;
  if (isGone) return h("span", { className: "quiet" }, `${label} is no longer stored`);
  const image = h("img", { src: figure.image, alt: label, loading: "lazy", onError: () => setGone(true) });
  return h("a", { href: figure.image }, image);
}

/** The same prompt under other profiles or seeds, each of which can be set beside this clip. */
function Others({ clip, route }) {
  const answer = useServer(`batches/${clip.batch_id}/clips/${clip.clip_id}/others`);
  const others = (answer.data?.clips ?? []).filter((other) => other.media);
  if (!clip.media || others.length === 0) return null;
  return h(
    "section",
    { className: "stack tight", "aria-label": "Compare" },
    h("h2", null, "The same prompt otherwise"),
    h(
      "ul",
      { className: "others" },
      others.map((other) =>
        h(
          "li",
          { key: other.batch_id + other.clip_id },
          h(
            Go,
            { route, changes: { other: `${other.batch_id}:${other.clip_id}` }, className: "card-link" },
            h("span", { className: "frame" }, h(Poster, { clip: other })),
            h(
              "span",
              { className: "one-line small" },
              "Compare with ",
              h(Said, { text: other.profile }),
              `, seed ${other.seed}`,
            ),
          ),
        ),
      ),
    ),
  );
}
