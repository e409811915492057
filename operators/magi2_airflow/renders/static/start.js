// Starting a batch: rows pasted or from a file, looked at before a run begins.
import { Action, Labelled } from "./actions.js";
import { acceleratorTime, money, plural } from "./format.js";
import { Answer, Said } from "./parts.js";
import { h, useId, useState } from "./react.js";
import { act, useServer } from "./server.js";

const MAX_BYTES = 2 ** 20;
const EXAMPLE = "prompt,seed\nA quiet harbor at dawn,1";

/** The button "Start a batch" and its dialog. */
export function StartBatch() {
  const [rows, setRows] = useState("");
  const [name, setName] = useState("");
  const [chosen, setChosen] = useState(null);
  const [matrix, setMatrix] = useState(false);
  const form = useServer("start");
  const body = { rows, name, matrix, profile: chosen ?? form.data?.profile ?? "" };
  const upload = (text, stem) => {
    setRows(text);
    if (!name) setName(stem);
  };
  return h(
    Action,
    { name: "Start a batch", path: "start", body, confirm: "Start the run", done: "Run started" },
    h(Answer, { answer: form, what: "the profiles" }, (known) => [
      h(Labelled, {
        key: "rows",
        label: "Rows: a table with a header, or JSON a line",
        as: "textarea",
        field: {
          className: "field rows",
          rows: 7,
          required: true,
          placeholder: EXAMPLE,
          value: rows,
          onChange: (event) => setRows(event.target.value),
          spellCheck: false,
        },
      }),
      h(Upload, { key: "file", upload }),
      h(Labelled, {
        key: "profile",
        label: "Profile of rows that name none",
        as: "select",
        options: known.profiles.map((each) => [each, each]),
        field: { value: body.profile, onChange: (event) => setChosen(event.target.value) },
      }),
      h(Labelled, {
        key: "name",
        label: "Name of the batch",
        field: { maxLength: 200, placeholder: "rows", value: name, onChange: (event) => setName(event.target.value) },
      }),
      h("label", { key: "matrix" }, [
        h("input", {
          key: "box",
          type: "checkbox",
          checked: matrix,
          onChange: (event) => setMatrix(event.target.checked),
        }),
        " Braces in prompts are choices: {dusk|dawn} is a clip for each",
      ]),
      h(Look, { key: JSON.stringify(body), body }),
    ]),
  );
}

function Upload({ upload }) {
  const [refusal, setRefusal] = useState(null);
  const read = async (event) => {
    const [file] = event.target.files;
    if (!file) return;
    const isSmall = file.size <= MAX_BYTES;
    setRefusal(isSmall ? null : `${file.name} has more than 1 MiB: put it into a folder or bucket for inputs.`);
    if (isSmall) upload(await file.text(), file.name.replace(/\.[^.]*$/, "").slice(0, 200));
  };
  return h(
    "div",
    null,
    h(Labelled, {
      label: "Or a file of them, at most 1 MiB",
      field: { type: "file", accept: ".jsonl,.json,.csv,.tsv,.txt", onChange: read },
    }),
    refusal && h("p", { className: "refusal", role: "alert" }, refusal),
  );
}

/** How the rows read, when somebody asks. */
function Look({ body }) {
  const [found, setFound] = useState(null);
  const id = useId();
  const look = async () => {
    try {
      setFound({ looked: await act("start/look", body) });
    } catch (error) {
      setFound({ refusal: error.message });
    }
  };
  return h(
    "div",
    { className: "looked" },
    h("button", { type: "button", className: "button", disabled: !body.rows, onClick: look }, "Look at the rows"),
    h(
      "div",
      { id, role: "status" },
      found?.refusal && h("p", { className: "refusal" }, h(Said, { text: found.refusal })),
      found?.looked && h(Looked, { looked: found.looked }),
    ),
  );
}

function Looked({ looked }) {
  const { rows, bad, bad_rows: badRows, first, plan } = looked;
  return [
    h("p", { key: "count" }, `${plural(rows, "row")}, of which ${badRows} cannot be rendered.`),
    h(
      "ul",
      { key: "bad" },
      bad.map((each) => h("li", { key: each.row }, h(Said, { text: `${each.row}: ${each.reason}` }))),
    ),
    plan && h("p", { key: "plan" }, wouldDo(plan)),
    plan &&
      h(
        "ul",
        { key: "equal" },
        plan.equal.map((text) => h("li", { key: text }, h(Said, { text }))),
      ),
    first.length > 0 && h("p", { key: "begin" }, "It begins with:"),
    h(
      "ul",
      { key: "first" },
      // Two clips may read alike.
      first.map((each, at) => h("li", { key: at }, h(Said, { text: each.text }))),
    ),
  ];
}

function wouldDo(plan) {
  const parts = [`${plural(plan.clips, "clip")}, ${plan.finished} finished already`];
  parts.push(`about ${acceleratorTime(plan.accelerator_seconds)} of accelerators`);
  const unknown = plan.unmeasured_stages.join(", ");
  if (unknown) parts.push(`not counting ${unknown}, never measured here`);
  const cost = money(plan.cost, plan.currency);
  if (cost) parts.push(`about ${cost}`);
  return `${parts.join(", ")}.`;
}
