// What is wrong with a clip, and when: a line of its ten seconds for each kind of defect.
import { flagName } from "./format.js";
import { h } from "./react.js";

export function Quality({ quality }) {
  return h(
    "section",
    { className: "stack tight", "aria-label": "Defects" },
    h("h2", null, "Defects"),
    quality ? h(Judged, { quality }) : h("p", { className: "quiet" }, "A version made it that did not look for them."),
  );
}

function Judged({ quality }) {
  return h(
    "div",
    { className: "stack tight" },
    quality.defects.length > 0
      ? h(
          "ul",
          { className: "defects" },
          quality.defects.map((defect) => h(Defect, { key: defect.kind, defect, seconds: quality.seconds })),
        )
      : h("p", { className: "quiet" }, "None was found."),
    h(
      "p",
      { className: "quiet small" },
      `Still for ${rest(quality.still_s, quality.still_share)}. Silent for ${rest(quality.silent_s, quality.silent_share)}.`,
    ),
  );
}

function Defect({ defect, seconds }) {
  const times = defect.spans.map(([start, end]) => `${start.toFixed(1)}–${end.toFixed(1)} s`).join(", ");
  return h(
    "li",
    null,
    h("span", { className: "strong" }, flagName(defect.kind)),
    h(
      "span",
      { className: "when-bar", "aria-hidden": true },
      defect.spans.map((span, at) => h(Span, { key: at, span, seconds })),
    ),
    h("button", { type: "button", className: "text-button", onClick: () => show(defect.spans[0][0]) }, times),
  );
}

function Span({ span: [start, end], seconds }) {
  const width = Math.max((100 * (end - start)) / seconds, 0.5);
  return h("span", { "data-state": "flagged", style: { left: `${(100 * start) / seconds}%`, width: `${width}%` } });
}

/** Take the clip's player to this second. */
function show(second) {
  const player = document.querySelector("video.player");
  if (player) player.currentTime = second;
}

function rest(seconds, share) {
  return `${seconds.toFixed(1)} s at most, ${Math.round(100 * share)}% in all`;
}
