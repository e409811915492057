// Which clips of a batch are listed, and in which order: the address's filters as the server wants them.
const FILTERS = {
  show: "state",
  profile: "profile",
  tag: "tag",
  flag: "flag",
  text: "text",
  shard: "shard",
  stage: "stage",
  reason: "reason",
  code: "error_code",
};

/** The query of the clips that a route's filter asks for. */
export function wantedClips(filter) {
  const order = filter.order || "name";
  const asked = Object.fromEntries(Object.entries(FILTERS).map(([ours, theirs]) => [theirs, filter[ours]]));
  return { ...asked, sort: order.replace("-", ""), descending: order.startsWith("-") };
}
