// Kinds of slices: their state, or who has a ready one.

export const KINDS = ["free", "held", "spare", "cordoned", "draining", "starting", "lost"];
/** By kind the part of a bar that shows it. */
export const PARTS = {
  held: "held", free: "free", spare: "spare", cordoned: "off", draining: "off", starting: "off", lost: "lost",
};

/** Returns the kind of a slice. */
function kindOf(slice) {
  if (slice.state !== "ready") return slice.state;
  return slice.tenant ? "held" : "free";
}

/**
 * Returns kinds by slice. The service keeps so many free slices of each type as spares, and not
 * particular ones: the last free slices are shown as these.
 */
export function kindsOf(slices, spares) {
  const kinds = new Map();
  const left = new Map();
  for (const slice of slices.toReversed()) {
    let kind = kindOf(slice);
    const kept = left.get(slice.instance_type) ?? spares;
    if (kind === "free" && kept > 0 && !slice.kept_for) {
      kind = "spare";
      left.set(slice.instance_type, kept - 1);
    }
    kinds.set(slice.id, kind);
  }
  return kinds;
}

/** Returns slices by their type. */
export function byType(slices) {
  return Map.groupBy(slices, (slice) => slice.instance_type);
}
