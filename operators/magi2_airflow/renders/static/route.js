// Where in the pages one is, kept in the query string: ?batch= shows a batch, &clip= a clip, &other= compares two.
import { h, Link, useCallback, useMemo, useSearchParams } from "./react.js";

const FILTERS = ["show", "profile", "tag", "text", "shard", "stage", "reason", "code", "flag", "order"];
const PLACES = ["batch", "clip", "other"];
const LIST_FILTERS = ["list_state", "list_text", "list_offset"];

/**
 * `{batch, clip, other, filter, list}` and the ways on: `to(changes)` is a link's target, `go(changes)` goes there.
 * A change of place forgets what was below it; of Airflow's own parameters nothing is touched.
 */
export function useRoute() {
  const [params, setParams] = useSearchParams();
  const go = useCallback((changes, options) => setParams((now) => changed(now, changes), options), [setParams]);
  return useMemo(() => {
    const pick = (names) => Object.fromEntries(names.map((name) => [name, params.get(name) ?? ""]));
    const to = (changes) => ({ search: `?${changed(params, changes)}` });
    return { ...pick(PLACES), filter: pick(FILTERS), list: pick(LIST_FILTERS), to, go };
  }, [params, go]);
}

function changed(params, changes) {
  const next = new URLSearchParams(params);
  const stale = "batch" in changes ? [...FILTERS, "clip", "other"] : [];
  for (const name of stale) next.delete(name);
  if ("clip" in changes) next.delete("other");
  for (const [name, value] of Object.entries(changes)) {
    if (value) next.set(name, value);
    else next.delete(name);
  }
  return next;
}

/** A link to another place in these pages. */
export function Go({ route, changes, ...rest }) {
  return h(Link, { to: route.to(changes), ...rest });
}

/** A link to a page of Airflow's, whose path the server gave. */
export function AirflowLink({ path, children }) {
  return path ? h(Link, { to: `/${path.replace(/^\/+/, "")}`, className: "link" }, children) : null;
}
