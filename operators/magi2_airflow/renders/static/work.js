// What is done to a clip right now, in place of its poster.
import { h, useState } from "./react.js";

/** "preview, step 12 of 20"; the stage alone while it is another clip's turn. */
export function workWords({ stage, step, steps }) {
  return steps === null ? stage : `${stage}, step ${step} of ${steps}`;
}

/** The picture of the last snapshot, if there is one, under the stage and a bar of its steps. */
export function AtWork({ work }) {
  const [missing, setMissing] = useState(null);
  const { picture, step, steps } = work;
  return h(
    "span",
    { className: "poster blank at-work", "data-state": "running" },
    picture &&
      missing !== picture &&
      h("img", { className: "at-work-picture", src: picture, alt: "", onError: () => setMissing(picture) }),
    h("span", { className: "at-work-words" }, workWords(work)),
    steps !== null &&
      h(
        "span",
        { className: "at-work-track", "aria-hidden": true },
        h("span", { style: { width: `${(100 * step) / Math.max(steps, 1)}%` } }),
      ),
  );
}
