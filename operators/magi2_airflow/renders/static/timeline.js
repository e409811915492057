// What each stage did to a clip: when, how long, where, and what it left behind.
import { bytes, duration, money } from "./format.js";
import { Badge, Said } from "./parts.js";
import { h } from "./react.js";
import { AirflowLink } from "./route.js";

export function Timeline({ steps, currency }) {
  const span = spanOf(steps);
  const hasCost = steps.some((step) => step.cost !== null);
  return h(
    "section",
    { className: "stack tight", "aria-label": "Stages" },
    h("h2", null, "Stages"),
    h(
      "div",
      { className: "table-box", tabIndex: 0, role: "region", "aria-label": "Table of stages" },
      h(
        "table",
        { className: "timeline" },
        h(
          "thead",
          null,
          h(
            "tr",
            null,
            columns(hasCost).map((name) => h("th", { key: name, scope: "col" }, name)),
          ),
        ),
        h(
          "tbody",
          null,
          steps.map((step) => h(Step, { key: `${step.stage} ${step.attempt}`, step, span, currency, hasCost })),
        ),
      ),
    ),
  );
}

function columns(hasCost) {
  return ["Stage", "State", "When", "Took", "Accelerator", ...(hasCost ? ["Cost"] : []), "Memory", "Host", "Ways on"];
}

function Step({ step, span, currency, hasCost }) {
  const row = h(
    "tr",
    { key: "row", "data-old": !step.is_last || undefined },
    h(
      "th",
      { scope: "row" },
      step.stage,
      step.attempt > 1 && h("span", { className: "quiet small" }, ` attempt ${step.attempt}`),
    ),
    h(
      "td",
      null,
      h(Badge, { state: step.state }),
      step.flags.map((flag) => h(Badge, { key: flag, state: "flagged", label: flag })),
    ),
    h("td", { className: "when" }, h(Bar, { step, span })),
    h("td", null, duration(step.seconds)),
    h("td", null, duration(step.accelerator_seconds)),
    hasCost && h("td", null, money(step.cost, currency) ?? "–"),
    h("td", null, bytes(step.peak_memory_bytes)),
    h("td", null, step.host ? h(Said, { text: step.host }) : "–"),
    h(
      "td",
      null,
      h(
        "span",
        { className: "links" },
        step.manifest && h("a", { className: "link", href: step.manifest }, "Manifest"),
        h(AirflowLink, { path: step.log_path }, "Log"),
        h(AirflowLink, { path: step.task_path }, "Task"),
      ),
    ),
  );
  if (!step.error) return row;
  const width = columns(hasCost).length;
  return [
    row,
    h(
      "tr",
      { key: "error", className: "error-row" },
      h("td", { colSpan: width }, h(Said, { text: step.error, className: "bad" })),
    ),
  ];
}

/** Where a step lies between the first beginning and the last end. */
function Bar({ step, span }) {
  if (!step.started_at || !span) return null;
  const begin = Date.parse(step.started_at);
  const end = step.finished_at ? Date.parse(step.finished_at) : span.end;
  const left = (100 * (begin - span.begin)) / span.length;
  const width = (100 * (end - begin)) / span.length;
  return h(
    "span",
    { className: "when-bar", "aria-hidden": true },
    h("span", { "data-state": step.state, style: { left: `${left}%`, width: `${width}%` } }),
  );
}

function spanOf(steps) {
  const begun = steps.filter((step) => step.started_at);
  if (begun.length === 0) return null;
  const begin = Math.min(...begun.map((step) => Date.parse(step.started_at)));
  const ends = begun.map((step) => (step.finished_at ? Date.parse(step.finished_at) : Date.now()));
  const end = Math.max(...ends, begin + 1);
  return { begin, end, length: end - begin };
}
