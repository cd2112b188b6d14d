// Words for times, amounts and states.

const TONES = 8;

/** Returns a duration in seconds for people, as `sps` prints it. */
export function span(seconds) {
  for (const [limit, unit, size] of [[120, "s", 1], [7200, "min", 60], [172800, "h", 3600]]) {
    if (seconds < limit) return `${round(seconds / size)} ${unit}`;
  }
  return `${round(seconds / 86400)} d`;
}

function round(value) {
  return value < 10 ? String(Math.floor(value * 10) / 10) : String(Math.floor(value));
}

/** Returns the seconds since an RFC 3339 time; the clocks of two machines may differ. */
export function passed(moment) {
  return Math.max(0, Math.floor((Date.now() - Date.parse(moment)) / 1000));
}

/** Returns how long ago an RFC 3339 time was. */
export function ago(moment) {
  return moment ? `${span(passed(moment))} ago` : "";
}

/** Returns slices by type, as on the command line. */
export function amounts(counts) {
  return Object.entries(counts).map(([type, count]) => `${type}=${count}`).join(", ");
}

/** Returns the name of a person and a machine. */
export function person(row) {
  return row.host ? `${row.user ?? "?"}@${row.host}` : row.user ?? "?";
}

/** Returns a time on this machine's clock. */
export function clock(seconds, withDate) {
  const at = new Date(seconds * 1000);
  const time = at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  return withDate ? `${at.toLocaleDateString([], { month: "short", day: "numeric" })} ${time}` : time;
}

/** Returns a tenant's state, with a notice of preemption, and whether its proxy is away. */
export function stateOf(row) {
  const notice = row.preempting_by ? `, under notice by ${row.preempting_by}` : "";
  return `${row.state}${notice}${row.is_connected === false ? ", its proxy is away" : ""}`;
}

/** Returns the address of the page of a connection. */
export function addressOf(name) {
  return `#connection/${encodeURIComponent(name)}`;
}

/** Returns the same tone for the same person on every page. */
export function toneOf(name) {
  let sum = 0;
  for (const letter of name) sum = (sum * 31 + letter.codePointAt(0)) % 9973;
  return sum % TONES;
}

/** Orders names with numbers by their numbers: slice-2 before slice-10. */
export const byName = new Intl.Collator("en", { numeric: true }).compare;
