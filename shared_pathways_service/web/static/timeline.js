// The view of the timeline: who held which slice when, with losses, moves and preemptions.

import { Rows, Table, choice, draw, make, setAttribute, setText } from "./dom.js";
import { ask } from "./store.js";
import { byName, clock, person, span, toneOf } from "./words.js";

const MINUTE_S = 60;
const HOUR_S = 3600;
const DAY_S = 24 * HOUR_S;
const RANGES = [
  [2 * MINUTE_S, "2 minutes"], [10 * MINUTE_S, "10 minutes"], [HOUR_S, "1 hour"], [6 * HOUR_S, "6 hours"], [DAY_S, "1 day"],
  [7 * DAY_S, "7 days"], [30 * DAY_S, "30 days"], [90 * DAY_S, "90 days"],
];
// Seconds between two lines of the axis, the first that leaves enough room is taken.
const STEPS = [
  MINUTE_S, 2 * MINUTE_S, 5 * MINUTE_S, 10 * MINUTE_S, 30 * MINUTE_S, HOUR_S, 2 * HOUR_S, 6 * HOUR_S,
  12 * HOUR_S, DAY_S, 2 * DAY_S, 7 * DAY_S, 14 * DAY_S, 30 * DAY_S,
];
const STEP_PX = 90;
const HEAD_PX = 22;
const ROW_PX = 22;
const LETTER_PX = 7;
const REFRESH_MS = 2000;
// Beyond these the page would be slow, and the picture a blur.
const MOST_ROWS = 200000;
const MOST_LINES = 500;

export class TimelineView {
  constructor(store) {
    this.store = store;
    this.range = HOUR_S;
    this.end = null; // seconds since the epoch; null: now
    this.filter = "";
    this.forget();
    this.makeTools();
    this.told = make("p", { role: "status", "aria-live": "polite" });
    this.svg = draw("svg", { role: "img" });
    this.axis = draw("g");
    const lines = draw("g");
    this.svg.append(this.axis, lines);
    this.ticks = new Rows(this.axis, () => draw("g", {}, draw("line"), draw("text", { class: "faint" })), drawTick);
    this.lines = new Rows(lines, () => makeLine(), (element, line) => this.drawLine(element, line));
    this.table = new Table("Holdings in the picture, the latest first", [
      ["Slice", (row) => row.slice],
      ["Tenant", (row) => row.tenant],
      ["User", (row) => row.user ?? ""],
      ["From", (row) => clock(row.start, true)],
      ["Until", (row) => (row.going ? "now" : clock(row.end, true))],
      ["For", (row) => span(row.end - row.start)],
      ["End", (row) => row.text ?? ""],
    ]);
    this.details = make("details", { ontoggle: () => this.show() }, make("summary", {}, "As a table"), this.table.element);
    const picture = make("div", { class: "timeline" }, this.svg);
    this.elements = [
      this.tools, this.told,
      make("p", { class: "empty" }, "Diamonds mark losses, moves, preemptions, drains and cordons; a dashed bar goes on."),
      picture, this.details,
    ];
    this.isOpen = true;
    this.load();
  }

  makeTools() {
    const ranges = choice("Range", RANGES, (value) => this.zoom(Number(value)));
    this.ranges = ranges.select;
    this.ranges.value = String(this.range);
    const search = make("input", {
      type: "search",
      oninput: () => { this.filter = search.value.toLowerCase(); this.show(); },
    });
    const button = (text, act) => make("button", { type: "button", onclick: act }, text);
    this.tools = make(
      "div", { class: "tools" }, ranges.element,
      button("Zoom in", () => this.step(-1)), button("Zoom out", () => this.step(1)),
      button("Earlier", () => this.move(-0.5)), button("Later", () => this.move(0.5)),
      button("Now", () => this.jump(null)),
      make("label", {}, "Slice, tenant, user or team", search),
    );
  }

  close() {
    this.isOpen = false;
  }

  forget() {
    this.since = Infinity;
    this.last = 0;
    this.seen = -1;
    this.holdings = [];
    this.marks = [];
  }

  get now() {
    return Date.now() / 1000;
  }

  zoom(range) {
    this.range = range;
    this.ranges.value = String(range);
    this.seen = -1;
    this.show();
  }

  step(by) {
    const at = RANGES.findIndex(([seconds]) => seconds === this.range);
    this.zoom(RANGES[Math.min(RANGES.length - 1, Math.max(0, at + by))][0]);
  }

  move(part) {
    const end = (this.end ?? this.now) + part * this.range;
    this.jump(end < this.now ? end : null);
  }

  jump(end) {
    this.end = end;
    this.seen = -1;
    this.show();
  }

  /** Loads what the picture needs, and then what is new whenever slices have changed. */
  async load() {
    while (this.isOpen) {
      const changes = this.store.sliceChanges;
      const start = (this.end ?? this.now) - this.range;
      if (this.seen !== changes && this.holdings.length < MOST_ROWS) {
        if (start < this.since) {
          this.forget();
          this.since = start;
        }
        try {
          await this.loadMore(changes);
        } catch (error) {
          setText(this.told, `The history is not known: ${error.message}`);
        }
        if (this.isOpen) this.show();
      }
      await new Promise((wake) => setTimeout(wake, this.seen === -1 ? 100 : REFRESH_MS));
    }
  }

  async loadMore(changes) {
    const since = this.since;
    let complete = false;
    while (!complete && this.isOpen && since === this.since && this.holdings.length < MOST_ROWS) {
      const answer = await ask("/api/history", { since, after: this.last });
      this.holdings.push(...answer.holdings);
      this.marks.push(...answer.marks);
      ({ last: this.last, complete } = answer);
    }
    this.seen = changes;
    const many = this.holdings.length >= MOST_ROWS;
    setText(this.told, many ? "There are more holdings than the picture shows: choose a shorter range." : "");
  }

  show() {
    const to = this.end ?? this.now;
    const from = to - this.range;
    const width = this.svg.parentElement?.clientWidth || 800;
    const left = Math.min(130, width / 4);
    this.x = (at) => left + ((Math.min(to, Math.max(from, at)) - from) / this.range) * (width - left);
    const lines = this.linesBetween(from, to);
    const height = HEAD_PX + ROW_PX * lines.size;
    setAttribute(this.svg, "viewBox", `0 0 ${width} ${height}`);
    setAttribute(this.svg, "height", String(height));
    this.ticks.show(this.ticksBetween(from, to, width - left, height));
    let y = HEAD_PX;
    for (const line of lines.values()) {
      line.y = y;
      y += ROW_PX;
    }
    this.lines.show(lines);
    const bars = [...lines.values()].flatMap((line) => line.bars);
    const count = `${bars.length} holdings of ${lines.size} slices`;
    setAttribute(this.svg, "aria-label", `${count} from ${clock(from, true)} to ${clock(to, true)}`);
    if (this.details.open) {
      const rows = bars.sort((a, b) => b.end - a.end).slice(0, MOST_LINES);
      this.table.show(rows.map((row) => [row.key, row]));
    }
  }

  /** Returns by slice its name, bars and marks in a window, those that match the filter. */
  linesBetween(from, to) {
    const lines = new Map();
    const names = [...this.store.rows.slices.keys()];
    const known = new Set(names);
    for (const row of this.holdings) if (row.end > from) known.add(row.slice);
    for (const name of [...known].sort(byName)) lines.set(name, { name, bars: [], marks: [] });
    const add = (bar) => {
      if (bar.end > from && bar.start < to && this.matches(bar)) lines.get(bar.slice)?.bars.push(bar);
    };
    for (const row of this.holdings) add({ ...row, key: String(row.id) });
    for (const slice of this.store.rows.slices.values()) if (slice.tenant) add(this.goingOn(slice));
    for (const mark of this.marks) {
      if (mark.at > from && mark.at < to) lines.get(mark.slice)?.marks.push(mark);
    }
    if (this.filter) {
      for (const [name, line] of lines) {
        if (!line.bars.length && !name.toLowerCase().includes(this.filter)) lines.delete(name);
      }
    }
    return lines;
  }

  goingOn(slice) {
    const tenant = this.store.rows.tenants.get(slice.tenant) ?? {};
    const start = Date.parse(slice.held_since ?? slice.since) / 1000;
    return {
      key: `now ${slice.id} ${slice.tenant}`, slice: slice.id, tenant: slice.tenant, user: tenant.user, team: tenant.team,
      start, end: Math.max(start, this.now), going: true, text: `holds it: ${person(tenant)}`,
    };
  }

  matches(bar) {
    if (!this.filter) return true;
    return [bar.slice, bar.tenant, bar.user, bar.team].some((word) => word?.toLowerCase().includes(this.filter));
  }

  ticksBetween(from, to, width, height) {
    const step = STEPS.find((seconds) => (seconds / this.range) * width >= STEP_PX) ?? STEPS.at(-1);
    const shift = new Date(from * 1000).getTimezoneOffset() * MINUTE_S;
    const ticks = [];
    for (let at = Math.ceil((from - shift) / step) * step + shift; at < to; at += step) {
      ticks.push([at, { x: this.x(at), height, text: clock(at, this.range > DAY_S) }]);
    }
    return ticks;
  }

  drawLine(element, { name, bars, marks, y }) {
    setAttribute(element, "transform", `translate(0 ${y})`);
    setText(element.firstChild, name);
    element.bars.show(bars.map((bar) => [bar.key, this.placed(bar)]));
    element.marks.show(marks.map((mark) => [`${mark.id}`, { ...mark, x: this.x(mark.at) }]));
  }

  placed(bar) {
    const x = this.x(bar.start);
    return { ...bar, x, width: Math.max(1.5, this.x(bar.end) - x) };
  }
}

function makeLine() {
  const [bars, marks] = [draw("g"), draw("g")];
  const element = draw("g", {}, draw("text", { y: 15 }), bars, marks);
  element.bars = new Rows(bars, makeBar, drawBar);
  element.marks = new Rows(marks, makeMark, drawMark);
  return element;
}

function makeBar(bar) {
  const kind = `tone-${toneOf(bar.user ?? bar.tenant)}${bar.going ? " going" : ""}`;
  const label = draw("text", { y: 15, class: "label" });
  return draw("g", {}, draw("rect", { y: 2, height: ROW_PX - 4, rx: 3, class: kind }, draw("title")), label);
}

function drawBar(element, bar) {
  const [rect, label] = element.children;
  setAttribute(rect, "x", bar.x.toFixed(1));
  setAttribute(rect, "width", bar.width.toFixed(1));
  setText(rect.firstChild, `${bar.tenant} ${bar.user ?? ""} ${span(bar.end - bar.start)}: ${bar.text}`);
  setAttribute(label, "x", (bar.x + 5).toFixed(1));
  const room = Math.floor((bar.width - 10) / LETTER_PX);
  setText(label, room >= bar.tenant.length ? bar.tenant : "");
}

function makeMark({ mark, text }) {
  const shape = draw("path", { d: "M0 4l6 7-6 7-6-7z", class: `mark ${mark}` }, draw("title", {}, `${mark}: ${text}`));
  return draw("g", {}, shape);
}

function drawMark(element, { x }) {
  setAttribute(element, "transform", `translate(${x.toFixed(1)} 0)`);
}

function drawTick(element, { x, height, text }) {
  const [line, label] = element.children;
  for (const [name, value] of [["x1", x], ["x2", x], ["y1", HEAD_PX - 6], ["y2", height]]) {
    setAttribute(line, name, String(Math.round(value)));
  }
  setAttribute(label, "x", String(Math.round(x + 3)));
  setAttribute(label, "y", "12");
  setText(label, text);
}
