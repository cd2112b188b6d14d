// Words for times, amounts and states.

/** Returns a duration in seconds for people, rounded as `sps` rounds it. */
export function span(seconds) {
  for (const [limit, unit, size] of [[120, "s", 1], [7200, "min", 60], [172800, "h", 3600]]) {
    if (seconds < limit) return `${threeDigits(seconds / size)} ${unit}`;
  }
  return `${threeDigits(seconds / 86400)} d`;
}

/** Returns how long something lasts that goes on: in whole units, which do not flicker. */
export function age(seconds) {
  if (seconds < 120) return `${Math.floor(seconds)} s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} d`;
}

/** Returns the seconds since an RFC 3339 time; the clocks of two machines may differ. */
export function passed(moment) {
  return Math.max(0, Math.floor((Date.now() - Date.parse(moment)) / 1000));
}

/** Returns how long ago an RFC 3339 time was. */
export function ago(moment) {
  return moment ? `${age(passed(moment))} ago` : "";
}

/** Returns slices by type, as on the command line. */
export function amounts(counts) {
  return Object.entries(counts).map(([type, count]) => `${type}=${count}`).join(", ");
}

/** Returns a number with its noun: 1 slice, 2 slices. */
export function counted(number, noun) {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}

/** Returns a share of 0 to 1 in percent. */
export function percent(share, digits = 0) {
  return `${(100 * share).toFixed(digits)} %`;
}

/** Returns an amount of memory. */
export function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = Math.min(units.length - 1, Math.floor(Math.log2(Math.max(1, count)) / 10));
  const value = count / 1024 ** power;
  return `${power && value < 100 ? value.toFixed(1) : Math.round(value)} ${units[power]}`;
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

/** Returns an RFC 3339 time on this machine's clock, with its date. */
export function moment(text) {
  return text ? new Date(text).toLocaleString([], { dateStyle: "medium", timeStyle: "short" }) : "";
}

/** Returns what there is to say beside a tenant's state: a notice of preemption, a proxy that is away. */
export function notesOf(row) {
  const notice = row.preempting_by ? `under notice by ${row.preempting_by}` : "";
  return [notice, row.is_connected === false ? "its proxy is away" : ""].filter(Boolean).join(", ");
}

/** Returns the address of the page of a connection. */
export function addressOf(name) {
  return `#connection/${encodeURIComponent(name)}`;
}

/** Returns the address of the page of a submitted job. */
export function jobAddressOf(name) {
  return `#job/${encodeURIComponent(name)}`;
}

/** Orders names with numbers by their numbers: slice-2 before slice-10. */
export const byName = new Intl.Collator("en", { numeric: true }).compare;

/** Three significant digits, as Python's `.3g`. */
function threeDigits(value) {
  return String(Number(value.toPrecision(3)));
}

/** Returns how many times as long programs take on an executor as on its peers. */
export function speedOf({ slow, time_ratio: ratio }) {
  const times = typeof ratio === "number" ? `${threeDigits(ratio)}x` : "";
  return slow ? `slow ${times}`.trim() : times || "-";
}
