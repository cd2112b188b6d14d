// The view of one connection: its state, slices, link, proxy, counters, decisions and log.

import { choiceFor, profileChoiceFor } from "./actions.js";
import { Chart } from "./charts.js";
import { Facts, Table, card, chip, make, setChip, setText } from "./dom.js";
import { LogBox } from "./log_box.js";
import { Poll, intervalOf } from "./polling.js";
import { ago, amounts, byName, bytes, clock, jobAddressOf, moment, passed, notesOf, person, span, speedOf } from "./words.js";

const MEMORY = "sps_proxy_device_memory_bytes";
/** The distances between the amounts of an axis, in bytes: powers of two, which are round in KiB and GiB. */
const AMOUNTS = Array.from({ length: 52 }, (_, power) => 2 ** power);
// One hour of them.
const MOST_POINTS = 1800;
const MOST_HOLDINGS = 500;

export class ConnectionView {
  constructor(store, actions, name) {
    this.store = store;
    this.name = name;
    this.details = null;
    this.told = make("p", { role: "status", "aria-live": "polite" });
    this.state = chip();
    this.facts = new Facts();
    this.link = new Facts();
    this.slices = new Table("Slices", [
      { title: "Index", text: (row) => String(row.index), kind: "number" },
      { title: "Slice", text: (row) => row.slice_id ?? "" },
      { title: "Type", text: (row) => row.instance_type },
      { title: "State", text: (row) => row.state },
      { title: "Hosts", text: (row) => (store.rows.slices.get(row.slice_id)?.hosts ?? []).join(", ") },
      { title: "Held for", text: (row) => ago(store.rows.slices.get(row.slice_id)?.held_since).replace(" ago", "") },
    ]);
    this.held = new Table("Slices that it held, the latest first", [
      { title: "Slice", text: (row) => row.slice },
      { title: "Type", text: (row) => row.instance_type ?? "" },
      { title: "From", text: (row) => clock(row.start, true) },
      { title: "Until", text: (row) => clock(row.end, true) },
      { title: "For", text: (row) => span(row.end - row.start), kind: "number" },
      { title: "End", text: (row) => row.text },
    ]);
    this.executors = new Table("Executors", [
      { title: "Slice", text: (row) => row.slice },
      { title: "Host", text: (row) => String(row.host), kind: "number" },
      { title: "State", text: (row) => row.state },
      { title: "Memory", text: (row) => memoryOf(row), kind: "number" },
      { title: "CPU", text: (row) => (row.cpu_percent === null ? "-" : `${row.cpu_percent}%`), kind: "number" },
      { title: "CPU time", text: (row) => (row.cpu_seconds === null ? "-" : span(row.cpu_seconds)), kind: "number" },
      { title: "To peers", make: () => chip(), update: (element, row) => setChip(element, speedOf(row), row.slow ? "slow" : "") },
      { title: "Process", text: (row) => String(row.pid ?? "-"), kind: "number" },
    ]);
    this.memory = new Table("Memory of the devices", [
      { title: "Device", text: (row) => row.device, kind: "number" },
      { title: "Held", text: (row) => bytes(row.held), kind: "number" },
      { title: "Limit", text: (row) => (row.limit ? bytes(row.limit) : "none"), kind: "number" },
    ]);
    this.memoryOverTime = [[], []];
    this.memoryPlace = make("div");
    this.counters = new Table("Counters of the proxy", [
      { title: "Counter", text: (row) => row.name },
      { title: "Value", text: (row) => String(row.value), kind: "number" },
    ]);
    this.decisions = new Table("Decisions about it, the latest first", [
      { title: "Time", text: (row) => moment(row.time) },
      { title: "Decision", text: (row) => row.text },
    ]);
    this.countersTold = make("p", { class: "empty" });
    this.log = new LogBox("Log of the proxy", "The log is empty.");
    this.end = make("button", { type: "button", class: "danger", onclick: () => actions.offer(name, [choiceFor(name)]) }, `Delete ${name}`);
    this.profile = make("button", { type: "button", hidden: "", onclick: () => actions.offer(name, [profileChoiceFor(name)]) }, "Profile for 5 s");
    this.mayAct = actions.allowed;
    this.job = make("p", { hidden: "" }, make("a", { href: jobAddressOf(name) }, "The submitted job of this name, with its output"));
    this.memoryCard = card("Memory of the devices over time", this.memoryPlace);
    this.elements = [
      make("p", { class: "subject" }, name, " ", this.state), this.told,
      card("The connection", this.facts.element, this.job, make("div", { class: "buttons" }, this.profile, this.end)),
      this.slices.element, this.executors.element, this.memoryCard, this.decisions.element, this.held.element,
      card("Link between this machine and the proxy", this.link.element),
      card(
        "Proxy", this.countersTold, this.memory.element,
        make("details", {}, make("summary", {}, "All counters"), this.counters.element),
      ),
      card("Log of the proxy", ...this.log.elements),
    ];
    // (Null until the first answer.)
    this.history = null;
    this.holdings = null;
    const poll = (path, parameters, take) => new Poll(path, parameters, intervalOf(store), (answer, problem) => {
      take(answer, problem);
      this.show();
    });
    this.heldPoll = poll("api/history", { tenant: name, since: 0, after: 0 }, (answer) => this.takeHeld(answer));
    this.polls = [
      this.heldPoll,
      poll("api/connection", { name }, (answer, problem) => {
        this.details = answer ?? this.details;
        this.problem = problem;
      }),
      poll("api/log", { name }, (answer, problem) => this.log.show(answer?.lines, problem)),
      poll("api/explain", { tenant: name }, (answer) => {
        this.history = answer?.decisions.toReversed() ?? this.history ?? [];
      }),
      poll("api/jobs", {}, (answer) => {
        if (answer) this.job.hidden = !answer.jobs?.some((job) => job.name === name);
      }),
    ];
  }

  close() {
    for (const poll of this.polls) poll.close();
    this.chart?.close();
  }

  /** Takes holdings that have ended since the last answer. */
  takeHeld(answer) {
    const found = answer?.holdings.toReversed() ?? [];
    this.holdings = [...found, ...this.holdings ?? []].slice(0, MOST_HOLDINGS);
    if (answer) this.heldPoll.set({ ...this.heldPoll.parameters, after: answer.last });
  }

  show() {
    const tenant = this.store.rows.tenants.get(this.name);
    const queued = this.store.rows.queue.get(this.name);
    const [holdings, history] = [this.holdings ?? [], this.history ?? []];
    const isKnown = this.store.loaded && this.holdings !== null && this.history !== null;
    const past = holdings.length || history.length
      ? "It has ended. This is what the history has of it." : "The service has no connection of this name, now or in its history.";
    setText(this.told, this.problem || (tenant || !isKnown ? "" : past));
    if (tenant) setChip(this.state, tenant.state);
    else setChip(this.state, this.store.loaded ? "ended" : "…", "");
    this.end.parentElement.hidden = !this.mayAct || !tenant;
    // (Its proxy's token is on this machine only.)
    this.profile.hidden = !this.details?.own;
    this.facts.show([...this.factsOfState(tenant ?? {}, queued), ...this.factsOfProxy()]);
    this.link.show(this.factsOfLink());
    this.link.element.parentElement.hidden = !this.details?.own;
    this.held.show(holdings.map((row) => [row.id, row]));
    this.held.element.hidden = !holdings.length;
    this.slices.show((tenant?.slices ?? []).map((slice) => [String(slice.index), slice]));
    this.slices.element.hidden = !tenant?.slices.length;
    const executors = [...this.store.rows.executors].filter(([, row]) => row.tenant === this.name);
    this.executors.show(executors.sort(([a], [b]) => byName(a, b)));
    this.executors.element.hidden = !executors.length;
    this.decisions.show(history.map((row, number) => [`${row.time} ${number - history.length}`, row]));
    this.decisions.element.hidden = !history.length;
    this.showCounters();
  }

  factsOfState(tenant, queued) {
    const wait = queued?.expected_wait_s;
    return [
      ["State", tenant.state ?? ""],
      ["Note", tenant.state ? notesOf(tenant) : ""],
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
    if (!own) return [];
    const count = (name) => (agent.value ? String(agent.value[`sps_agent_${name}`] ?? "") : "");
    return [
      ["Session", own.state],
      ["Link", linkText(own.link)],
      ["Connections of the link", count("link_carriers")],
      ["Losses of the link", count("link_losses_total")],
      ["Failed dials", count("link_failed_dials_total")],
      ["Counters of the agent", agent.error ?? ""],
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
    this.showMemory(Object.values(counters[MEMORY] ?? {}));
    const limits = Object.entries(value?.limits ?? {}).map(([name, most]) => [`limit: ${name}`, most ?? "none"]);
    const rows = [...limits, ...Object.entries(counters)].flatMap(([name, found]) =>
      found !== null && typeof found === "object"
        ? Object.entries(found).map(([label, number]) => [`${name} ${label}`, number])
        : [[name, found]]);
    rows.sort(([a], [b]) => byName(a, b));
    this.counters.show(rows.map(([name, number]) => [name, { name, value: number }]));
    this.counters.element.parentElement.hidden = !rows.length;
  }

  /** Draws the memory of all devices since this view was opened. */
  showMemory(held) {
    this.memoryCard.hidden = !held.length;
    if (!held.length || this.details === this.drawn) return;
    this.drawn = this.details;
    const [times, sums] = this.memoryOverTime;
    times.push(Date.now() / 1000);
    sums.push(held.reduce((sum, one) => sum + one, 0));
    if (times.length > MOST_POINTS) for (const line of this.memoryOverTime) line.shift();
    if (!this.chart) {
      this.chart = new Chart("Memory of the devices", (colour) => [{ label: "Held", stroke: colour("--accent"), fill: colour("--accent-back"), width: 2 }], { values: bytes, steps: AMOUNTS });
      this.memoryPlace.replaceChildren(this.chart.element);
    }
    this.chart.show([[...times], [...sums]], `The devices hold ${bytes(sums.at(-1))}.`);
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
