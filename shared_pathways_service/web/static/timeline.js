// The view of the timeline: who held which slice when, with losses, moves and preemptions.

import { Legend, paint, stripes } from "./colours.js";
import { Rows, Table, choice, draw, make, setAttribute, setText } from "./dom.js";
import { Pause } from "./polling.js";
import { ask } from "./store.js";
import { addressOf, byName, clock, counted, person, span } from "./words.js";

const MINUTE_S = 60;
const HOUR_S = 3600;
const DAY_S = 24 * HOUR_S;
const RANGES = [
  [2 * MINUTE_S, "2 minutes"], [10 * MINUTE_S, "10 minutes"], [HOUR_S, "1 hour"], [6 * HOUR_S, "6 hours"], [DAY_S, "1 day"],
  [7 * DAY_S, "7 days"], [30 * DAY_S, "30 days"], [90 * DAY_S, "90 days"],
];
// Seconds between two lines of the axis, the first that leaves enough room is taken.
const STEPS = [
  5, 10, 30, MINUTE_S, 2 * MINUTE_S, 5 * MINUTE_S, 10 * MINUTE_S, 30 * MINUTE_S, HOUR_S, 2 * HOUR_S, 6 * HOUR_S,
  12 * HOUR_S, DAY_S, 2 * DAY_S, 7 * DAY_S, 14 * DAY_S, 30 * DAY_S,
];
const STEP_PX = 90;
const DIAMOND = "M0 2l5 6-5 6-5-6z";
const HEAD_PX = 22;
const GROUP_PX = 26;
const ROW_PX = 30;
const LETTER_PX = 7;
// The lane of marks above the bars of a slice, so that no mark covers a name.
const LANE_PX = 9;
// Names of slices take so much at the left at most.
const MOST_LEFT_PX = 130;
const MARKS = [
  ["lost", "lost"], ["moved", "moved"], ["preempted", "preempted"], ["draining", "drained"], ["cordoned", "cordoned"],
];
const REFRESH_MS = 2000;
// The range of the first picture: what goes on may have begun long ago.
const MOST_AT_FIRST_S = 6 * HOUR_S;
// Of more than these the latest are kept: the page would be slow, and the picture a blur.
const MOST_ROWS = 200000;
const MOST_LINES = 500;
// Bars of less are drawn this wide.
const THIN_PX = 1.5;

export class TimelineView {
  constructor(store) {
    this.store = store;
    this.range = HOUR_S;
    // Whether the range was chosen, by the page or a person.
    this.isFitted = false;
    this.end = null; // seconds since the epoch; null: now
    this.filter = "";
    this.forget();
    this.makeTools();
    this.told = make("p", { role: "status", "aria-live": "polite" });
    this.svg = draw("svg", { role: "img" }, stripes());
    this.axis = draw("g");
    const lines = draw("g");
    this.groupsOf = draw("g");
    this.svg.append(this.axis, this.groupsOf, lines);
    this.ticks = new Rows(this.axis, () => draw("g", {}, draw("line"), draw("text", { class: "faint" })), drawTick);
    this.groups = new Rows(this.groupsOf, () => draw("text", { class: "group" }), (element, { text, y }) => {
      setAttribute(element, "y", String(y));
      setText(element, text);
    });
    this.lines = new Rows(lines, () => makeLine(store.colours), (element, line) => this.drawLine(element, line));
    this.legend = new Legend("Colours of holders");
    this.signs = makeSigns();
    this.table = new Table("Holdings in the picture, the latest first", [
      { title: "Slice", text: (row) => row.slice },
      { title: "Type", text: (row) => row.instance_type ?? "" },
      { title: "Tenant", text: (row) => row.tenant, link: (row) => addressOf(row.tenant) },
      { title: "User", text: (row) => row.user ?? "" },
      { title: "Team", text: (row) => row.team ?? "" },
      { title: "From", text: (row) => clock(row.start, true) },
      { title: "Until", text: (row) => (row.going ? "now" : clock(row.end, true)) },
      { title: "For", text: (row) => span(row.end - row.start) },
      { title: "End", text: (row) => row.text ?? "" },
    ]);
    this.cut = make("p", { class: "empty" });
    this.details = make("details", { ontoggle: () => this.show() }, make("summary", {}, "As a table"), this.cut, this.table.element);
    const picture = make("div", { class: "picture" }, this.svg);
    this.elements = [
      this.tools, this.told, make("div", { class: "card" }, picture, this.legend.element, this.signs), this.details,
    ];
    this.isOpen = true;
    this.pause = new Pause();
    this.load();
  }

  makeTools() {
    const ranges = choice("Range", RANGES, (value) => this.zoom(Number(value)));
    this.ranges = ranges.select;
    this.ranges.value = String(this.range);
    const colours = choice("Colour by", [["user", "user"], ["team", "team"]], (by) => { this.store.colours.use(by); this.show(); });
    colours.select.value = this.store.colours.by;
    const search = make("input", {
      type: "search",
      oninput: () => { this.filter = search.value.toLowerCase(); this.show(); },
    });
    const button = (text, act) => make("button", { type: "button", onclick: act }, text);
    this.tools = make(
      "div", { class: "tools" }, ranges.element,
      button("Zoom in", () => this.step(-1)), button("Zoom out", () => this.step(1)),
      button("Earlier", () => this.move(-0.5)), button("Later", () => this.move(0.5)),
      button("Now", () => this.jump(null)), button("Fit", () => this.fit()), colours.element,
      make("label", {}, "Slice, tenant, user or team", search),
    );
  }

  close() {
    this.isOpen = false;
    this.pause.end();
  }

  forget() {
    this.since = Infinity;
    this.last = 0;
    this.seen = -1;
    this.holdings = [];
    this.marks = [];
    this.problem = "";
    // From this time on the picture has all holdings, in seconds since the epoch.
    this.wholeSince = 0;
  }

  get now() {
    return Date.now() / 1000;
  }

  zoom(range) {
    this.isFitted = true;
    this.range = range;
    this.ranges.value = String(range);
    this.show();
    this.pause.end();
  }

  /** Chooses the shortest range that has all that was loaded and what goes on, up to a length in seconds. */
  fit(most = Infinity) {
    const starts = [...this.holdings.map((row) => row.start), ...this.marks.map((mark) => mark.at)];
    for (const slice of this.store.rows.slices.values()) {
      if (slice.tenant) starts.push(Date.parse(slice.held_since ?? slice.since) / 1000);
    }
    this.end = null;
    const age = Math.min(most, starts.length ? this.now - starts.reduce((least, at) => Math.min(least, at)) : 0);
    this.zoom((RANGES.find(([seconds]) => seconds >= age * 1.02) ?? RANGES.at(-1))[0]);
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
    this.isFitted = true;
    this.end = end;
    this.show();
    this.pause.end();
  }

  /** Loads what the picture needs, and then what is new whenever slices have changed. */
  async load() {
    while (this.isOpen) {
      const { sliceChanges: changes, service } = this.store;
      const start = (this.end ?? this.now) - this.range;
      // (A service that was started anew may number its history anew.)
      const isOther = this.of !== service.since;
      if (isOther || start < this.since) {
        this.forget();
        this.since = start;
        this.of = service.since;
      }
      if (this.seen !== changes) await this.loadMore(changes);
      if (!this.isOpen) return;
      if (this.seen === changes && !this.isFitted && this.store.loaded) {
        this.fit(MOST_AT_FIRST_S);
      }
      this.show();
      if (this.since <= (this.end ?? this.now) - this.range) await this.pause.wait(REFRESH_MS);
    }
  }

  async loadMore(changes) {
    try {
      let complete = false;
      while (!complete && this.isOpen) {
        if ((this.end ?? this.now) - this.range < this.since) return;
        const answer = await ask("api/history", { since: this.since, after: this.last });
        this.keep(answer);
        ({ last: this.last, complete } = answer);
      }
      this.seen = changes;
      this.problem = "";
    } catch (error) {
      this.problem = `The history is not known: ${error.message}`;
    }
  }

  /** Keeps newer rows, and the latest of those that are there. */
  keep({ holdings, marks }) {
    this.holdings = this.holdings.concat(holdings);
    this.marks = this.marks.concat(marks).slice(-MOST_ROWS);
    const dropped = this.holdings.splice(0, Math.max(0, this.holdings.length - MOST_ROWS));
    if (dropped.length) this.wholeSince = dropped.at(-1).end;
  }

  /** Returns what there is to say about the picture from a time on. */
  remark(from) {
    if (this.problem || from >= this.wholeSince) return this.problem;
    const days = Math.ceil((this.now - from) / DAY_S);
    return `Holdings that ended before ${clock(this.wholeSince, true)} are not shown, as there are more than ${MOST_ROWS.toLocaleString("en")} since then. `
      + `In a terminal, sps usage --since=${days}d adds up all of them.`;
  }

  show() {
    const to = this.end ?? this.now;
    const from = to - this.range;
    const width = this.svg.parentElement?.clientWidth || 800;
    const left = Math.min(MOST_LEFT_PX, width / 4);
    this.x = (at) => left + ((Math.min(to, Math.max(from, at)) - from) / this.range) * (width - left);
    this.left = left;
    setText(this.told, this.remark(from));
    const lines = this.linesBetween(from, to);
    const groups = this.place(lines);
    const height = this.bottom;
    setAttribute(this.svg, "viewBox", `0 0 ${width} ${height}`);
    setAttribute(this.svg, "height", String(height));
    this.ticks.show(this.ticksBetween(from, to, width, height));
    this.groups.show(groups);
    this.lines.show(lines);
    this.showLegend(lines);
    const bars = [...lines.values()].flatMap((line) => line.bars);
    const count = `${counted(bars.length, "holding")} of ${counted(lines.size, "slice")}`;
    setAttribute(this.svg, "aria-label", `${count} from ${clock(from, true)} to ${clock(to, true)}`);
    if (this.details.open) {
      const rows = bars.sort((a, b) => b.end - a.end).slice(0, MOST_LINES);
      setText(this.cut, bars.length > MOST_LINES ? `The table has the latest ${MOST_LINES} of them.` : "");
      this.table.show(rows.map((row) => [row.key, row]));
    }
  }

  /** Gives each line its place, the slices of a type together; returns the titles of the types. */
  place(lines) {
    const types = Map.groupBy(lines.values(), (line) => line.type);
    const groups = [];
    let y = HEAD_PX;
    for (const [type, members] of [...types].sort(([a], [b]) => byName(a, b))) {
      groups.push([type, { text: `${type || "no longer known"}, ${counted(members.length, "slice")}`, y: y + 17 }]);
      y += GROUP_PX;
      for (const line of members) {
        line.y = y;
        y += ROW_PX;
      }
    }
    this.bottom = y + 4;
    return groups;
  }

  showLegend(lines) {
    const { colours } = this.store;
    const bars = [...lines.values()].flatMap((line) => line.bars);
    const owners = [...new Set(bars.map((bar) => colours.ownerOf(bar)))].sort(byName);
    colours.know(owners);
    this.legend.show(owners.map((owner) => [owner, colours.classOf(owner), owner || `no ${colours.by}`]));
  }

  /** Returns by slice its name, bars and marks in a window, those that match the filter. */
  linesBetween(from, to) {
    const lines = new Map();
    const names = [...this.store.rows.slices.keys()];
    const known = new Set(names);
    const types = new Map();
    for (const row of this.holdings) {
      if (row.end > from) known.add(row.slice);
      types.set(row.slice, row.instance_type ?? "");
    }
    for (const name of [...known].sort(byName)) {
      const type = this.store.rows.slices.get(name)?.instance_type ?? types.get(name) ?? "";
      lines.set(name, { name, type, bars: [], marks: [] });
    }
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
      instance_type: slice.instance_type,
      start, end: Math.max(start, this.now), going: true, text: `holds it: ${person(tenant)}`,
    };
  }

  matches(bar) {
    if (!this.filter) return true;
    return [bar.slice, bar.tenant, bar.user, bar.team].some((word) => word?.toLowerCase().includes(this.filter));
  }

  ticksBetween(from, to, width, height) {
    const room = width - this.left;
    const step = STEPS.find((seconds) => (seconds / this.range) * room >= STEP_PX) ?? STEPS.at(-1);
    const shift = new Date(from * 1000).getTimezoneOffset() * MINUTE_S;
    const ticks = [];
    for (let at = Math.ceil((from - shift) / step) * step + shift; at < to; at += step) {
      const text = step < MINUTE_S ? new Date(at * 1000).toLocaleTimeString() : clock(at, this.range > DAY_S);
      const x = this.x(at);
      // (At the right edge there is no room for the words.)
      ticks.push([at, { x, height, text: x + 3 + LETTER_PX * text.length > width ? "" : text }]);
    }
    return ticks;
  }

  drawLine(element, { name, bars, marks, y }) {
    setAttribute(element, "transform", `translate(0 ${y})`);
    setText(element.firstChild, name);
    element.bars.show(visible(bars.map((bar) => this.placed(bar))).map((bar) => [bar.key, bar]));
    element.marks.show(marks.map((mark) => [`${mark.id}`, { ...mark, x: this.x(mark.at) }]));
  }

  placed(bar) {
    const x = this.x(bar.start);
    return { ...bar, x, width: Math.max(THIN_PX, this.x(bar.end) - x) };
  }
}

/** Leaves out thin bars that would cover the one before. */
function visible(bars) {
  let last = -Infinity;
  return bars.filter(({ x, width, going }) => {
    if (width <= THIN_PX && x < last + THIN_PX && !going) return false;
    last = x;
    return true;
  });
}

/** Returns a legend of the marks, and of what is drawn for a holding that goes on. */
function makeSigns() {
  const sign = (shape, text) => make("li", {}, draw("svg", { width: 14, height: 14, viewBox: "-1 0 14 16", "aria-hidden": "true" }, shape), text);
  const going = draw("rect", { x: 0, y: 3, width: 12, height: 10, rx: 2, class: "own own-none going" });
  return make(
    "ul", { class: "legend picture", "aria-label": "Signs" },
    ...MARKS.map(([mark, text]) => sign(draw("path", { d: DIAMOND, transform: "translate(6 0)", class: `mark ${mark}` }), text)),
    sign(going, "held now"),
  );
}

function makeLine(colours) {
  const [bars, marks] = [draw("g"), draw("g")];
  const element = draw("g", {}, draw("text", { y: LANE_PX + 14 }), bars, marks);
  element.bars = new Rows(bars, makeBar, (bar, row) => drawBar(bar, row, colours));
  element.marks = new Rows(marks, makeMark, drawMark);
  return element;
}

function makeBar(bar) {
  const rect = (kind) => draw("rect", { y: LANE_PX, height: ROW_PX - LANE_PX - 3, rx: 3, class: kind });
  const seen = rect();
  seen.append(draw("title"));
  return draw("g", {}, seen, rect("stripes"), draw("text", { y: LANE_PX + 13, class: "label" }));
}

function drawBar(element, bar, colours) {
  const [rect, over, label] = element.children;
  const owner = colours.ownerOf(bar);
  paint(rect, over, colours, owner, bar.going);
  for (const one of [rect, over]) {
    setAttribute(one, "x", bar.x.toFixed(1));
    setAttribute(one, "width", bar.width.toFixed(1));
  }
  setText(rect.firstChild, `${bar.tenant} ${bar.user ?? ""} ${span(bar.end - bar.start)}: ${bar.text}`);
  setAttribute(label, "class", `label ${colours.classOf(owner)}`);
  setAttribute(label, "x", (bar.x + 5).toFixed(1));
  const room = Math.floor((bar.width - 10) / LETTER_PX);
  setText(label, room >= bar.tenant.length ? bar.tenant : "");
}

function makeMark({ mark, text }) {
  return draw("g", {}, draw("path", { d: DIAMOND, class: `mark ${mark}` }, draw("title", {}, `${mark}: ${text}`)));
}

function drawMark(element, { x }) {
  setAttribute(element, "transform", `translate(${x.toFixed(1)} -3)`);
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
