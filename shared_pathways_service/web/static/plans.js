// Drawn plans of preemptions and reservations: which slices come from which tenants, and when.

import { paint, stripes } from "./colours.js";
import { Rows, draw, make, setAttribute, setText } from "./dom.js";
import { amounts, clock, span } from "./words.js";

const ROW_PX = 24;
const HEAD_PX = 20;
const MOST_LEFT_PX = 110;
const LETTER_PX = 7;
// A time of day with its date.
const ROOM_PX = 105;
// More slices are told, not drawn.
const MOST_DRAWN = 16;
// A picture of less time would move visibly with each second.
const SHORTEST_S = 60;
const DAY_S = 86400;

export class PlansView {
  constructor(store) {
    this.store = store;
    this.list = make("div", { class: "plans" });
    this.element = make("section", { class: "card", "aria-label": "Plans" }, make("h3", {}, "Planned starts"), this.list);
    this.rows = new Rows(this.list, () => makePlan(store), (element, plan) => this.drawPlan(element, plan));
  }

  show() {
    const { plans } = this.store.rows;
    this.element.hidden = !plans.size;
    this.rows.show([...plans].sort(([a], [b]) => orderOf(a) - orderOf(b)));
  }

  /** Returns the owners of the colours before and after: the holder, and who gets the slice. */
  ownerOf(plan, source) {
    const { colours, rows } = this.store;
    const reserved = rows.reservations.get(plan.reservation);
    return [
      colours.ownerOf(rows.tenants.get(source.holder)),
      colours.ownerOf(plan.tenant ? rows.tenants.get(plan.tenant) : reserved),
    ];
  }

  drawPlan(element, plan) {
    const [svg, caption] = element.children;
    const now = Date.now() / 1000;
    const sources = plan.sources.map((source) => ({ ...source, from: fromOf(source, plan, now) }));
    const sentences = sentencesOf(plan, sources, now);
    element.sentences.show(sentences.map((text, number) => [number, text]));
    setAttribute(svg, "aria-label", sentences.join(" "));
    setText(caption.firstChild, titleOf(plan, now));
    const drawn = sources.slice(0, MOST_DRAWN);
    // (The begin of a reservation is its own time, whether or not its slices are known.)
    const times = [...drawn.map((source) => source.from), plan.starts && Date.parse(plan.starts) / 1000].filter(Boolean);
    const length = Math.max(SHORTEST_S, ...times.map((at) => (at - now) * 1.3));
    const height = HEAD_PX + ROW_PX * drawn.length;
    const width = element.clientWidth || 600;
    const left = Math.min(MOST_LEFT_PX, width / 4);
    setAttribute(svg, "viewBox", `0 0 ${width} ${height}`);
    const x = (at) => left + Math.min(1, Math.max(0, (at - now) / length)) * (width - left);
    setAttribute(element.begin, "x", String(left));
    setAttribute(element.end, "x", String(width));
    setText(element.end, clock(now + length, length > DAY_S));
    const starts = plan.starts ? Date.parse(plan.starts) / 1000 : now;
    const isAhead = starts > now;
    element.start.style.display = isAhead ? "" : "none";
    for (const [name, value] of [["x1", x(starts)], ["x2", x(starts)], ["y1", HEAD_PX - 4], ["y2", height]]) setAttribute(element.start, name, value.toFixed(1));
    // (Two times of day do not fit beside each other.)
    element.end.style.display = isAhead && width - x(starts) < 2 * ROOM_PX ? "none" : "";
    setText(element.startText, isAhead ? clock(starts, starts - now > DAY_S) : "");
    setAttribute(element.startText, "x", (x(starts) + 3).toFixed(1));
    element.bars.show(drawn.map((source, number) => {
      const start = source.from === null ? width : x(source.from);
      const who = plan.tenant ?? plan.reservation;
      return [source.slice, { ...source, left, start, width, y: HEAD_PX + ROW_PX * number, who, own: this.ownerOf(plan, source) }];
    }));
  }
}

function orderOf(id) {
  return id.startsWith("tenant ") ? 0 : 1;
}

/** Returns when a slice is to be had, in seconds since the epoch; null: it is not known. */
function fromOf({ how, at }, plan, now) {
  if (how === "unknown") return null;
  const start = plan.starts ? Date.parse(plan.starts) / 1000 : now;
  return Math.max(now, start, at ? Date.parse(at) / 1000 : now);
}

function titleOf(plan, now) {
  if (plan.tenant) return `${plan.tenant} is about to start with ${amounts(plan.wants)}`;
  const start = Date.parse(plan.starts) / 1000;
  const when = start > now ? `from ${clock(start, start - now > DAY_S)}` : "since its start";
  return `Reservation ${plan.reservation} has ${amounts(plan.wants)} ${when}`;
}

/** Returns the plan in words: the text alternative of the picture. */
function sentencesOf(plan, sources, now) {
  const wait = (at) => (at > now ? `in ${span(Math.round(at - now))}` : "now");
  const words = {
    kept: ({ slice }) => `${slice} is free and kept for it.`,
    preempted: ({ slice, holder, from }) => `${slice} comes from ${holder}, which is preempted ${wait(from)}.`,
    held: ({ slice, holder }) => `${slice} is held by its tenant ${holder}.`,
    free: ({ slice, from }) => `${slice} is free, and its own ${wait(from)}.`,
    ends: ({ slice, holder, at }) => `${slice} comes from ${holder}, whose stated lifetime ends ${wait(Date.parse(at) / 1000)}.`,
    unknown: ({ slice, holder }) => `${slice} comes from ${holder} when that ends, which is not known.`,
  };
  const told = sources.slice(0, MOST_DRAWN).map((source) => words[source.how](source));
  if (sources.length > MOST_DRAWN) told.push(`${sources.length - MOST_DRAWN} more slices are planned.`);
  if (plan.missing) told.push(`For ${plan.missing} more no slice is known.`);
  return told;
}

function makePlan(store) {
  const bars = draw("g");
  const begin = draw("text", { class: "faint", y: 13 }, "now");
  const end = draw("text", { class: "faint", y: 13, "text-anchor": "end" });
  const [start, startText] = [draw("line"), draw("text", { class: "faint", y: 13 })];
  const svg = draw("svg", { role: "img" }, stripes(), begin, end, start, startText, bars);
  const list = make("ul");
  const element = make("figure", { class: "picture" }, svg, make("figcaption", {}, make("b"), list));
  Object.assign(element, { begin, end, start, startText });
  element.bars = new Rows(bars, makeBar, (bar, row) => drawBar(bar, row, store.colours));
  element.sentences = new Rows(list, () => make("li"), (item, text) => setText(item, text));
  return element;
}

function makeBar() {
  const part = () => draw("g", {}, bar(), bar("stripes"), draw("text", { class: "label", y: 16 }));
  const bar = (kind) => draw("rect", { y: 3, height: ROW_PX - 6, rx: 3, class: kind });
  return draw("g", {}, draw("text", { y: 16 }), part(), part());
}

/** Draws the holder until the slice is to be had, and who has it from then on. */
function drawBar(element, { slice, holder, how, left, start, width, y, who, own }, colours) {
  const [name, before, after] = element.children;
  setAttribute(element, "transform", `translate(0 ${y})`);
  setText(name, fitting(slice, left));
  const holds = holder && how !== "held";
  before.style.display = holds ? "" : "none";
  place(before, colours, own[0], false, left, start, holds ? holder : "");
  place(after, colours, own[1], how !== "held", start, width, who);
}

function place(element, colours, owner, going, from, to, text) {
  const [bar, over, label] = element.children;
  paint(bar, over, colours, owner, going);
  for (const one of [bar, over]) {
    setAttribute(one, "x", from.toFixed(1));
    setAttribute(one, "width", Math.max(0, to - from).toFixed(1));
  }
  setAttribute(label, "class", `label ${colours.classOf(owner)}`);
  setAttribute(label, "x", (from + 6).toFixed(1));
  setText(label, fitting(text, to - from));
}

/** Returns a text, cut to a width. */
function fitting(text, width) {
  const room = Math.floor((width - 10) / LETTER_PX);
  if (text.length <= room) return text;
  return room > 2 ? `${text.slice(0, room - 1)}…` : "";
}
