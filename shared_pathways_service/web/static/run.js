// The view of elastic training runs: goodput, loss, slices over time, repairs and lost slices.

import uPlot from "./vendor/uplot/uPlot.esm.js";
import { Chart } from "./charts.js";
import { Legend } from "./colours.js";
import { Facts, Shares, Table, card, choice, make, setText } from "./dom.js";
import { Poll } from "./polling.js";
import { counted, moment, percent, span } from "./words.js";

const REFRESH_MS = 2000;
const SHARE = (part, whole) => (whole ? part / whole : 0);
// Colours by what the time was for: good, needed, lost to a failure, waiting.
const COSTS = {
  goodput: "cost-good", startup: "cost-needed", compile: "cost-needed-2", checkpoint: "cost-save", snapshot: "cost-save-2",
  detect: "cost-lost", confirm: "cost-lost-2", reconnect: "cost-lost", restore: "cost-lost-2", lost_steps: "cost-steps",
  down: "cost-down", waiting: "cost-wait", other: "cost-other",
};
const TONES = { lost: "--lost", killed: "--text", restored: "--accent", grew: "--free", quarantined: "--spare" };
// Runs beside the chosen one, each with a colour of its own.
const MOST_BESIDE = 5;

export class RunView {
  constructor(store, actions, run) {
    this.store = store;
    this.run = run;
    this.reports = new Map();
    this.beside = [];
    this.polls = new Map();
    this.by = "at";
    this.place = make("div", { class: "tools" });
    this.told = make("p", { role: "status", "aria-live": "polite" });
    this.goodput = make("span", { class: "value" });
    this.facts = new Facts();
    this.shares = new Shares("How the time was spent", "tall");
    this.costs = new Legend("What the time was spent on");
    this.runs = new Table("Runs side by side", [
      { title: "Run", text: (row) => row.name, link: (row) => `#run/${encodeURIComponent(row.name)}` },
      { title: "Goodput", text: (row) => percent(SHARE(row.good_s, row.wall_s), 1), kind: "number", sort: (row) => SHARE(row.good_s, row.wall_s) },
      { title: "Time", text: (row) => span(row.wall_s), kind: "number", sort: (row) => row.wall_s },
      { title: "Last step", text: (row) => String(row.last_step ?? 0), kind: "number", sort: (row) => row.last_step ?? 0 },
      { title: "Loss", text: (row) => (row.losses.length ? number(row.losses.at(-1).loss) : ""), kind: "number", sort: (row) => row.losses.at(-1)?.loss ?? 0 },
      { title: "Interruptions", text: (row) => String(row.incidents.length), kind: "number", sort: (row) => row.incidents.length },
      { title: "State", text: (row) => row.outcome ?? "killed, or still running" },
    ]);
    this.lossPlace = make("div");
    const axis = choice("Loss over", [["at", "time"], ["step", "steps"]], (by) => { this.by = by; this.lossChart?.close(); this.lossChart = null; this.show(); });
    this.slicesPlace = make("div");
    this.signs = new Legend("Events of the run");
    this.repairs = new Table("Repairs by cause", [
      { title: "Cause", text: (row) => row.cause },
      { title: "Count", text: (row) => String(row.count), kind: "number" },
      { title: "Mean", text: (row) => span(row.mean_s), kind: "number" },
      { title: "Median", text: (row) => span(row.median_s), kind: "number" },
      { title: "Longest", text: (row) => span(row.max_s), kind: "number" },
    ]);
    this.incidents = new Table("Interruptions, the latest first", [
      { title: "After", text: (row) => span(row.at_s) },
      { title: "Cause", text: (row) => row.cause.replaceAll("_", " ") },
      { title: "Slices", text: (row) => row.slices.join(", ") },
      { title: "Repaired in", text: (row) => (row.repair_s === null ? "not repaired" : span(row.repair_s)), kind: "number" },
      { title: "Steps lost", text: (row) => String(row.lost_steps), kind: "number" },
    ]);
    this.losses = new Table("Lost slices", [
      { title: "Slice", text: (row) => row.slice },
      { title: "Lost", text: (row) => `${row.count} x`, kind: "number" },
    ]);
    this.points = new Table("Loss", [
      { title: "Step", text: (row) => String(row.step) },
      { title: "After", text: (row) => span(row.at) },
      { title: "Loss", text: (row) => number(row.loss), kind: "number" },
    ]);
    this.table = make("details", { ontoggle: () => this.show() }, make("summary", {}, "Loss as a table"), this.points.element);
    this.lossCard = card("Loss", make("div", { class: "tools" }, axis.element), this.lossPlace, this.signs.element, this.table);
    this.parts = make(
      "div", {},
      card("Goodput", make("p", { class: "figure" }, this.goodput), this.shares.element, this.costs.element),
      this.runs.element,
      this.lossCard,
      card("Training slices", this.slicesPlace),
      card("Facts", this.facts.element),
      this.incidents.element, make("div", { class: "halves" }, this.repairs.element, this.losses.element),
    );
    this.parts.hidden = true;
    this.elements = [this.place, this.told, this.parts];
    this.list = new Poll("api/runs", {}, () => 30000, (answer, problem) => this.takeRuns(answer, problem));
  }

  close() {
    this.list.close();
    for (const poll of this.polls.values()) poll.close();
    this.lossChart?.close();
    this.slicesChart?.close();
  }

  takeRuns(answer, problem) {
    const runs = answer?.runs ?? [];
    if (!runs.length) {
      setText(this.told, problem || "No run is shown: name its directory with sps ui --run.");
      return;
    }
    if (this.select) return;
    if (!runs.includes(this.run)) [this.run] = runs;
    const chosen = choice("Run", runs.map((run) => [run, run]), (run) => { location.hash = `run/${encodeURIComponent(run)}`; });
    this.select = chosen.select;
    this.select.value = this.run;
    this.place.append(chosen.element);
    this.follow(this.run);
    for (const run of runs.filter((one) => one !== this.run).slice(0, MOST_BESIDE)) {
      const box = make("input", { type: "checkbox", onchange: () => this.compare(run, box.checked) });
      this.place.append(make("label", { class: "check" }, box, make("span", {}, `beside ${run}`)));
    }
  }

  compare(run, isWanted) {
    this.beside = this.beside.filter((one) => one !== run);
    if (isWanted) {
      this.beside.push(run);
      this.follow(run);
    } else {
      this.polls.get(run)?.close();
      this.polls.delete(run);
    }
    this.lossChart?.close();
    this.lossChart = null;
    this.show();
  }

  follow(run) {
    const poll = new Poll("api/run", { run, seen: this.reports.get(run)?.version ?? "" }, () => REFRESH_MS, (answer, problem) => {
      if (run === this.run) setText(this.told, problem);
      if (!answer?.began) return;
      this.reports.set(run, answer);
      poll.set({ run, seen: answer.version });
      this.show();
    });
    this.polls.set(run, poll);
  }

  show() {
    const report = this.reports.get(this.run);
    this.parts.hidden = !report;
    if (!report) return;
    this.showTime(report);
    this.facts.show(factsOf(report));
    const shown = [this.run, ...this.beside].map((run) => [run, this.reports.get(run)]).filter(([, found]) => found);
    this.runs.element.hidden = shown.length < 2;
    this.runs.show(shown.map(([name, found]) => [name, { ...found, name }]));
    this.repairs.show(Object.entries(report.mttr).map(([cause, row]) => [cause, { cause: cause.replaceAll("_", " "), ...row }]));
    this.incidents.show(report.incidents.map((row, at) => [at, row]).reverse());
    this.losses.show(Object.entries(report.slice_losses).map(([slice, count]) => [slice, { slice, count }]));
    for (const table of [this.repairs, this.incidents, this.losses]) table.element.hidden = !table.body.firstChild;
    this.lossCard.hidden = !shown.some(([, found]) => found.losses.length);
    if (this.table.open) this.points.show(report.losses.map((point) => [point.step, point]));
    if (!this.lossCard.hidden) this.drawLoss(shown);
    this.drawSlices(report);
    const sights = [...new Set(report.marks.map((mark) => mark.sight))].filter((sight) => TONES[sight]);
    this.signs.show(sights.map((sight) => [sight, `sight-${sight}`, sight]));
  }

  showTime(report) {
    const times = Object.entries({ goodput: report.good_s, ...report.badput_s }).filter(([name, s]) => s || name === "goodput");
    setText(this.goodput, percent(SHARE(report.good_s, report.wall_s), 1));
    const textOf = ([name, seconds]) => `${name.replaceAll("_", " ")}: ${span(seconds)}, ${percent(SHARE(seconds, report.wall_s), 1)}`;
    const order = Object.keys(COSTS);
    times.sort(([a], [b]) => order.indexOf(a) - order.indexOf(b));
    const parts = times.map(([name, seconds]) => [name, COSTS[name] ?? "cost-other", seconds, textOf([name, seconds])]);
    this.shares.show(parts, `How the time was spent: ${times.map(textOf).join("; ")}`);
    this.costs.show(times.map(([name, seconds]) => [name, COSTS[name] ?? "cost-other", textOf([name, seconds])]));
  }

  drawLoss(shown) {
    const runs = shown.map(([run]) => run).join("\n");
    if (!this.lossChart || this.lossRuns !== runs) {
      this.lossChart?.close();
      this.lossRuns = runs;
      this.lossChart = new Chart("Loss", (colour) => shown.map(([run], n) => ({
        label: shown.length > 1 ? run : "Loss", stroke: n ? colour(`--own-${n + 1}`) : colour("--accent"), width: 2,
        spanGaps: false, points: { show: false },
      })), {
        time: false, left: "loss", bottom: this.by === "at" ? "since the start" : "step", values: number, top: null,
        at: this.by === "at" ? span : String, marks: () => this.marksOf(this.by),
      });
      this.lossPlace.replaceChildren(this.lossChart.element);
    }
    const lines = shown.map(([, report]) => pointsOf(report, this.by));
    const data = lines.length === 1 ? lines[0] : uPlot.join(lines, lines.map(() => [1]));
    this.lossChart.show(data, shown.map(([run, report]) => `${shown.length > 1 ? `${run}: ` : ""}${lossText(report.losses)}`).join(" "));
  }

  marksOf(by) {
    const marks = this.reports.get(this.run)?.marks ?? [];
    return marks
      .filter((mark) => TONES[mark.sight] && (by === "at" || mark.step !== null))
      .map((mark) => ({ at: by === "at" ? mark.at : mark.step, tone: TONES[mark.sight] }));
  }

  drawSlices({ slice_counts: counts, wall_s: wall, marks }) {
    this.slicesChart ??= new Chart("Training slices", (colour) => [{
      label: "slices", stroke: colour("--accent"), fill: colour("--accent-back"), width: 2, paths: uPlot.paths.stepped({ align: 1 }),
      points: { show: false },
    }], { time: false, left: "slices", bottom: "since the start", at: span, marks: () => this.marksOf("at") });
    if (!this.slicesChart.element.isConnected) this.slicesPlace.replaceChildren(this.slicesChart.element);
    const lost = marks.filter((mark) => mark.sight === "lost").length;
    const most = Math.max(0, ...counts.map(({ count }) => count));
    const last = counts.at(-1)?.count ?? 0;
    this.slicesChart.show(
      [[...counts.map(({ at }) => at), wall], [...counts.map(({ count }) => count), last]],
      `Up to ${counted(most, "slice")} in ${span(wall)}; slices were lost ${counted(lost, "time")}.`,
    );
  }
}

/** Returns the curve of the loss, with a gap wherever training was interrupted. */
function pointsOf({ losses, incidents }, by) {
  const [places, values] = [[], []];
  let next = 0;
  const breaks = incidents.map((incident) => incident.at_s).sort((a, b) => a - b);
  losses.forEach((point, n) => {
    const before = losses[n - 1];
    while (next < breaks.length && before && breaks[next] < before.at) next += 1;
    if (before && next < breaks.length && breaks[next] <= point.at) {
      places.push((before[by] + point[by]) / 2);
      values.push(null);
    }
    places.push(point[by]);
    values.push(point.loss);
  });
  return [places, values];
}

function factsOf(report) {
  const count = (value) => (value ? String(value) : "");
  return [
    ["State", report.outcome ?? "killed, or still running"],
    ["Began", moment(report.began)],
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

function number(value) {
  return String(Number(value.toPrecision(4)));
}
