// What may be done to a batch. Each action asks once, in a dialog that says what will happen, and shows a refusal.
import { money, plural } from "./format.js";
import { Said } from "./parts.js";
import { createContext, h, useContext, useEffect, useId, useRef, useState } from "./react.js";
import { AirflowLink } from "./route.js";
import { act } from "./server.js";

/** Tells the page what was done: `notify({text, runPath})`. */
export const Notify = createContext(() => {});

const STAGES = ["enhance", "encode", "preview", "refine", "decode", "mux", "deliver"];
const FROM = [["", "what is missing"], ...STAGES.map((stage) => [stage, `everything from ${stage} on`])];

/** All that can be done to a batch as a whole. */
export function BatchActions({ batch }) {
  return h(
    "div",
    { className: "actions", role: "group", "aria-label": "Actions" },
    h(Rerun, { batch }),
    batch.is_live && (batch.is_paused ? h(Resume, { batch }) : h(Pause, { batch })),
    batch.is_live && h(Priority, { batch }),
    batch.currency !== null && (batch.is_live || batch.clips.skipped > 0) && h(Budget, { batch }),
    h(Limit, { batch }),
    !batch.is_live && batch.clips.skipped > 0 && h(GoOn, { batch }),
    batch.is_live && !batch.is_cancel_requested && h(Cancel, { batch }),
    !batch.is_live && h(Delete, { batch }),
  );
}

function Pause({ batch }) {
  return h(
    Action,
    { name: "Pause", path: `batches/${batch.batch_id}/pause`, done: "Paused" },
    h("p", null, "Clips that are being rendered are finished. No further one begins until somebody resumes."),
  );
}

function Resume({ batch }) {
  return h(
    Action,
    { name: "Resume", path: `batches/${batch.batch_id}/resume`, done: "Resumed" },
    h("p", null, "Rendering goes on with the next clip."),
  );
}

function GoOn({ batch }) {
  return h(
    Action,
    { name: "Resume", path: `batches/${batch.batch_id}/resume`, done: "Resumed" },
    h("p", null, `The run goes on with ${plural(batch.clips.skipped, "clip")} that it left out.`),
  );
}

function Limit({ batch }) {
  const [limit, setLimit] = useState(batch.failure_limit);
  return h(
    Action,
    {
      name: "Failure limit",
      path: `batches/${batch.batch_id}/limit`,
      body: { failure_limit: Number(limit) },
      done: "Limit set",
    },
    h("p", null, `${batch.failures}. What a batch that stopped has left out is rendered when it is resumed.`),
    h(Labelled, {
      label: "Clips that may fail",
      field: {
        type: "number",
        min: 0,
        required: true,
        value: limit,
        onChange: (event) => setLimit(event.target.value),
      },
    }),
  );
}

function Delete({ batch }) {
  return h(
    Action,
    {
      name: "Delete batch",
      path: `batches/${batch.batch_id}/delete`,
      body: { confirm: true },
      done: "Deleted",
      isGrave: true,
      back: "Keep it",
    },
    h(
      "p",
      null,
      "The batch, and what of its clips and intermediates no other batch needs, is removed from the store. " +
        "Captions and files that were brought to targets stay.",
    ),
  );
}

function Cancel({ batch }) {
  const { clips } = batch;
  const open = clips.total - clips.done - clips.failed - clips.skipped - clips.cancelled;
  return h(
    Action,
    {
      name: "Cancel batch",
      path: `batches/${batch.batch_id}/cancel`,
      done: "Cancelled",
      isGrave: true,
      back: "Keep running",
    },
    h("p", null, `The run in Airflow ends and ${plural(open, "clip")} will not be rendered. What is finished stays.`),
  );
}

function Priority({ batch }) {
  const [priority, setPriority] = useState(batch.priority);
  return h(
    Action,
    {
      name: "Priority",
      path: `batches/${batch.batch_id}/priority`,
      body: { priority: Number(priority) },
      done: "Priority set",
    },
    h("p", null, "Shards of a batch with a higher number start first."),
    h(Labelled, {
      label: "Priority",
      field: {
        type: "number",
        min: -1000,
        max: 1000,
        required: true,
        value: priority,
        onChange: (event) => setPriority(event.target.value),
      },
    }),
  );
}

function Budget({ batch }) {
  const [budget, setBudget] = useState(batch.budget ?? "");
  const cost = money(batch.cost, batch.currency);
  return h(
    Action,
    {
      name: "Set budget",
      path: `batches/${batch.batch_id}/budget`,
      body: { budget: budget === "" ? null : Number(budget) },
      done: "Budget set",
    },
    h("p", null, "Once it is spent no further shard begins; what has begun is finished."),
    cost && h("p", null, `So far the batch has cost ${cost}.`),
    h(Labelled, {
      label: `Budget in ${batch.currency}, empty for no limit`,
      field: {
        type: "number",
        min: 0,
        step: "any",
        value: budget,
        onChange: (event) => setBudget(event.target.value),
      },
    }),
  );
}

function Rerun({ batch }) {
  return h(RerunDialog, {
    name: "Rerun",
    batch,
    choices: [["all", `all ${plural(batch.clips.total, "clip")}`], ...failedChoice(batch)],
  });
}

/** Start the clips of a batch that failed again. */
export function RerunFailed({ batch }) {
  return h(RerunDialog, { name: "Rerun failed clips", batch, choices: failedChoice(batch) });
}

/** Start one clip of a batch again. */
export function RerunClip({ batchId, clip }) {
  return h(RerunDialog, {
    name: "Rerun this clip",
    batch: { batch_id: batchId },
    choices: [[clip.clip_id, "this clip"]],
  });
}

function failedChoice(batch) {
  return batch.clips.failed && !batch.is_live
    ? [["failed", `the ${plural(batch.clips.failed, "clip")} that failed`]]
    : [];
}

function RerunDialog({ name, batch, choices }) {
  const [wanted, setWanted] = useState(choices[0][0]);
  const [only, words] = choices.find(([value]) => value === wanted) ?? choices[0];
  const [stage, setStage] = useState("");
  const [overrides, setOverrides] = useState("");
  const isClip = only !== "all" && only !== "failed";
  const body = {
    from_stage: stage || null,
    only: isClip ? [only] : only,
    overrides: overrides
      .split("\n")
      .map((line) => line.trim())
      .filter(Boolean),
  };
  return h(
    Action,
    { name, path: `batches/${batch.batch_id}/rerun`, body, confirm: "Start the run", done: "Run started" },
    h("p", null, `A new run in Airflow renders ${words}. ${consequence(body)}`),
    choices.length > 1 &&
      h(Labelled, {
        label: "Clips",
        as: "select",
        options: choices,
        field: { value: only, onChange: (event) => setWanted(event.target.value) },
      }),
    h(Labelled, {
      label: "Make",
      as: "select",
      options: FROM,
      field: { value: stage, onChange: (event) => setStage(event.target.value) },
    }),
    h(Labelled, {
      label: "Changed settings, one a line",
      as: "textarea",
      field: {
        rows: 2,
        placeholder: "refiner.steps=8",
        value: overrides,
        onChange: (event) => setOverrides(event.target.value),
        spellCheck: false,
      },
    }),
  );
}

function consequence({ from_stage: stage, overrides }) {
  const touched = "Only what the changed settings touch is made; the rest is taken from the store.";
  if (overrides.length) return stage ? `${touched} It is refused if they touch a stage before ${stage}.` : touched;
  if (stage === "deliver")
    return "Clips are brought to their targets where they are not there; what is missing is made.";
  if (stage) return `Every stage from ${stage} on is made again and compared with what is stored.`;
  return "Only what is missing is made; what is finished is taken from the store.";
}

/** A field with its label above it. */
export function Labelled({ label, as = "input", options, field }) {
  const id = useId();
  const inner = options?.map(([value, text]) => h("option", { key: value, value }, text));
  return h(
    "div",
    { className: "labelled" },
    h("label", { htmlFor: id }, label),
    h(as, { id, className: "field", ...field }, inner),
  );
}

/** A button that opens a dialog, whose own button does what it says. */
export function Action({ name, path, body = {}, confirm = name, done, isGrave, back = "Back", children }) {
  const [isOpen, setOpen] = useState(false);
  const opener = useRef(null);
  const close = () => {
    setOpen(false);
    opener.current?.focus();
  };
  const kind = isGrave ? "button grave" : "button";
  return [
    h("button", { key: "open", ref: opener, type: "button", className: kind, onClick: () => setOpen(true) }, name),
    isOpen && h(Dialog, { key: "dialog", name, path, body, confirm, done, isGrave, back, close }, children),
  ];
}

function Dialog({ name, path, body, confirm, done, isGrave, back, close, children }) {
  const box = useRef(null);
  const [state, setState] = useState({ isBusy: false, error: null });
  const notify = useContext(Notify);
  const id = useId();
  useEffect(() => box.current.showModal(), []);
  const submit = async (event) => {
    event.preventDefault();
    setState({ isBusy: true, error: null });
    try {
      const answer = await act(path, body);
      close();
      notify({ text: `${done}.`, runPath: answer.run_path });
    } catch (error) {
      setState({ isBusy: false, error });
    }
  };
  return h(
    "dialog",
    { ref: box, className: "dialog", "aria-labelledby": id, onClose: close },
    h(
      "form",
      { onSubmit: submit, className: "stack tight" },
      h("h2", { id }, name),
      children,
      state.error && h("p", { className: "refusal", role: "alert" }, h(Said, { text: state.error.message })),
      h(
        "div",
        { className: "dialog-buttons" },
        h("button", { type: "button", className: "button", onClick: close }, back),
        h(
          "button",
          { type: "submit", className: isGrave ? "button grave primary" : "button primary", disabled: state.isBusy },
          state.isBusy ? "Working …" : confirm,
        ),
      ),
    ),
  );
}

/** Says what was done, with the way to the run that it started; goes by itself. */
export function Notice({ notice, clear }) {
  useEffect(() => {
    const timer = setTimeout(clear, 10000);
    return () => clearTimeout(timer);
  }, [notice]);
  return h(
    "div",
    { className: "notice" },
    h("span", null, notice.text),
    h(AirflowLink, { path: notice.runPath }, "Open the run"),
    h("button", { type: "button", className: "text-button", onClick: clear }, "Dismiss"),
  );
}
