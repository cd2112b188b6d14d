// The view of tenants: the queue with reasons, the tenants, and the reservations.

import { choiceFor } from "./actions.js";
import { Table, make, setText } from "./dom.js";
import { PlansView } from "./plans.js";
import { ask } from "./store.js";
import { addressOf, ago, amounts, byName, passed, person, span, stateOf } from "./words.js";

export class TenantsView {
  constructor(store, actions) {
    this.store = store;
    this.actions = actions;
    const tenant = (row) => store.rows.tenants.get(row.tenant) ?? {};
    const why = { title: actions.allowed ? "Explanation, change" : "Explanation", make: (row, name) => this.makeButtons(name) };
    this.why = make("div", { class: "why", "aria-live": "polite" });
    this.queue = new Table("Waiting tenants, in the order of the queue", [
      ["Position", (row) => String(row.position), "number"],
      ["Tenant", (row) => row.tenant, null, (row) => addressOf(row.tenant)],
      ["User", (row) => person(tenant(row))],
      ["Team", (row) => tenant(row).team ?? ""],
      ["Priority", (row) => String(tenant(row).priority ?? ""), "number"],
      ["Wants", (row) => amounts(row.wants)],
      ["Waiting", (row) => (tenant(row).since ? span(passed(tenant(row).since)) : "")],
      ["Expected wait", (row) => (row.expected_wait_s == null ? "not known" : span(row.expected_wait_s))],
      ["Reason", (row) => row.reason ?? ""],
    ], why);
    this.tenants = new Table("All tenants", [
      ["Tenant", (row) => row.name, null, (row) => addressOf(row.name)],
      ["User", person],
      ["Team", (row) => row.team ?? ""],
      ["Priority", (row) => String(row.priority ?? ""), "number"],
      ["State", stateOf],
      ["Since", (row) => ago(row.since)],
      ["Slices", (row) => row.slices.map((s) => `${s.index}: ${s.slice_id ?? s.state}`).join(", ")],
    ], why);
    this.reservations = new Table("Reservations", [
      ["Reservation", (row) => row.id],
      ["Slices", (row) => `${row.count} x ${row.instance_type}`],
      ["For", (row) => (row.user ? `user ${row.user}` : `team ${row.team}`)],
      ["From", (row) => new Date(row.starts).toLocaleString()],
      ["Until", (row) => new Date(row.ends).toLocaleString()],
      ["In use", (row) => String(row.held), "number"],
    ], actions.allowed ? { title: "Change", make: (row, id) => this.makeCancel(id) } : null);
    this.reserve = actions.allowed
      ? [make("button", { type: "button", onclick: () => this.askForReservation() }, "Reserve slices")]
      : [];
    this.plans = new PlansView(store);
    this.empty = make("p", { class: "empty" });
    this.elements = [
      this.why, this.queue.element, this.plans.element, this.tenants.element, this.empty, this.reservations.element,
      ...this.reserve,
    ];
  }

  makeButtons(name) {
    const buttons = make("span", {}, this.makeExplain(name));
    if (this.actions.allowed) {
      const act = () => this.actions.offer(name, [choiceFor(name)]);
      buttons.append(" ", make("button", { type: "button", "aria-label": `Delete ${name}`, onclick: act }, "Delete"));
    }
    return buttons;
  }

  makeCancel(id) {
    const question = `Cancel the reservation ${id}? Tenants keep the slices that they hold by it.`;
    const act = () => this.actions.offer(id, [["Cancel the reservation", question, "unreserve", { reservation: id }]]);
    return make("button", { type: "button", "aria-label": `Cancel ${id}`, onclick: act }, "Cancel");
  }

  askForReservation() {
    const types = [...new Set([...this.store.rows.slices.values()].map((slice) => slice.instance_type))];
    const type = make("select", {}, ...types.map((value) => make("option", { value }, value)));
    const count = make("input", { type: "number", min: 1, value: 1, required: "" });
    const [user, team] = [make("input", { autocomplete: "off" }), make("input", { autocomplete: "off" })];
    const hours = make("input", { type: "number", min: 0.5, step: 0.5, value: 8, required: "" });
    const inputs = [
      ["Type", type], ["Slices", count], ["For the user", user], ["or for the team", team], ["Hours from now", hours],
    ].map(([text, input]) => make("label", {}, text, input));
    this.actions.fillIn("Reserve slices", inputs, () => {
      const owner = user.value ? `user ${user.value}` : `team ${team.value}`;
      const question = `Reserve ${count.value} x ${type.value} for ${owner}, for ${hours.value} h from now? `
        + "Tenants that hold slices keep them.";
      return ["Reserve slices", question, "reserve", {
        instance_type: type.value, count: Number(count.value), hours: Number(hours.value), user: user.value, team: team.value,
      }];
    });
  }

  makeExplain(name) {
    return make(
      "button", { type: "button", "aria-label": `Explain ${name}`, onclick: () => this.explain(name) },
      "Explain",
    );
  }

  async explain(name) {
    setText(this.why, `Asking about ${name} …`);
    try {
      const told = await ask("/api/explain", { tenant: name });
      const lines = told.decisions.map((one) =>
        make("li", {}, `${new Date(one.time).toLocaleString()}: ${one.text}`));
      this.why.replaceChildren(
        ...told.sentences.map((sentence) => make("p", {}, sentence)),
        make("ul", {}, ...lines),
        make("button", { type: "button", onclick: () => this.why.replaceChildren() }, "Close"),
      );
    } catch (error) {
      setText(this.why, `There is no explanation: ${error.message}`);
    }
  }

  show() {
    const { queue, tenants, reservations } = this.store.rows;
    this.queue.element.hidden = !queue.size;
    this.tenants.element.hidden = !tenants.size;
    this.reservations.element.hidden = !reservations.size;
    this.queue.show([...queue].sort(([, a], [, b]) => a.position - b.position));
    this.tenants.show([...tenants].sort(([a], [b]) => byName(a, b)));
    this.reservations.show(reservations);
    this.plans.show();
    setText(this.empty, tenants.size || !this.store.loaded ? "" : "The service has no tenants.");
  }
}
