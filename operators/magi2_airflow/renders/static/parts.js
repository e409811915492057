// Small pieces that every page is made of. Text from prompts and files only ever becomes a child of an element.
import { ago, clipName, count, moment } from "./format.js";
import { h, useEffect, useId, useLayoutEffect, useRef, useState } from "./react.js";
import { toTop } from "./scroll.js";
import { HOME } from "./server.js";
import { AtWork } from "./work.js";

/** Text that somebody else wrote: whichever way it runs, it does not turn what stands around it. */
export function Said({ text, className }) {
  return h("bdi", { dir: "auto", className }, text);
}

/** A state as a coloured word. */
export function Badge({ state, label }) {
  return h("span", { className: "badge", "data-state": state }, label ?? state);
}

/** A moment, in words for the last day; its exact time on hovering. */
export function When({ at }) {
  return at ? h("time", { dateTime: at, title: moment(at) }, ago(at)) : "–";
}

/** What stands in the place of something that is not there yet. */
export function Loading({ what }) {
  return h("p", { className: "quiet loading", role: "status" }, `Loading ${what} …`);
}

/** What went wrong with a request, and the way on. */
export function Problem({ error, retry }) {
  const isOut = error.status === 401;
  return h(
    "div",
    { className: "problem", role: "alert" },
    h("p", null, isOut ? "You are not logged in any more." : error.message),
    isOut
      ? h("a", { className: "link", href: HOME }, "Log in")
      : retry && h("button", { type: "button", className: "button", onClick: retry }, "Try again"),
  );
}

/** An answer's content, or that it is being waited for, or what went wrong. */
export function Answer({ answer, what, children }) {
  if (answer.data === undefined) {
    return answer.error ? h(Problem, { error: answer.error, retry: answer.reload }) : h(Loading, { what });
  }
  return h(
    "div",
    { className: "stack" },
    answer.error && h(Problem, { error: answer.error, retry: answer.reload }),
    children(answer.data),
  );
}

/** A progress bar for each stage: done, reused of those, failed, running. */
export function StageBars({ stages, isDetailed }) {
  return h(
    "ul",
    { className: isDetailed ? "bars detailed" : "bars", "aria-label": "Progress by stage" },
    stages.map((bar) => h(StageBar, { key: bar.stage, bar, isDetailed })),
  );
}

function StageBar({ bar, isDetailed }) {
  const made = bar.done - bar.reused;
  const parts = [
    ["made", made],
    ["reused", bar.reused],
    ["running", bar.running],
    ["failed", bar.failed],
  ].filter(([, clips]) => clips > 0);
  const words = parts.map(([name, clips]) => `${count(clips)} ${name}`).join(", ") || "nothing yet";
  const said = `${bar.stage}: ${words} of ${count(bar.total)}`;
  return h(
    "li",
    { className: "bar", title: said },
    h("span", { className: "unseen" }, said),
    h(
      "span",
      { className: "track", "aria-hidden": true },
      parts.map(([name, clips]) =>
        h("span", { key: name, "data-part": name, style: { width: `${(100 * clips) / Math.max(bar.total, 1)}%` } }),
      ),
    ),
    h("span", { className: "bar-name", "aria-hidden": true }, bar.stage),
    isDetailed && h("span", { className: "bar-count", "aria-hidden": true }, `${count(bar.done)}/${count(bar.total)}`),
  );
}

/** A clip's picture in small, or a tile that says why there is none. */
export function Poster({ clip }) {
  const [isBroken, setBroken] = useState(false);
  const source = clip.media?.thumbnail;
  if (clip.work && !source) return h(AtWork, { work: clip.work });
  if (!source || isBroken) {
    return h("span", { className: "poster blank", "data-state": clip.state }, clip.failed_stage ?? clip.state);
  }
  const onError = () => setBroken(true);
  return h("img", { className: "poster", src: source, alt: "", loading: "lazy", decoding: "async", onError });
}

/** Long text, cut after a few lines until somebody asks for all of it. */
export function Clamped({ text, lines = 5 }) {
  const [isOpen, setOpen] = useState(false);
  const [isCut, setCut] = useState(false);
  const box = useRef(null);
  const id = useId();
  useLayoutEffect(() => {
    const element = box.current;
    if (!isOpen) setCut(element.scrollHeight > element.clientHeight + 1);
  }, [text, isOpen]);
  const className = isOpen ? "said" : "said clamped";
  return h(
    "div",
    null,
    h("p", { ref: box, id, className, dir: "auto", style: { "--lines": lines } }, text),
    (isCut || isOpen) &&
      h(
        "button",
        {
          type: "button",
          className: "text-button",
          "aria-expanded": isOpen,
          "aria-controls": id,
          onClick: () => setOpen(!isOpen),
        },
        isOpen ? "Show less" : "Show all",
      ),
  );
}

/** A list of names with their values; entries without a value are left out. */
export function Facts({ entries }) {
  const given = entries.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return h(
    "dl",
    { className: "facts" },
    given.map(([name, value]) => h("div", { key: name }, h("dt", null, name), h("dd", null, value))),
  );
}

/** Data as indented text, folded away. */
export function Json({ title, value }) {
  if (!value) return null;
  return h("details", { className: "fold" }, h("summary", null, title), h("pre", null, JSON.stringify(value, null, 2)));
}

/** The heading of a page; it takes the focus when one comes here from another page, so that it is read out. */
export function Heading({ children, isFirst }) {
  const heading = useRef(null);
  useLayoutEffect(() => {
    if (isFirst) return;
    toTop(heading.current);
    heading.current.focus({ preventScroll: true });
  }, []);
  return h("h1", { ref: heading, tabIndex: -1 }, children);
}

/** The name of a clip, safe to stand anywhere. */
export function ClipName({ clip }) {
  return h(Said, { text: clipName(clip), className: "clip-name" });
}

/** A text box that tells what was typed once the typing pauses. */
export function SearchBox({ label, value, onChange }) {
  const [typed, setTyped] = useState(value);
  useEffect(() => setTyped(value), [value]);
  useEffect(() => {
    if (typed === value) return undefined;
    const timer = setTimeout(() => onChange(typed), 250);
    return () => clearTimeout(timer);
  }, [typed]);
  const changed = (event) => setTyped(event.target.value);
  return h("input", {
    type: "search",
    className: "field search",
    "aria-label": label,
    placeholder: label,
    value: typed,
    onChange: changed,
  });
}

/** A choice of one value; the first, empty one means any. */
export function Choice({ label, any, value, options, onChange }) {
  const changed = (event) => onChange(event.target.value);
  return h(
    "select",
    { className: "field", "aria-label": label, value, onChange: changed },
    any && h("option", { value: "" }, any),
    options.map(([name, text]) => h("option", { key: name, value: name }, text)),
  );
}
