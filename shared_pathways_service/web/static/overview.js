// The first view: what the service does now, in figures that lead to the other views.

import { Sparkline } from "./charts.js";
import { Legend } from "./colours.js";
import { Rows, Shares, card, make, setAttribute, setText } from "./dom.js";
import { PARTS, byType, kindsOf } from "./kinds.js";
import { Poll, intervalOf } from "./polling.js";
import { addressOf, age, ago, amounts, byName, bytes, counted, passed, percent, span } from "./words.js";

const HOUR_S = 3600;
const DAY_MS = 86400000;
const PARTS_OF_HOUR = 60;
const EVENTS = 12;
const MOST_NEXT = 5;
const LEGEND = [["held", "held"], ["free", "free"], ["spare", "spare"], ["off", "out of service"], ["lost", "lost"]];

/** A figure with its name, and more words below; it leads to a view. */
class Figure {
  constructor(name, address, ...more) {
    this.value = make("span", { class: "value" });
    this.more = make("span", { class: "more" });
    this.element = make(
      address ? "a" : "div", { class: "card figure", href: address },
      make("span", { class: "name" }, name), this.value, this.more, ...more,
    );
  }

  show(value, more, isAlarm = false) {
    setText(this.value, value);
    setText(this.more, more);
    setAttribute(this.element, "class", `card figure${isAlarm ? " alarm" : ""}`);
  }
}

export class OverviewView {
  constructor(store) {
    this.store = store;
    this.hour = null;
    this.jobs = null;
    this.spark = new Sparkline("Share of held slices lately");
    this.used = new Figure("Slices in use", "#slices", this.spark.element);
    this.queue = new Figure("Waiting", "#tenants");
    this.work = new Figure("Running jobs", "#jobs");
    this.broken = new Figure("Out of service", "#slices");
    this.load = new Figure("Memory and disk", null);
    this.types = make("div", { class: "types" });
    this.typeRows = new Rows(this.types, makeType, showType);
    const legend = new Legend("Kinds of slices");
    legend.show(LEGEND.map(([part, text]) => [part, `kind-${part}`, text]));
    this.next = make("ul", { class: "events" });
    this.nextRows = new Rows(this.next, () => make("li", {}, make("time"), make("span", {}, make("a"), " ", make("span"))), (element, { when, tenant, text }) => {
      setText(element.firstChild, when);
      const [name, words] = element.lastChild.children;
      setText(name, tenant);
      setAttribute(name, "href", addressOf(tenant));
      setText(words, text);
    });
    this.nobody = make("p", { class: "empty" });
    this.events = make("ul", { class: "events" });
    this.eventRows = new Rows(this.events, makeEvent, (element) => setText(element.firstChild, ago(element.moment)));
    this.eventsTold = make("p", { class: "empty", role: "status" });
    this.empty = make("p", { class: "empty" });
    this.elements = [
      make("div", { class: "cards-grid" }, this.used.element, this.queue.element, this.work.element, this.broken.element, this.load.element),
      make(
        "div", { class: "halves" },
        card("Slices by type", this.types, legend.element, this.empty),
        card("Next in the queue", this.nobody, this.next),
      ),
      card("Last decisions of the service", this.eventsTold, this.events),
    ];
    this.hourPoll = new Poll("api/held-over-time", this.windowOf(), () => 10000, (answer) => {
      this.hour = answer ?? this.hour;
      this.hourPoll.set(this.windowOf());
      this.show();
    });
    this.polls = [
      this.hourPoll,
      new Poll("api/decisions", {}, () => 2000, (answer, problem) => this.takeDecisions(answer, problem)),
      new Poll("api/jobs", {}, intervalOf(store), (answer, problem) => {
        this.jobs = answer?.jobs ?? this.jobs;
        this.jobsProblem = problem;
        this.show();
      }),
      new Poll("api/load", {}, () => 5000, (answer) => this.takeLoad(answer ?? {})),
    ];
    this.load.element.hidden = true;
  }

  close() {
    for (const poll of this.polls) poll.close();
  }

  /** Returns the window of the curve: the last hour, or what there was of it. */
  windowOf() {
    const age = this.store.service.since ? passed(this.store.service.since) : HOUR_S;
    return { by: "instance_type", window_s: Math.min(HOUR_S, Math.max(60, age)), parts: PARTS_OF_HOUR };
  }

  show() {
    const slices = [...this.store.rows.slices.values()].sort((a, b) => byName(a.id, b.id));
    const kinds = kindsOf(slices, this.store.service.spares ?? 0);
    this.showUse(slices, kinds);
    this.showTypes(slices, kinds);
    this.showQueue();
    this.showJobs();
    for (const element of this.events.children) setText(element.firstChild, ago(element.moment));
  }

  showUse(slices, kinds) {
    const count = (...names) => slices.filter((slice) => names.includes(kinds.get(slice.id))).length;
    const held = slices.filter((slice) => slice.tenant).length;
    const values = this.hour && slices.length ? sumOf(this.hour.series).map((value) => value / slices.length) : [];
    const mean = values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null;
    const lately = mean === null ? "" : `, ${percent(mean)} ${this.hour.until - this.hour.since < HOUR_S ? "since its start" : "in the last hour"}`;
    this.used.show(slices.length ? percent(held / slices.length) : "–", slices.length ? `${held} of ${slices.length}${lately}` : "no slices");
    this.spark.show(values);
    const [lost, off] = [count("lost"), count("cordoned", "draining", "starting")];
    const words = [lost ? `${lost} lost` : "", off ? `${off} cordoned, draining or starting` : ""].filter(Boolean);
    this.broken.show(String(lost + off), words.join(", ") || "every slice is in service", lost > 0);
  }

  showTypes(slices, kinds) {
    const types = [...byType(slices)].sort(([a], [b]) => byName(a, b));
    this.typeRows.show(types.map(([type, members]) => [type, { type, members, kinds }]));
    setText(this.empty, types.length || !this.store.loaded ? "" : "The service has no slices.");
  }

  showQueue() {
    const wait = (row) => row.expected_wait_s ?? Infinity;
    const order = (a, b) => (wait(a) === wait(b) ? a.position - b.position || byName(a.tenant, b.tenant) : wait(a) - wait(b));
    const queue = [...this.store.rows.queue.values()].sort(order);
    const waits = queue.map((row) => this.store.rows.tenants.get(row.tenant)?.since).filter(Boolean).map(passed);
    this.queue.show(String(queue.length), waits.length ? `longest for ${age(Math.max(...waits))}` : "the queue is empty");
    this.nextRows.show(queue.slice(0, MOST_NEXT).map((row) => [row.tenant, {
      tenant: row.tenant,
      when: row.expected_wait_s === null || row.expected_wait_s === undefined ? "not known" : `in about ${age(row.expected_wait_s)}`,
      text: `gets ${amounts(row.wants)}`,
    }]));
    const more = queue.length > MOST_NEXT ? `${queue.length - MOST_NEXT} more wait behind these.` : "";
    setText(this.nobody, queue.length ? more : this.store.loaded ? "The queue is empty: a new connection starts at once if a slice of its type is free." : "");
  }

  showJobs() {
    this.work.element.hidden = !this.jobs && !this.jobsProblem;
    if (this.jobsProblem) this.work.show("–", "not known");
    if (!this.jobs || this.jobsProblem) return;
    const count = (state, since = 0) => this.jobs.filter((job) => job.state === state && (!since || !job.ended || Date.parse(job.ended) > since)).length;
    const failed = count("failed", Date.now() - DAY_MS) + count("lost", Date.now() - DAY_MS);
    const words = [count("queued") && `${count("queued")} queued`, count("retrying") && `${count("retrying")} retrying`, failed && `${failed} failed in 24 h`];
    this.work.show(String(count("running")), words.filter(Boolean).join(", ") || "none failed in 24 h", failed > 0);
  }

  takeDecisions(answer, problem) {
    setText(this.eventsTold, problem ? `They are not known: ${problem}` : answer.decisions.length ? "" : "There are none of the last 14 days.");
    if (answer) this.eventRows.show(answer.decisions.slice(0, EVENTS).map((one) => [`${one.sequence} ${one.time}`, one]));
  }

  takeLoad({ memory, disk }) {
    this.load.element.hidden = !memory && !disk;
    const free = disk ? `disk: ${bytes(disk.free_bytes)} of ${bytes(disk.total_bytes)} free` : "";
    const isFull = disk && disk.free_bytes < disk.total_bytes / 50;
    this.load.show(memory ? bytes(memory.used_bytes) : "–", [memory ? `of ${bytes(memory.total_bytes)}` : "", free].filter(Boolean).join(", "), isFull);
  }
}

function sumOf(series) {
  const all = Object.values(series);
  return Array.from({ length: PARTS_OF_HOUR }, (_, at) => all.reduce((sum, values) => sum + values[at], 0));
}

function makeEvent({ time, tenant, slice, text }) {
  const words = make("span", {}, text);
  if (tenant) words.append(" ", make("a", { href: addressOf(tenant), "aria-label": `Page of ${tenant}` }, "details"));
  const element = make("li", {}, make("time", { datetime: time, title: new Date(time).toLocaleString() }), words);
  element.moment = time;
  return element;
}

function makeType(row) {
  const bar = new Shares(row.type, "tall");
  const element = make("div", {}, make("p", { class: "head" }, make("b", {}, row.type), make("span")), bar.element);
  element.bar = bar;
  return element;
}

function showType(element, { type, members, kinds }) {
  const count = (part) => members.filter((slice) => PARTS[kinds.get(slice.id)] === part).length;
  const parts = LEGEND.map(([part, text]) => [part, `kind-${part}`, count(part), `${count(part)} ${text}`]);
  const words = parts.filter(([, , number]) => number).map(([, , , text]) => text).join(", ");
  setText(element.firstChild.lastChild, words);
  element.bar.show(parts, `${type}: ${words} of ${counted(members.length, "slice")}`);
}

