// The view of one connection: its state, slices, link, proxy, counters, decisions and log.

import { choiceFor } from "./actions.js";
import { Rows, Table, make, setText } from "./dom.js";
import { ask } from "./store.js";
import { ago, amounts, byName, passed, person, span, stateOf } from "./words.js";

const REFRESH_MS = 2000;
// Each reading of a cluster asks its API server.
const CLUSTER_REFRESH_MS = 5000;
const MEMORY = "sps_proxy_device_memory_bytes";

export class ConnectionView {
  constructor(store, actions, name) {
    this.store = store;
    this.name = name;
    this.details = null;
    this.log = { text: "", problem: "" };
    this.told = make("p", { role: "status", "aria-live": "polite" });
    this.facts = make("dl", { class: "facts" });
    this.factRows = new Rows(this.facts, () => make("div", {}, make("dt"), make("dd")), (element, [title, text]) => {
      setText(element.firstChild, title);
      setText(element.lastChild, text);
    });
    this.slices = new Table("Slices", [
      ["Index", (row) => String(row.index), "number"],
      ["Slice", (row) => row.slice_id ?? ""],
      ["Type", (row) => row.instance_type],
      ["State", (row) => row.state],
      ["Hosts", (row) => (store.rows.slices.get(row.slice_id)?.hosts ?? []).join(", ")],
      ["Held for", (row) => ago(store.rows.slices.get(row.slice_id)?.held_since).replace(" ago", "")],
    ]);
    this.executors = new Table("Executors", [
      ["Slice", (row) => row.slice],
      ["Host", (row) => String(row.host), "number"],
      ["State", (row) => row.state],
      ["Memory", (row) => memoryOf(row), "number"],
      ["CPU", (row) => (row.cpu_percent === null ? "-" : `${row.cpu_percent}%`), "number"],
      ["CPU time", (row) => (row.cpu_seconds === null ? "-" : span(row.cpu_seconds)), "number"],
      ["Process", (row) => String(row.pid ?? "-"), "number"],
    ]);
    this.memory = new Table("Memory of the devices", [
      ["Device", (row) => row.device, "number"],
      ["Held", (row) => bytes(row.held), "number"],
      ["Limit", (row) => (row.limit ? bytes(row.limit) : "none"), "number"],
    ]);
    this.counters = new Table("Counters of the proxy", [
      ["Counter", (row) => row.name],
      ["Value", (row) => String(row.value), "number"],
    ]);
    this.decisions = new Table("Decisions about it, the latest first", [
      ["Time", (row) => new Date(row.time).toLocaleString()],
      ["Decision", (row) => row.text],
    ]);
    this.countersTold = make("p", { class: "empty" });
    this.logTold = make("p", { class: "empty" });
    this.logText = make("pre", { class: "log", tabindex: "0", role: "region", "aria-label": "Log of the proxy" });
    const end = make("button", { type: "button", onclick: () => actions.offer(name, [choiceFor(name)]) }, `Delete ${name}`);
    this.elements = [
      make("p", { class: "subject" }, name), ...(actions.allowed ? [end] : []), this.told, this.facts, this.slices.element, this.executors.element,
      this.decisions.element,
      make("h3", {}, "Proxy"), this.countersTold, this.memory.element,
      make("details", {}, make("summary", {}, "All counters"), this.counters.element),
      make("h3", {}, "Log"), this.logTold, this.logText,
    ];
    this.history = [];
    this.isOpen = true;
    this.load();
  }

  close() {
    this.isOpen = false;
  }

  /** Reads the parts that the stream of the state does not have, until the view is closed. */
  async load() {
    while (this.isOpen) {
      const parameters = { name: this.name };
      const [details, log, why] = await Promise.allSettled([
        ask("/api/connection", parameters), ask("/api/log", parameters), ask("/api/explain", { tenant: this.name }),
      ]);
      if (!this.isOpen) return;
      this.details = details.value ?? this.details;
      this.problem = details.reason?.message ?? "";
      this.log = log.value ? { text: log.value.lines.join("\n"), problem: "" } : { ...this.log, problem: log.reason.message };
      this.history = why.value?.decisions.toReversed() ?? this.history;
      this.show();
      const pause = this.store.service.home === "kubernetes" ? CLUSTER_REFRESH_MS : REFRESH_MS;
      await new Promise((wake) => setTimeout(wake, pause));
    }
  }

  show() {
    const tenant = this.store.rows.tenants.get(this.name);
    const queued = this.store.rows.queue.get(this.name);
    const known = tenant || !this.store.loaded ? "" : "The service has no connection of this name now.";
    setText(this.told, this.problem || known);
    const facts = [...this.factsOfState(tenant ?? {}, queued), ...this.factsOfLink(), ...this.factsOfProxy()];
    this.factRows.show(facts.filter(([, text]) => text).map((fact) => [fact[0], fact]));
    this.slices.show((tenant?.slices ?? []).map((slice) => [String(slice.index), slice]));
    this.slices.element.hidden = !tenant?.slices.length;
    const executors = [...this.store.rows.executors].filter(([, row]) => row.tenant === this.name);
    this.executors.show(executors.sort(([a], [b]) => byName(a, b)));
    this.executors.element.hidden = !executors.length;
    this.decisions.show(this.history.map((row, number) => [`${row.time} ${number - this.history.length}`, row]));
    this.decisions.element.hidden = !this.history.length;
    this.showCounters();
    this.showLog();
  }

  factsOfState(tenant, queued) {
    const wait = queued?.expected_wait_s;
    return [
      ["State", tenant.state ? stateOf(tenant) : ""],
      ["Since", ago(tenant.since)],
      ["User", tenant.name ? person(tenant) : ""],
      ["Team", tenant.team],
      ["Priority", tenant.name ? String(tenant.priority ?? "") : ""],
      ["Ends", tenant.ends ? new Date(tenant.ends).toLocaleString() : ""],
      ["Position in the queue", queued ? String(queued.position) : ""],
      ["Waits for", queued ? amounts(queued.wants) : ""],
      ["Reason", queued?.reason],
      ["Expected wait", queued ? (wait == null ? "not known" : span(wait)) : ""],
    ];
  }

  factsOfLink() {
    if (!this.details) return [];
    const { own, agent } = this.details;
    if (!own) return [["Link", "known only to the user and the machine of the connection"]];
    const count = (name) => (agent.value ? String(agent.value[`sps_agent_${name}`] ?? "") : "");
    return [
      ["Session", own.state],
      ["Link", linkText(own.link)],
      ["Connections of the link", count("link_carriers")],
      ["Losses of the link", count("link_losses_total")],
      ["Failed dials", count("link_failed_dials_total")],
      ["Counters of the agent", agent.error ?? (agent.value ? "" : "not served (SPS_AGENT_METRICS_PORT)")],
      ["Process", own.pid ? `${own.pid} on ${own.host ?? "this machine"}, agent ${own.agent_pid}` : ""],
    ];
  }

  factsOfProxy() {
    const { value: job, error } = this.details?.proxy ?? {};
    if (error) return [["Proxy's Job", error]];
    if (!job) return [];
    return [
      ["Proxy's Job", `${job.state} in ${job.namespace}, created ${ago(job.since)}`],
      ["Its deadline", job.ends ? new Date(job.ends).toLocaleString() : ""],
    ];
  }

  showCounters() {
    const { value, error, hint } = this.details?.counters ?? {};
    const counters = value?.counters ?? {};
    const none = value ? "The proxy did not answer." : "Its counters are not collected, or it has ended.";
    const problem = error ? (hint ? `${error} (${hint})` : error) : value?.counters ? "" : none;
    setText(this.countersTold, this.details ? problem : "");
    const limit = counters.sps_proxy_device_memory_limit_bytes;
    const devices = Object.entries(counters[MEMORY] ?? {}).map(([device, held]) => [device, { device, held, limit }]);
    this.memory.show(devices);
    this.memory.element.hidden = !devices.length;
    const limits = Object.entries(value?.limits ?? {}).map(([name, most]) => [`limit: ${name}`, most ?? "none"]);
    const rows = [...limits, ...Object.entries(counters)].flatMap(([name, found]) =>
      found !== null && typeof found === "object"
        ? Object.entries(found).map(([label, number]) => [`${name} ${label}`, number])
        : [[name, found]]);
    rows.sort(([a], [b]) => byName(a, b));
    this.counters.show(rows.map(([name, number]) => [name, { name, value: number }]));
    this.counters.element.parentElement.hidden = !rows.length;
  }

  /** Shows the log, and stays at its end if the reader is there. */
  showLog() {
    const { text, problem } = this.log;
    setText(this.logTold, problem || (text ? "" : "The log is empty."));
    this.logText.hidden = !text;
    const box = this.logText;
    const isAtEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 8;
    setText(box, text);
    if (isAtEnd) box.scrollTop = box.scrollHeight;
  }
}

function linkText(link) {
  if (!link) return "has not been lost";
  const lost = span(passed(link.lost_at));
  const why = link.error || link.reason;
  if (link.state === "lost") {
    return `lost for ${lost}, reconnecting (attempt ${link.attempts + 1})${why ? `: ${why}` : ""}`;
  }
  const took = span(Math.max(0, (Date.parse(link.resumed_at) - Date.parse(link.lost_at)) / 1000));
  return `up; lost ${lost} ago, and resumed after ${took} and ${link.attempts} attempts${why ? `: ${why}` : ""}`;
}

/** Returns the memory of an executor, with its limit if it has one. */
function memoryOf({ memory_bytes: used, memory_limit_bytes: limit }) {
  if (used === null) return "-";
  return limit === null ? bytes(used) : `${bytes(used)} of ${bytes(limit)}`;
}

function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = Math.min(units.length - 1, Math.floor(Math.log2(Math.max(1, count)) / 10));
  const value = count / 1024 ** power;
  return `${power && value < 100 ? value.toFixed(1) : Math.round(value)} ${units[power]}`;
}
