// The page "Renders" and the tabs of the same name on runs and tasks: which of the pages stands at an address.
import { Notice, Notify } from "./actions.js";
import { Batch } from "./batch.js";
import { Batches } from "./batches.js";
import { Clip } from "./clip.js";
import { Compare } from "./compare.js";
import { clipName } from "./format.js";
import { Answer, Said } from "./parts.js";
import { Component, Fragment, h, useCallback, useEffect, useState } from "./react.js";
import { Go, useRoute } from "./route.js";
import { BASE, query, useServer } from "./server.js";

/** The component that Airflow shows: as a page without properties, as a tab with those of the run or task. */
function Renders(place) {
  const version = new URL(import.meta.url).search;
  return h(
    Fragment,
    null,
    h("link", { rel: "stylesheet", href: `${BASE}static/renders.css${version}`, precedence: "default" }),
    h("div", { className: "renders" }, h(Guard, null, h(place.runId ? Tab : Page, place))),
  );
}

/** Keeps a fault of ours from taking Airflow's page with it. */
class Guard extends Component {
  state = { error: null };

  static getDerivedStateFromError(error) {
    return { error };
  }

  render() {
    const { error } = this.state;
    if (!error) return this.props.children;
    return h(
      "div",
      { className: "problem", role: "alert" },
      h("p", null, `This page has a fault: ${error.message}`),
      h("a", { className: "link", href: BASE }, "See the renders as plain pages"),
    );
  }
}

function Page() {
  return h(Shown, { route: useRoute() });
}

/** On a run or a task: its batch, narrowed to the task's shard. */
function Tab({ dagId, runId, taskId, mapIndex }) {
  const route = useRoute();
  const values = { dag_id: dagId, run_id: runId, task_id: taskId, map_index: mapIndex };
  const found = useServer(`lookup${query(values)}`);
  if (found.error?.status === 404)
    return h(
      "p",
      { className: "quiet" },
      "No batch belongs to this: it is not planned yet, or this is not a run of ours.",
    );
  return h(Answer, { answer: found, what: "the batch" }, (lookup) => h(TabContent, { route, lookup }));
}

function TabContent({ route, lookup }) {
  const shard = lookup.shard === null ? "" : String(lookup.shard);
  useEffect(() => {
    if (shard && !route.filter.shard && !route.batch) route.go({ batch: lookup.batch_id, shard }, { replace: true });
  }, []);
  return h(Shown, { route, home: lookup.batch_id });
}

/** `home` is the batch of a tab; there is no way from it to other batches' list. */
function Shown({ route, home }) {
  const batchId = route.batch || home;
  const isFirst = isStillFirst(`${batchId} ${route.clip} ${route.other}`);
  const me = useServer("me");
  const batch = useServer(batchId && route.clip ? `batches/${batchId}` : null);
  const [notice, setNotice] = useState(null);
  const clear = useCallback(() => setNotice(null), []);
  const common = {
    route,
    batchId,
    batch: batch.data,
    mayAct: me.data?.can_act ?? false,
    isFirst,
    isTab: Boolean(home),
  };
  const page = !batchId ? Batches : !route.clip ? Batch : !route.other ? Clip : Compare;
  return h(
    Notify.Provider,
    { value: setNotice },
    h(StoreWarning),
    h(AirflowWarning),
    batchId && h(Crumbs, { route, batch: batch.data, batchId, home }),
    h(page, { key: `${batchId} ${route.clip} ${route.other}`, ...common }),
    h("div", { role: "status", "aria-live": "polite" }, notice && h(Notice, { notice, clear })),
  );
}

/** That store and catalog do not belong together: nothing below it can be trusted then. */
function StoreWarning() {
  const { data } = useServer("store", (state) => Boolean(state.problem));
  if (!data?.problem) return null;
  return h("div", { className: "problem", role: "alert" }, h("p", null, h(Said, { text: data.problem })));
}

/** What Airflow lacks: runs would wait for it in silence. */
function AirflowWarning() {
  const { data } = useServer("airflow", (state) => state.problems.length > 0);
  if (!data?.problems.length) return null;
  return h(
    "div",
    { className: "problem", role: "alert" },
    data.problems.map((text) => h("p", { key: text }, h(Said, { text }))),
  );
}

function Crumbs({ route, batch, batchId, home }) {
  const clip = useServer(route.clip && route.other ? `batches/${batchId}/clips/${route.clip}` : null);
  const steps = [
    !home && h(Go, { route, changes: { batch: "" } }, "Renders"),
    route.clip && h(Go, { route, changes: { clip: "" } }, batch ? h(Said, { text: batch.name }) : "Batch"),
    route.other &&
      h(Go, { route, changes: { other: "" } }, clip.data ? h(Said, { text: clipName(clip.data) }) : "Clip"),
  ].filter(Boolean);
  if (steps.length === 0) return null;
  return h(
    "nav",
    { className: "crumbs", "aria-label": "Way back" },
    h(
      "ol",
      null,
      steps.map((step, at) => h("li", { key: at }, step)),
    ),
  );
}

let firstPlace = null;
let hasMoved = false;

/**
 * Whether nobody has gone from page to page yet; until then the focus stays where it is.
 * Kept outside the component, since Airflow mounts it anew once it is loaded.
 */
function isStillFirst(place) {
  firstPlace ??= place;
  hasMoved ||= place !== firstPlace;
  return !hasMoved;
}

globalThis.Renders = Renders;
globalThis.AirflowPlugin = Renders;
