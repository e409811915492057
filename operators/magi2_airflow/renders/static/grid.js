// Posters of thousands of clips: only the screenfuls that are near the eye exist, each asked for when it comes near.
import { clipName, count } from "./format.js";
import { Answer, Badge, ClipName, Loading, Poster, Said } from "./parts.js";
import { h, useEffect, useLayoutEffect, useRef, useState } from "./react.js";
import { Go } from "./route.js";
import { scroller, useScrollMemory } from "./scroll.js";
import { query, useServer } from "./server.js";
import { workWords } from "./work.js";

const GAP = 16;
const TEXT_HEIGHT = 92;
const LEAST_WIDTH = { narrow: 128, wide: 216 };
const CLIPS_PER_PAGE = 48;
const NEAR_PX = 1200;

export function ClipGrid({ batchId, values, isLive, route, picked, pick }) {
  const box = useRef(null);
  const layout = useLayout(box);
  return h(
    "div",
    { ref: box, onKeyDown: (event) => moveFocus(event, layout.columns) },
    layout && h(Pages, { batchId, values, isLive, route, picked, pick, layout }),
  );
}

function Pages(props) {
  const { batchId, values, isLive, layout } = props;
  const place = (number) =>
    `batches/${batchId}/clips${query({ ...values, offset: number * layout.size, limit: layout.size })}`;
  const first = useServer(place(0), () => isLive);
  return h(Answer, { answer: first, what: "clips" }, ({ clips, total }) => {
    if (total === 0) return h("p", { className: "quiet" }, "No clip is like that.");
    const pages = Math.ceil(total / layout.size);
    return h(
      Remembered,
      { name: place(0) },
      h("p", { className: "quiet small", role: "status" }, `${count(total)} clip${total === 1 ? "" : "s"}`),
      h(Wall, { ...props, clips, start: 0 }),
      Array.from({ length: pages - 1 }, (_, at) => {
        const start = (at + 1) * layout.size;
        const clipCount = Math.min(layout.size, total - start);
        return h(LaterPage, { key: place(at + 1), ...props, path: place(at + 1), start, clipCount });
      }),
    );
  });
}

/** The wall, which comes back to where it had been scrolled. */
function Remembered({ name, children }) {
  const box = useRef(null);
  useScrollMemory(box, name);
  return h("div", { ref: box, className: "stack" }, children);
}

/** A page that takes its room from the beginning and its clips once it comes near. */
function LaterPage(props) {
  const { layout, clipCount, path } = props;
  const box = useRef(null);
  const isNear = useIsNear(box);
  const rows = Math.ceil(clipCount / layout.columns);
  const height = rows * layout.rowHeight + (rows - 1) * GAP;
  return h("div", { ref: box, style: { minHeight: height } }, isNear && h(AskedPage, { ...props, path }));
}

function AskedPage(props) {
  const answer = useServer(props.path, () => props.isLive);
  if (answer.data === undefined && !answer.error) return h(Loading, { what: "clips" });
  return h(Answer, { answer, what: "clips" }, ({ clips }) => h(Wall, { ...props, clips }));
}

function Wall({ clips, start, layout, route, picked, pick }) {
  const style = {
    gridTemplateColumns: `repeat(${layout.columns}, minmax(0, 1fr))`,
    gridAutoRows: `${layout.rowHeight}px`,
    gap: GAP,
  };
  return h(
    "ul",
    { className: "wall", style },
    clips.map((clip, at) =>
      h(Card, {
        key: clip.clip_id,
        clip,
        index: start + at,
        route,
        pick,
        isPicked: picked.some((each) => each.clip_id === clip.clip_id),
      }),
    ),
  );
}

function Card({ clip, index, route, pick, isPicked }) {
  const label = `${clipName(clip)}, ${clip.work ? workWords(clip.work) : clip.state}`;
  return h(
    "li",
    { className: "card", "data-picked": isPicked || undefined },
    h(
      "span",
      { className: "face" },
      h(
        "span",
        { className: "frame" },
        h(Poster, { clip }),
        h(Badge, { state: clip.state }),
        clip.flags.length > 0 && h(Badge, { state: "flagged" }),
      ),
      h(
        Go,
        {
          route,
          changes: { clip: clip.clip_id },
          className: "card-link one-line strong",
          "data-index": index,
          "aria-label": label,
        },
        h(ClipName, { clip }),
      ),
      h(Said, { text: clip.reason ?? clip.prompt, className: clip.reason ? "two-lines bad" : "two-lines quiet" }),
      h("span", { className: "one-line quiet small" }, h(Said, { text: clip.profile }), ` · seed ${clip.seed}`),
    ),
    clip.media &&
      h(
        "label",
        { className: "pick" },
        h("input", {
          type: "checkbox",
          checked: isPicked,
          onChange: () => pick(clip),
          "aria-label": `Pick ${clipName(clip)} to compare`,
        }),
      ),
  );
}

/** `{columns, rowHeight, size}` for the width there is; pages hold whole rows. */
function useLayout(box) {
  const [layout, setLayout] = useState(null);
  useLayoutEffect(() => {
    const measure = () => {
      const width = box.current.clientWidth;
      if (width === 0) return;
      const least = width < 560 ? LEAST_WIDTH.narrow : LEAST_WIDTH.wide;
      const columns = Math.max(1, Math.floor((width + GAP) / (least + GAP)));
      const cardWidth = (width - GAP * (columns - 1)) / columns;
      const rowHeight = Math.round((cardWidth * 9) / 16) + TEXT_HEIGHT;
      const size = columns * Math.ceil(CLIPS_PER_PAGE / columns);
      setLayout((now) =>
        now?.columns === columns && now.rowHeight === rowHeight ? now : { columns, rowHeight, size },
      );
    };
    const observer = new ResizeObserver(measure);
    observer.observe(box.current);
    measure();
    return () => observer.disconnect();
  }, []);
  return layout;
}

/** Whether an element is in sight or nearly so. */
function useIsNear(box) {
  const [isNear, setNear] = useState(false);
  useEffect(() => {
    const seen = (entries) => setNear(entries[entries.length - 1].isIntersecting);
    const observer = new IntersectionObserver(seen, { root: scroller(box.current), rootMargin: `${NEAR_PX}px 0px` });
    observer.observe(box.current);
    return () => observer.disconnect();
  }, []);
  return isNear;
}

function moveFocus(event, columns) {
  const from = event.target.dataset?.index;
  const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns };
  if (from === undefined || !(event.key in steps)) return;
  const next = event.currentTarget.querySelector(`[data-index="${Number(from) + steps[event.key]}"]`);
  if (!next) return;
  event.preventDefault();
  next.focus();
}
