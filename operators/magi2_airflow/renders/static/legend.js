// What the words and colours of clips and of progress bars mean.
import { Badge } from "./parts.js";
import { h } from "./react.js";

const STATES = [
  ["waiting", "nothing was done to it yet, or its shard waits for its turn"],
  ["running", "a stage is at work on it or on a clip of its shard"],
  ["done", "its file is there, and where it is to be brought"],
  ["failed", "a stage could not make it; the reason stands in place of its prompt"],
  ["skipped", "it was left out, since the budget was spent or a limit passed"],
  ["cancelled", "its batch was ended before it was finished"],
  ["flagged", "finished, and something about it should be looked at"],
];
const PARTS = [
  ["made", "made by this batch"],
  ["reused", "found finished, from an earlier batch or run"],
  ["running", "being made"],
  ["failed", "could not be made"],
];

export function Legend() {
  return h(
    "details",
    { className: "fold legend" },
    h("summary", null, "Legend"),
    h("h2", null, "Clips"),
    h(
      "dl",
      null,
      STATES.map(([state, meaning]) =>
        h("div", { key: state }, h("dt", null, h(Badge, { state })), h("dd", null, meaning)),
      ),
    ),
    h("h2", null, "Progress by stage"),
    h(
      "dl",
      null,
      PARTS.map(([part, meaning]) =>
        h(
          "div",
          { key: part },
          h("dt", null, h("span", { className: "legend-part", "data-part": part }), part),
          h("dd", null, meaning),
        ),
      ),
    ),
  );
}
