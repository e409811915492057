// From clip to clip in the order of the wall that one came from, by links and by the arrow keys.
import { h, useEffect } from "./react.js";
import { Go } from "./route.js";
import { query, useServer } from "./server.js";
import { wantedClips } from "./wanted.js";

const KEYS = { ArrowLeft: "previous", ArrowRight: "next" };
const OWN_ARROWS = "input, select, textarea, video, summary, [role=dialog], [tabindex='0']";

export function Neighbours({ route, batchId, clipId }) {
  const { data } = useServer(`batches/${batchId}/clips/${clipId}/neighbours${query(wantedClips(route.filter))}`);
  useArrows(data, route);
  if (!data || data.place === null || data.total < 2) return null;
  return h(
    "nav",
    { className: "neighbours", "aria-label": "Clips of the list" },
    h(Way, { route, clipId: data.previous, keys: "ArrowLeft" }, "Previous"),
    h("span", { className: "quiet small" }, `${data.place.toLocaleString()} of ${data.total.toLocaleString()}`),
    h(Way, { route, clipId: data.next, keys: "ArrowRight" }, "Next"),
  );
}

function Way({ route, clipId, keys, children }) {
  if (!clipId) return h("span", { className: "button", "aria-disabled": true, role: "link" }, children);
  return h(Go, { route, changes: { clip: clipId }, className: "button", "aria-keyshortcuts": keys }, children);
}

/** The arrow keys go to a neighbour, unless what has the focus has a use of its own for them. */
function useArrows(neighbours, route) {
  useEffect(() => {
    const pressed = (event) => {
      const clip = neighbours?.[KEYS[event.key]];
      const isPlain = !(event.altKey || event.ctrlKey || event.metaKey || event.shiftKey);
      if (!clip || !isPlain || event.target.closest?.(OWN_ARROWS)) return;
      event.preventDefault();
      route.go({ clip });
    };
    document.addEventListener("keydown", pressed);
    return () => document.removeEventListener("keydown", pressed);
  }, [neighbours, route]);
}
