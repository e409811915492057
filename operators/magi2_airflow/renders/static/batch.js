// One batch: how far it is, what failed and why, and its clips as a wall of posters.
import { BatchActions, RerunFailed } from "./actions.js";
import { BatchBadges, BatchNumbers } from "./batches.js";
import { count, flagName, plural } from "./format.js";
import { ClipGrid } from "./grid.js";
import { Legend } from "./legend.js";
import { Answer, Choice, Heading, Said, SearchBox, StageBars, When } from "./parts.js";
import { h, useState } from "./react.js";
import { AirflowLink, Go } from "./route.js";
import { useServer } from "./server.js";
import { wantedClips } from "./wanted.js";

const ORDERS = [
  ["", "By name"],
  ["-updated", "Latest first"],
  ["state", "By state"],
  ["-seconds", "Slowest first"],
  ["-cost", "Costliest first"],
];
const isLive = (batch) => batch.is_live;

export function Batch({ route, batchId, mayAct, isFirst, isTab }) {
  const answer = useServer(`batches/${batchId}`, isLive);
  return h(
    "section",
    { className: "stack" },
    h(Answer, { answer, what: "the batch" }, (batch) =>
      h("div", { className: "stack" }, [
        h(Head, { key: "head", batch, route, mayAct, isFirst, isTab }),
        h(StageBars, { key: "bars", stages: batch.stages, isDetailed: true }),
        batch.clips.failed + batch.refused_rows > 0 && h(Failures, { key: "failures", batch, route, mayAct }),
        h(Clips, { key: "clips", batch, route }),
        h(History, { key: "history", batch }),
      ]),
    ),
  );
}

function Head({ batch, route, mayAct, isFirst, isTab }) {
  return h(
    "header",
    { className: "stack tight" },
    h(
      "div",
      { className: "top" },
      h(
        "div",
        { className: "title" },
        h(Heading, { isFirst }, h(Said, { text: batch.name })),
        h(BatchBadges, { batch }),
      ),
      mayAct && h(BatchActions, { batch }),
    ),
    h(
      "p",
      { className: "quiet small" },
      h(When, { at: batch.created_at }),
      batch.started_by && [" by ", h(Said, { key: "who", text: batch.started_by })],
      batch.priority !== 0 && ` · priority ${batch.priority}`,
      batch.run_path && !isTab && [" · ", h(AirflowLink, { key: "run", path: batch.run_path }, "Run in Airflow")],
      batch.parent_batch_id && [
        " · again from ",
        h(
          Go,
          { key: "parent", route, changes: { batch: batch.parent_batch_id }, className: "link" },
          "an earlier batch",
        ),
      ],
    ),
    batch.paused_because &&
      h("p", { className: "problem", role: "status" }, h(Said, { text: `Paused: ${batch.paused_because}` })),
    h(BatchNumbers, { batch }),
  );
}

function Failures({ batch, route, mayAct }) {
  const path = `batches/${batch.batch_id}/failures`;
  const answer = useServer(path, () => batch.is_live);
  return h(
    "details",
    { className: "fold failures" },
    h("summary", null, whatFailed(batch)),
    h(Answer, { answer, what: "the reasons" }, ({ groups, total, refused }) =>
      h(
        "div",
        { className: "stack tight" },
        h(
          "ul",
          { className: "groups" },
          groups.map((group, at) => h(Group, { key: at, group, route })),
          refused.map(({ row, reason }) => h(RefusedRow, { key: `row ${row}`, row, reason })),
        ),
        batch.refused_rows > refused.length &&
          h("p", { className: "quiet" }, `and ${plural(batch.refused_rows - refused.length, "other row")} refused`),
        total > groups.length && h("p", { className: "quiet" }, `and ${plural(total - groups.length, "other kind")}`),
        mayAct && !batch.is_live && batch.clips.failed > 0 && h("div", null, h(RerunFailed, { batch })),
      ),
    ),
  );
}

function whatFailed({ clips, refused_rows }) {
  const parts = [
    clips.failed && `${plural(clips.failed, "clip")} failed`,
    refused_rows && `${plural(refused_rows, "row")} refused`,
  ];
  return parts.filter(Boolean).join(", ");
}

function RefusedRow({ row, reason }) {
  return h(
    "li",
    { className: "group" },
    h("span", { className: "group-count" }, row ? `row ${row}` : "the file"),
    h("div", null, h("strong", null, "plan "), h(Said, { text: reason, className: "group-reason" })),
  );
}

function Group({ group, route }) {
  const changes = { show: "failed", stage: group.stage, code: group.error_code };
  return h(
    "li",
    { className: "group" },
    h("span", { className: "group-count" }, count(group.count)),
    h(
      "div",
      null,
      group.stage && h("strong", null, `${group.stage} `),
      group.error_code && h("code", null, group.error_code),
      " ",
      h(Said, { text: group.reason ?? group.error_code ?? "no reason given", className: "group-reason" }),
    ),
    h(Go, { route, changes, replace: true, className: "link" }, "Show"),
  );
}

function Clips({ batch, route }) {
  const { filter } = route;
  const facets = useServer(`batches/${batch.batch_id}/facets`, () => batch.is_live);
  const [picked, setPicked] = useState([]);
  const values = wantedClips(filter);
  const pick = (clip) =>
    setPicked((now) =>
      now.some((each) => each.clip_id === clip.clip_id)
        ? now.filter((each) => each.clip_id !== clip.clip_id)
        : [...now, clip].slice(-2),
    );
  return h(
    "section",
    { className: "stack", "aria-label": "Clips" },
    h(Filters, { route, facets: facets.data }),
    h(Legend),
    h(ClipGrid, { batchId: batch.batch_id, values, isLive: batch.is_live, route, picked, pick }),
    picked.length > 0 && h(Picked, { batch, picked, route, clear: () => setPicked([]) }),
  );
}

function Filters({ route, facets }) {
  const { filter } = route;
  const set = (name) => (value) => route.go({ [name]: value }, { replace: true });
  const options = (list) => (list ?? []).map((each) => [each.value, `${each.value} (${count(each.count)})`]);
  const isNarrow = filter.stage || filter.reason || filter.code || filter.shard;
  return h(
    "div",
    { className: "filters", role: "search" },
    h(SearchBox, { label: "Search prompts", value: filter.text, onChange: set("text") }),
    h(Choice, {
      label: "State",
      any: "Any state",
      value: filter.show,
      options: options(facets?.states),
      onChange: set("show"),
    }),
    h(Choice, {
      label: "Profile",
      any: "Any profile",
      value: filter.profile,
      options: options(facets?.profiles),
      onChange: set("profile"),
    }),
    facets?.tags.length > 0 &&
      h(Choice, {
        label: "Tag",
        any: "Any tag",
        value: filter.tag,
        options: options(facets.tags),
        onChange: set("tag"),
      }),
    facets?.flags.length > 0 &&
      h(Choice, {
        label: "Flag",
        any: "Flagged or not",
        value: filter.flag,
        options: facets.flags.map((each) => [each.value, `${flagName(each.value)} (${count(each.count)})`]),
        onChange: set("flag"),
      }),
    h(Choice, { label: "Order", value: filter.order, options: ORDERS, onChange: set("order") }),
    isNarrow && h(Narrowed, { filter, route }),
  );
}

/** What the list was narrowed to by a link, for which there is no field: a failure's stage and reason, or a shard. */
function Narrowed({ filter, route }) {
  const words = [
    filter.shard && `shard ${filter.shard}`,
    filter.stage && `failed in ${filter.stage}`,
    filter.code,
    filter.reason,
  ].filter(Boolean);
  const all = () => route.go({ shard: "", stage: "", reason: "", code: "", show: "" }, { replace: true });
  return h(
    "span",
    { className: "narrowed" },
    h(Said, { text: words.join(": "), className: "one-line" }),
    h("button", { type: "button", className: "text-button", onClick: all }, "Show all"),
  );
}

function Picked({ batch, picked, route, clear }) {
  const [left, right] = picked;
  const changes = right && { clip: left.clip_id, other: `${batch.batch_id}:${right.clip_id}` };
  return h(
    "div",
    { className: "picked", role: "status" },
    h("span", null, right ? "Two clips picked" : "Pick another clip to compare"),
    right && h(Go, { route, changes, className: "button primary" }, "Compare"),
    h("button", { type: "button", className: "button", onClick: clear }, "Clear"),
  );
}

function History({ batch }) {
  const [isOpen, setOpen] = useState(false);
  const answer = useServer(isOpen ? `batches/${batch.batch_id}/actions` : null);
  return h(
    "details",
    { className: "fold", onToggle: (event) => setOpen(event.currentTarget.open) },
    h("summary", null, "Who did what"),
    isOpen && h(Answer, { answer, what: "the actions" }, ({ actions }) => h(ActionList, { actions })),
  );
}

function ActionList({ actions }) {
  if (actions.length === 0) return h("p", { className: "quiet" }, "Nobody did anything to this batch.");
  return h(
    "ul",
    { className: "history" },
    actions.map((each, at) =>
      h(
        "li",
        { key: at },
        h(When, { at: each.at }),
        " ",
        h(Said, { text: each.user_name }),
        ` ${each.action} `,
        h(Said, { text: argumentsOf(each), className: "quiet" }),
      ),
    ),
  );
}

function argumentsOf(record) {
  const said = Object.entries(record.arguments).filter(([, value]) => value !== null && String(value) !== "");
  return said.map(([name, value]) => `${name}: ${Array.isArray(value) ? value.length : value}`).join(", ");
}
