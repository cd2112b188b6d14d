// The view of usage: who held how many slices, over time and in sum, and the same as CSV.

import { Chart } from "./charts.js";
import { swatch } from "./colours.js";
import { Shares, Table, card, choice, make, setAttribute, setText } from "./dom.js";
import { Poll } from "./polling.js";
import { moment, percent, span } from "./words.js";

const REFRESH_MS = 10000;
const HOUR_S = 3600;
const DAY_S = 24 * HOUR_S;
const WORDS = { user: "User", team: "Team", tenant: "Tenant", type: "Type" };
const FIELDS = { user: "user", team: "team", tenant: "tenant", type: "instance_type" };
const PERIODS = [[HOUR_S, "1 hour"], [DAY_S, "1 day"], [7 * DAY_S, "7 days"], [30 * DAY_S, "30 days"], [90 * DAY_S, "90 days"]];
const PARTS = 120;
const NONE = "(none)";
// The owners without a line of their own: no name of theirs.
const OTHERS = "\n";

export class UsageView {
  constructor(store) {
    this.store = store;
    this.by = store.colours.by;
    this.period = DAY_S;
    const by = choice("By", Object.entries(WORDS).map(([value, word]) => [value, word.toLowerCase()]), (value) => {
      this.by = value;
      this.restart();
    });
    by.select.value = this.by;
    const period = choice("Of the last", PERIODS, (value) => {
      this.period = Number(value);
      this.restart();
    });
    period.select.value = String(this.period);
    this.link = make("a", { download: "usage.csv" }, "Download as CSV");
    this.told = make("p", { role: "status", "aria-live": "polite" });
    // (Not announced: it changes with each refresh.)
    this.dates = make("p", { class: "empty" });
    this.shares = new Shares("Shares", "tall");
    this.place = make("div");
    this.drawing = make("div");
    this.cut = make("p", { class: "empty" });
    this.elements = [
      make("div", { class: "tools" }, by.element, period.element, make("span", {}, this.link)), this.told,
      card("Held slices over time", this.drawing, this.cut), card("Shares of what was held", this.shares.element, this.dates),
      this.place,
      make("p", { class: "empty" }, "A holding is a slice from its placement to its release. A wait is a stay in the queue; "
        + "its hours count until the slices were placed, or the tenant gave up."),
    ];
    this.restart();
  }

  restart() {
    this.close();
    this.table = null;
    const parameters = { by: this.by, since: `-${this.period}` };
    setAttribute(this.link, "href", `api/usage.csv?${new URLSearchParams(parameters)}`);
    setText(this.told, "Adding up the history …");
    setText(this.dates, "");
    this.place.replaceChildren();
    this.drawing.replaceChildren();
    const overTime = new Poll("api/held-over-time", { by: FIELDS[this.by], window_s: this.period, parts: PARTS }, () => REFRESH_MS, (answer, problem) => {
      if (answer) this.draw(answer);
      else setText(this.cut, `The chart is not known: ${problem}`);
    });
    this.polls = [
      overTime,
      new Poll("api/usage", parameters, () => REFRESH_MS, (answer, problem) => {
        // (The window of a service that is younger than the period is its age.)
        const window_s = answer && Math.ceil(Math.min(this.period, Math.max(60, answer.window_s)));
        if (answer && Math.abs(window_s / overTime.parameters.window_s - 1) > 0.05) overTime.change({ ...overTime.parameters, window_s });
        if (answer) this.take(answer);
        else setText(this.told, `The usage is not known: ${problem}`);
      }),
    ];
  }

  close() {
    for (const poll of this.polls ?? []) poll.close();
    this.chart?.close();
    this.chart = null;
  }

  lookOf(name) {
    return this.store.colours.classOf(name, this.by);
  }

  draw({ since, until, step_s: step, series, complete }) {
    const { colours } = this.store;
    const names = Object.keys(series);
    colours.know(names.filter((name) => name !== OTHERS), this.by);
    const key = names.join("\n");
    if (!this.chart || this.drawn !== key) {
      this.chart?.close();
      this.drawn = key;
      const owner = (name) => (name === OTHERS ? "" : name);
      // (Stacked: each line is the sum up to its owner, drawn from the highest.)
      this.chart = new Chart("Held slices over time", () => names.toReversed().map((name) => ({
        label: name === OTHERS ? "others" : name || NONE, stroke: colours.valueOf(owner(name), this.by), fill: colours.fillOf(owner(name), this.by), width: 1,
        value: (_, __, ___, at) => (at === null ? "–" : String(Math.round(100 * this.series[name][at]) / 100)),
      })), { left: "slices" });
      this.drawing.replaceChildren(this.chart.element);
    }
    this.series = series;
    const length = names.length ? series[names[0]].length : 0;
    const sums = new Array(length).fill(0);
    const lines = names.map((name) => series[name].map((value, at) => { sums[at] += value; return sums[at]; }));
    const times = Array.from({ length }, (_, at) => since + (at + 0.5) * step);
    this.drawing.hidden = !length;
    this.chart.show([times, ...lines.toReversed()], `Held slices in the last ${span(Math.round(until - since))}, by ${this.by}`);
    setText(this.cut, complete ? "" : "The history is longer than what was added up: its latest part is missing.");
  }

  take({ rows, since, until, capacity, window_s: seconds }) {
    const all = Object.values(capacity).reduce((sum, count) => sum + count, 0);
    const held = rows.reduce((sum, row) => sum + row.slice_seconds, 0);
    const nameOf = (row) => row[this.by] ?? NONE;
    const capacityOf = (row) => (this.by === "type" ? capacity[row.type] ?? 0 : all) * seconds;
    const share = (row) => (capacityOf(row) ? row.slice_seconds / capacityOf(row) : 0);
    this.store.colours.know(rows.map((row) => row[this.by] ?? ""), this.by);
    this.table ??= this.makeTable();
    this.table.element.hidden = !rows.length;
    this.table.show(rows.map((row) => [nameOf(row), { ...row, name: nameOf(row), share: share(row), part: held ? row.slice_seconds / held : 0 }]));
    const idle = Math.max(0, all * seconds - held);
    const parts = rows.map((row) => [nameOf(row), this.lookOf(row[this.by] ?? ""), row.slice_seconds, `${nameOf(row)}: ${percent(row.slice_seconds / (held + idle || 1), 1)}`]);
    this.shares.show(parts, `Shares of all slices: ${parts.map(([, , , text]) => text).join(", ")}, idle ${percent(idle / (held + idle || 1), 1)}`);
    this.shares.element.style.width = `${(100 * held) / (held + idle || 1)}%`;
    setText(this.told, rows.length ? "" : "No slice was held.");
    setText(this.dates, `${percent(held / (held + idle || 1), 1)} of all slices, from ${moment(since)} to ${moment(until)} (${span(seconds)}).`);
  }

  makeTable() {
    const table = new Table(`Usage by ${this.by}`, [
      {
        title: WORDS[this.by], sort: (row) => row.name,
        make: () => make("span", {}, swatch(""), " ", make("span")),
        update: (element, row) => {
          setAttribute(element.firstChild, "class", `swatch ${this.lookOf(row[this.by] ?? "")}`);
          setText(element.lastChild, row.name);
        },
      },
      { title: "Held", text: (row) => hours(row.slice_seconds), kind: "number", sort: (row) => row.slice_seconds },
      { title: "Of what was held", text: (row) => percent(row.part, 1), kind: "number", sort: (row) => row.part },
      { title: "Of all slices", text: (row) => percent(row.share, 1), kind: "number", sort: (row) => row.share },
      { title: "Waited", text: (row) => hours(row.waiting_seconds), kind: "number", sort: (row) => row.waiting_seconds },
      { title: "Holdings", text: (row) => String(row.holdings), kind: "number", sort: (row) => row.holdings },
      { title: "Waits", text: (row) => String(row.waits), kind: "number", sort: (row) => row.waits },
    ]);
    this.place.replaceChildren(table.element);
    return table;
  }

  show() {}
}

/** Returns slice-seconds as slice-hours, or in a unit that a young service has more than 0.00 of. */
function hours(seconds) {
  return seconds ? span(seconds).replace(/^(.*) (s|min|h|d)$/, "$1 slice-$2") : "0";
}
