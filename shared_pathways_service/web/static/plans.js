// Drawn plans of preemptions and reservations: which slices come from which tenants, and when.

import { Rows, draw, make, setAttribute, setText } from "./dom.js";
import { amounts, clock, span, toneOf } from "./words.js";

const ROW_PX = 24;
const HEAD_PX = 20;
const MOST_LEFT_PX = 110;
const LETTER_PX = 7;
// More slices are told, not drawn.
const MOST_DRAWN = 16;
// A picture of less time would move visibly with each second.
const SHORTEST_S = 60;
const DAY_S = 86400;

export class PlansView {
  constructor(store) {
    this.store = store;
    this.list = make("div", { class: "plans" });
    this.element = make("section", { "aria-label": "Plans" }, make("h3", {}, "Planned starts"), this.list);
    this.rows = new Rows(this.list, makePlan, (element, plan) => this.drawPlan(element, plan));
  }

  show() {
    const { plans } = this.store.rows;
    this.element.hidden = !plans.size;
    this.rows.show([...plans].sort(([a], [b]) => orderOf(a) - orderOf(b)));
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
    const known = drawn.map((source) => source.from).filter((at) => at !== null);
    const length = Math.max(SHORTEST_S, ...known.map((at) => (at - now) * 1.3));
    const height = HEAD_PX + ROW_PX * drawn.length;
    const width = element.clientWidth || 600;
    const left = Math.min(MOST_LEFT_PX, width / 4);
    setAttribute(svg, "viewBox", `0 0 ${width} ${height}`);
    const x = (at) => left + Math.min(1, Math.max(0, (at - now) / length)) * (width - left);
    setAttribute(element.begin, "x", String(left));
    setAttribute(element.end, "x", String(width));
    setText(element.end, clock(now + length, length > DAY_S));
    element.bars.show(drawn.map((source, number) => {
      const start = source.from === null ? width : x(source.from);
      const who = plan.tenant ?? plan.reservation;
      return [source.slice, { ...source, left, start, width, y: HEAD_PX + ROW_PX * number, who }];
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

function makePlan() {
  const bars = draw("g");
  const begin = draw("text", { class: "faint", y: 13 }, "now");
  const end = draw("text", { class: "faint", y: 13, "text-anchor": "end" });
  const svg = draw("svg", { role: "img" }, begin, end, bars);
  const list = make("ul");
  const element = make("figure", {}, svg, make("figcaption", {}, make("b"), list));
  Object.assign(element, { begin, end });
  element.bars = new Rows(bars, makeBar, drawBar);
  element.sentences = new Rows(list, () => make("li"), (item, text) => setText(item, text));
  return element;
}

function makeBar() {
  const bar = () => draw("rect", { y: 3, height: ROW_PX - 6, rx: 3 });
  const label = () => draw("text", { class: "label", y: 16 });
  return draw("g", {}, draw("text", { y: 16 }), bar(), label(), bar(), label());
}

/** Draws the holder until the slice is to be had, and who has it from then on. */
function drawBar(element, { slice, holder, how, left, start, width, y, who }) {
  const [name, before, beforeLabel, after, afterLabel] = element.children;
  setAttribute(element, "transform", `translate(0 ${y})`);
  setText(name, fitting(slice, left));
  const holds = holder && how !== "held";
  setAttribute(before, "class", holds ? `tone-${toneOf(holder)}` : "none");
  place(before, beforeLabel, left, start, holds ? holder : "");
  setAttribute(after, "class", how === "held" ? `tone-${toneOf(who)}` : `tone-${toneOf(who)} going`);
  place(after, afterLabel, start, width, who);
}

function place(bar, label, from, to, text) {
  setAttribute(bar, "x", from.toFixed(1));
  setAttribute(bar, "width", Math.max(0, to - from).toFixed(1));
  setAttribute(label, "x", (from + 6).toFixed(1));
  setText(label, fitting(text, to - from));
}

/** Returns a text, cut to a width. */
function fitting(text, width) {
  const room = Math.floor((width - 10) / LETTER_PX);
  if (text.length <= room) return text;
  return room > 2 ? `${text.slice(0, room - 1)}…` : "";
}
