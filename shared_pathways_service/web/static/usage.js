// The view of usage: slice-hours by user, team, tenant or type, and the same as CSV.

import { Table, choice, make, setAttribute, setText } from "./dom.js";
import { ask } from "./store.js";
import { span } from "./words.js";

const REFRESH_MS = 10000;
const HOUR_S = 3600;
const DAY_S = 24 * HOUR_S;
const WORDS = { user: "User", team: "Team", tenant: "Tenant", type: "Type" };
const PERIODS = [[HOUR_S, "1 hour"], [DAY_S, "1 day"], [7 * DAY_S, "7 days"], [30 * DAY_S, "30 days"], [90 * DAY_S, "90 days"]];

export class UsageView {
  constructor(store) {
    this.store = store;
    this.by = "user";
    this.period = String(7 * DAY_S);
    const by = choice("By", Object.entries(WORDS).map(([value, word]) => [value, word.toLowerCase()]), (value) => {
      this.by = value;
      this.restart();
    });
    const period = choice("Of the last", PERIODS, (value) => {
      this.period = value;
      this.restart();
    });
    period.select.value = this.period;
    this.link = make("a", { download: "usage.csv" }, "Download as CSV");
    this.told = make("p", { role: "status", "aria-live": "polite" });
    // (Not announced: it changes with each refresh.)
    this.dates = make("p", { class: "empty" });
    this.place = make("div");
    this.elements = [
      make("div", { class: "tools" }, by.element, period.element, this.link), this.told, this.dates, this.place,
    ];
    this.restart();
  }

  restart() {
    this.generation = (this.generation ?? 0) + 1;
    this.table = null;
    const parameters = new URLSearchParams({ by: this.by, since: `-${this.period}` });
    setAttribute(this.link, "href", `/api/usage.csv?${parameters}`);
    setText(this.told, "Adding up the history …");
    setText(this.dates, "");
    this.place.replaceChildren();
    this.refresh(this.generation);
  }

  close() {
    this.generation = null;
  }

  async refresh(generation) {
    let answer = null;
    let problem = "";
    try {
      answer = await ask("/api/usage", { by: this.by, since: `-${this.period}` });
    } catch (error) {
      problem = error.message;
    }
    if (generation !== this.generation) return;
    if (answer) this.take(answer);
    else setText(this.told, `The usage is not known: ${problem}`);
    setTimeout(() => generation === this.generation && this.refresh(generation), REFRESH_MS);
  }

  take({ rows, since, until, capacity, window_s: seconds }) {
    const all = Object.values(capacity).reduce((sum, count) => sum + count, 0);
    const capacityOf = (row) => (this.by === "type" ? capacity[row.type] ?? 0 : all) * seconds;
    const share = (row) => (capacityOf(row) ? row.slice_seconds / capacityOf(row) : 0);
    if (!this.table) {
      this.table = new Table(`Usage by ${this.by}`, [
        [WORDS[this.by], (row) => row[this.by] ?? "(none)"],
        ["Slice-hours", (row) => (row.slice_seconds / HOUR_S).toFixed(2), "number"],
        ["Of all slices", (row) => `${(100 * row.share).toFixed(1)} %`, "number"],
        ["Hours waited", (row) => (row.waiting_seconds / HOUR_S).toFixed(2), "number"],
        ["Holdings", (row) => String(row.holdings), "number"],
        ["Waits", (row) => String(row.waits), "number"],
      ], {
        title: "Share",
        make: (row, key) => make("meter", { min: 0, max: 1, "aria-label": `Share of ${key}` }),
        update: (meter, row) => { if (meter.value !== row.share) meter.value = row.share; },
      });
      this.place.replaceChildren(this.table.element);
    }
    const shown = rows.map((row) => [row[this.by] ?? "(none)", { ...row, share: share(row) }]);
    this.table.show(shown);
    const [from, to] = [since, until].map((moment) => new Date(moment).toLocaleString());
    setText(this.told, rows.length ? "" : "No slice was held.");
    setText(this.dates, `From ${from} to ${to} (${span(seconds)}).`);
  }

  show() {}
}
