// The view of an elastic training run: goodput, loss, slices over time, repairs and lost slices.

import { Rows, Table, choice, draw, make, setAttribute, setText } from "./dom.js";
import { ask } from "./store.js";
import { span } from "./words.js";

const REFRESH_MS = 2000;
const LEFT = 60;
const LOSS_PX = 200;
const SLICES_PX = 70;
const MARKS_PX = 18;
const GAP_PX = 8;
const SHARE = (part, whole) => (whole ? part / whole : 0);

export class RunView {
  constructor(store, actions, run) {
    this.store = store;
    this.run = run;
    this.report = null;
    this.problem = "";
    this.place = make("div", { class: "tools" });
    this.told = make("p", { role: "status", "aria-live": "polite" });
    this.facts = make("dl", { class: "facts" });
    this.factRows = new Rows(this.facts, () => make("div", {}, make("dt"), make("dd")), (element, [title, text]) => {
      setText(element.firstChild, title);
      setText(element.lastChild, text);
    });
    this.makePicture();
    this.times = new Table("How the time was spent", [
      ["For", (row) => row.name],
      ["Time", (row) => span(row.seconds), "number"],
      ["Of the run", (row) => percent(row.share), "number"],
    ], {
      title: "Share",
      make: (row, key) => make("meter", { min: 0, max: 1, "aria-label": `Share of ${key}` }),
      update: (meter, row) => { if (meter.value !== row.share) meter.value = row.share; },
    });
    this.repairs = new Table("Repairs by cause", [
      ["Cause", (row) => row.cause],
      ["Count", (row) => String(row.count), "number"],
      ["Mean", (row) => span(row.mean_s), "number"],
      ["Median", (row) => span(row.median_s), "number"],
      ["Longest", (row) => span(row.max_s), "number"],
    ]);
    this.incidents = new Table("Interruptions, the latest first", [
      ["After", (row) => span(row.at_s)],
      ["Cause", (row) => row.cause.replaceAll("_", " ")],
      ["Slices", (row) => row.slices.join(", ")],
      ["Repaired in", (row) => (row.repair_s === null ? "not repaired" : span(row.repair_s)), "number"],
      ["Steps lost", (row) => String(row.lost_steps), "number"],
    ]);
    this.losses = new Table("Lost slices", [
      ["Slice", (row) => row.slice],
      ["Lost", (row) => `${row.count} x`, "number"],
    ]);
    this.points = new Table("Loss", [
      ["Step", (row) => String(row.step)],
      ["After", (row) => span(row.at)],
      ["Loss", (row) => number(row.loss), "number"],
    ]);
    this.table = make("details", { ontoggle: () => this.show() }, make("summary", {}, "Loss as a table"), this.points.element);
    this.parts = make(
      "div", {}, this.facts, this.figure, this.table, this.times.element, this.repairs.element,
      this.incidents.element, this.losses.element,
    );
    this.elements = [this.place, this.told, this.parts];
    this.isOpen = true;
    this.load();
  }

  close() {
    this.isOpen = false;
  }

  makePicture() {
    this.curve = draw("polyline", { class: "curve" });
    this.steps = draw("path", { class: "held-steps" });
    this.marks = draw("g");
    this.words = draw("g");
    this.svg = draw("svg", { role: "img" }, this.steps, this.curve, this.marks, this.words);
    this.markRows = new Rows(
      this.marks, () => draw("path", { d: "M0 3l6 6-6 6-6-6z" }, draw("title")),
      (element, { x, y, sight, text }) => {
        setAttribute(element, "class", `mark ${sight}`);
        setAttribute(element, "transform", `translate(${x.toFixed(1)} ${y})`);
        setText(element.firstChild, text);
      });
    this.wordRows = new Rows(this.words, () => draw("text", { class: "faint" }), (element, { x, y, text, anchor }) => {
      setAttribute(element, "x", String(x));
      setAttribute(element, "y", String(y));
      setAttribute(element, "text-anchor", anchor);
      setText(element, text);
    });
    this.figure = make(
      "figure", { class: "timeline run" }, this.svg,
      make("figcaption", { class: "empty" }, "Above: the loss. Below: the number of training slices, and events of the run."),
    );
  }

  /** Reads the report again and again, until the view is closed. */
  async load() {
    while (this.isOpen) {
      try {
        await this.loadOnce();
        this.problem = "";
      } catch (error) {
        this.problem = error.message;
      }
      if (!this.isOpen) return;
      this.show();
      await new Promise((wake) => setTimeout(wake, REFRESH_MS));
    }
  }

  async loadOnce() {
    if (!this.select) {
      const { runs } = await ask("/api/runs", {});
      if (!runs.length) throw new Error("No run is shown: name its directory with sps ui --run.");
      if (!runs.includes(this.run)) [this.run] = runs;
      const chosen = choice("Run", runs.map((run) => [run, run]), (run) => { location.hash = `run/${encodeURIComponent(run)}`; });
      this.select = chosen.select;
      this.select.value = this.run;
      this.place.append(chosen.element);
    }
    const answer = await ask("/api/run", { run: this.run, seen: this.report?.version ?? "" });
    if (answer.began) this.report = answer;
  }

  show() {
    setText(this.told, this.problem);
    this.parts.hidden = !this.report;
    if (!this.report) return;
    const { report } = this;
    this.factRows.show(factsOf(report).filter(([, text]) => text).map((fact) => [fact[0], fact]));
    const times = Object.entries({ goodput: report.good_s, ...report.badput_s }).filter(([name, s]) => s || name === "goodput");
    this.times.show(times.map(([name, seconds]) => [name, { name: name.replaceAll("_", " "), seconds, share: SHARE(seconds, report.wall_s) }]));
    this.repairs.show(Object.entries(report.mttr).map(([cause, row]) => [cause, { cause: cause.replaceAll("_", " "), ...row }]));
    this.incidents.show(report.incidents.map((row, at) => [at, row]).reverse());
    this.losses.show(Object.entries(report.slice_losses).map(([slice, count]) => [slice, { slice, count }]));
    for (const table of [this.repairs, this.incidents, this.losses]) table.element.hidden = !table.body.firstChild;
    this.table.hidden = !report.losses.length;
    if (this.table.open) this.points.show(report.losses.map((point) => [point.step, point]));
    this.drawPicture(report);
  }

  drawPicture({ losses, marks, slice_counts: counts, wall_s: wall }) {
    const width = this.figure.clientWidth || 800;
    const x = (at) => LEFT + SHARE(at, wall) * (width - LEFT - 10);
    const sights = [...new Set(marks.map((mark) => mark.sight))];
    const curve = losses.length ? LOSS_PX : 0;
    const top = curve + GAP_PX;
    const height = top + SLICES_PX + GAP_PX + MARKS_PX * sights.length + 18;
    setAttribute(this.svg, "viewBox", `0 0 ${width} ${height}`);
    setAttribute(this.svg, "height", String(height));
    const words = [];
    const say = (at, y, text, anchor = "end") => words.push([`${at} ${y}`, { x: at, y, text, anchor }]);
    if (losses.length) this.drawLosses(losses, x, say);
    else setAttribute(this.curve, "points", "");
    const most = Math.max(1, ...counts.map(({ count }) => count));
    const level = (count) => top + SLICES_PX * (1 - count / most);
    const path = counts.map(({ at, count }, n) => `${n ? "H" : "M"}${x(at).toFixed(1)}${n ? "" : ` ${top + SLICES_PX}`}V${level(count).toFixed(1)}`);
    setAttribute(this.steps, "d", `${path.join("")}H${x(wall).toFixed(1)}V${top + SLICES_PX}Z`);
    say(LEFT - 6, top + 12, `${most} slices`);
    say(LEFT - 6, top + SLICES_PX, "0");
    const rowOf = (sight) => top + SLICES_PX + GAP_PX + MARKS_PX * sights.indexOf(sight);
    for (const sight of sights) say(LEFT - 6, rowOf(sight) + 13, sight);
    this.markRows.show(marks.map((mark, n) => {
      const text = [mark.sight, mark.slice && `slice ${mark.slice}`, mark.step !== null && `step ${mark.step}`, `after ${span(mark.at)}`];
      return [n, { x: x(mark.at), y: rowOf(mark.sight), sight: mark.sight, text: text.filter(Boolean).join(", ") }];
    }));
    say(LEFT, height - 4, "0", "start");
    say(width - 10, height - 4, span(wall));
    this.wordRows.show(words);
    const lost = marks.filter((mark) => mark.sight === "lost").length;
    setAttribute(this.svg, "aria-label", `${lossText(losses)} Up to ${most} slices in ${span(wall)}; slices were lost ${lost} ${lost === 1 ? "time" : "times"}.`);
  }

  drawLosses(losses, x, say) {
    const values = losses.map(({ loss }) => loss);
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const y = (loss) => LOSS_PX - 8 - SHARE(loss - low, high - low) * (LOSS_PX - 24);
    setAttribute(this.curve, "points", losses.map(({ at, loss }) => `${x(at).toFixed(1)},${y(loss).toFixed(1)}`).join(" "));
    say(LEFT - 6, y(high) + 4, number(high));
    if (high > low) say(LEFT - 6, y(low) + 4, number(low));
  }
}

function factsOf(report) {
  const count = (value) => (value ? String(value) : "");
  return [
    ["Goodput", percent(SHARE(report.good_s, report.wall_s))],
    ["State", report.outcome ?? "killed, or still running"],
    ["Began", new Date(report.began).toLocaleString()],
    ["Time", span(report.wall_s)],
    ["Last step", String(report.last_step ?? 0)],
    ["Loss", report.losses.length ? number(report.losses.at(-1).loss) : ""],
    ["Steps completed", String(report.steps)],
    ["Steps lost", count(report.steps_lost)],
    ["Attempts", count(report.attempts)],
    ["Processes", count(report.processes)],
    ["Scale-ups", count(report.scale_ups)],
    ["Checkpoints", count(report.checkpoints)],
    ["Snapshots", count(report.snapshots)],
    ["Saves failed", count(report.failed_saves)],
    ["Checkpoints quarantined", count(report.quarantined)],
    ["Lines not read", count(report.skipped_lines)],
  ];
}

function lossText(losses) {
  if (!losses.length) return "The run reported no loss.";
  const [first, last] = [losses[0], losses.at(-1)];
  return `Loss from ${number(first.loss)} at step ${first.step} to ${number(last.loss)} at step ${last.step}.`;
}

function percent(share) {
  return `${(100 * share).toFixed(1)} %`;
}

function number(value) {
  return String(Number(value.toPrecision(4)));
}
