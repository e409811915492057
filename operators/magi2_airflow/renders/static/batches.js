// The first page: every batch, how far it is and what it cost.
import { acceleratorTime, count, duration, money, plural } from "./format.js";
import { Answer, Badge, Choice, Heading, Said, SearchBox, StageBars, When } from "./parts.js";
import { h } from "./react.js";
import { AirflowLink, Go } from "./route.js";
import { query, useServer } from "./server.js";
import { StartBatch } from "./start.js";

const STATES = ["waiting", "running", "done", "failed", "cancelled"];
const PAGE = 25;

export function Batches({ route, isFirst, mayAct }) {
  const offset = Number(route.list.list_offset) || 0;
  const { list_state: state, list_text: text } = route.list;
  const path = `batches${query({ state, text, offset: offset || "", limit: PAGE })}`;
  const answer = useServer(path, (page) => page.batches.some((batch) => batch.is_live));
  const set = (name) => (value) => route.go({ [name]: value, list_offset: "" }, { replace: true });
  return h(
    "section",
    { className: "stack" },
    h("header", { className: "top" }, h(Heading, { isFirst }, "Renders"), mayAct && h(StartBatch)),
    h(
      "div",
      { className: "filters", role: "search" },
      h(SearchBox, { label: "Search batches", value: text, onChange: set("list_text") }),
      h(Choice, {
        label: "State",
        any: "Any state",
        value: state,
        options: STATES.map((each) => [each, each]),
        onChange: set("list_state"),
      }),
    ),
    h(Answer, { answer, what: "batches" }, (page) =>
      page.total ? h(BatchList, { page, route }) : h(NoBatches, { isFiltered: Boolean(state || text) }),
    ),
  );
}

function NoBatches({ isFiltered }) {
  if (isFiltered) return h("p", { className: "quiet" }, "No batch is like that.");
  return h(
    "div",
    { className: "empty" },
    h("p", null, "Nothing was rendered yet."),
    h(AirflowLink, { path: "dags/magi2_render_batch" }, "Start a batch"),
  );
}

function BatchList({ page, route }) {
  return h(
    "div",
    { className: "stack" },
    h(
      "ul",
      { className: "batches" },
      page.batches.map((batch) => h(BatchRow, { key: batch.batch_id, batch, route })),
    ),
    h(Pager, { page, route }),
  );
}

function BatchRow({ batch, route }) {
  return h(
    "li",
    { className: "batch" },
    h(
      "div",
      { className: "batch-title" },
      h(Go, { route, changes: { batch: batch.batch_id }, className: "batch-link" }, h(Said, { text: batch.name })),
      h(BatchBadges, { batch }),
    ),
    h(
      "p",
      { className: "quiet small" },
      h(When, { at: batch.created_at }),
      batch.started_by && [" by ", h(Said, { key: "who", text: batch.started_by })],
      batch.run_path && [" · ", h(AirflowLink, { key: "run", path: batch.run_path }, "Run")],
    ),
    h(StageBars, { stages: batch.stages }),
    h(BatchNumbers, { batch }),
  );
}

/** The state of a batch and what somebody wants of it. */
export function BatchBadges({ batch }) {
  return h(
    "span",
    { className: "badges" },
    h(Badge, { state: batch.state }),
    batch.is_stopped && h(Badge, { state: "failed", label: "stopped" }),
    batch.is_paused && h(Badge, { state: "paused" }),
    batch.is_cancel_requested && batch.is_live && h(Badge, { state: "cancelled", label: "cancelling" }),
  );
}

/** The counts, the time and the cost of a batch. */
export function BatchNumbers({ batch }) {
  const { clips } = batch;
  const cost = money(batch.cost, batch.currency);
  const budget = batch.budget === null ? null : money(batch.budget, batch.currency);
  const numbers = [
    ["done", `${count(clips.done)} / ${count(clips.total)}`],
    ["failed", clips.failed ? `${count(clips.failed)} of at most ${count(batch.failure_limit)}` : "0"],
    batch.refused_rows ? ["refused", plural(batch.refused_rows, "row")] : null,
    ["reused", count(clips.reused)],
    clips.skipped ? ["skipped", count(clips.skipped)] : null,
    clips.cancelled ? ["cancelled", count(clips.cancelled)] : null,
    batch.is_live ? ["left", duration(batch.seconds_left)] : null,
    ["accelerator", acceleratorTime(batch.accelerator_seconds)],
    cost && ["cost", budget ? `${cost} of ${budget}` : cost],
  ].filter(Boolean);
  return h(
    "dl",
    { className: "numbers" },
    numbers.map(([name, value]) => {
      const isBad = name === "refused" || (name === "failed" && clips.failed > 0);
      return h("div", { key: name, "data-bad": isBad || undefined }, h("dt", null, name), h("dd", null, value));
    }),
  );
}

function Pager({ page, route }) {
  if (page.total <= PAGE) return null;
  const last = page.offset + page.batches.length;
  const turn = (offset, text) =>
    h(Go, { route, changes: { list_offset: offset ? String(offset) : "" }, className: "button" }, text);
  return h(
    "nav",
    { className: "pager", "aria-label": "Pages of batches" },
    page.offset > 0 && turn(Math.max(0, page.offset - PAGE), "Newer"),
    h("span", { className: "quiet" }, `${page.offset + 1}–${last} of ${count(page.total)}`),
    last < page.total && turn(page.offset + PAGE, "Older"),
  );
}
