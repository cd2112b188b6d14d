// The view of the queue, the tenants, the reservations, and what they are about to get.

import { choiceFor } from "./actions.js";
import { swatch } from "./colours.js";
import { Table, chip, make, setAttribute, setChip, setText } from "./dom.js";
import { PlansView } from "./plans.js";
import { ask } from "./store.js";
import { addressOf, age, ago, amounts, byName, moment, notesOf, passed, person, span } from "./words.js";

export class TenantsView {
  constructor(store, actions) {
    this.store = store;
    this.actions = actions;
    const tenant = (row) => store.rows.tenants.get(row.tenant) ?? {};
    const buttons = {
      title: actions.allowed ? "Explanation, change" : "Explanation",
      make: (_, name) => this.makeButtons(name),
    };
    this.queue = new Table("Waiting, each type of slices with its own queue", [
      { title: "Tenant", text: (row) => row.tenant, link: (row) => addressOf(row.tenant) },
      { title: "Position", text: (row) => String(row.position), kind: "number" },
      { title: "User", text: (row) => person(tenant(row)) },
      { title: "Team", text: (row) => tenant(row).team ?? "" },
      { title: "Priority", text: (row) => String(tenant(row).priority ?? ""), kind: "number" },
      { title: "Wants", text: (row) => amounts(row.wants) },
      { title: "Waiting", text: (row) => (tenant(row).since ? age(passed(tenant(row).since)) : "") },
      { title: "Expected wait", text: (row) => (row.expected_wait_s == null ? "not known" : span(row.expected_wait_s)) },
      { title: "Reason", text: (row) => row.reason ?? "", kind: "long" },
      buttons,
    ]);
    this.tenants = new Table("All tenants", [
      { title: "Tenant", text: (row) => row.name, link: (row) => addressOf(row.name), sort: (row) => row.name },
      { title: "State", make: makeState, update: showState, sort: (row) => row.state },
      { title: "User", make: makeOwner, update: (element, row) => this.showOwner(element, row), sort: person },
      { title: "Team", text: (row) => row.team ?? "", sort: (row) => row.team ?? "" },
      { title: "Priority", text: (row) => String(row.priority ?? ""), kind: "number", sort: (row) => row.priority ?? 0 },
      { title: "Since", text: (row) => ago(row.since), kind: "short", sort: (row) => Date.parse(row.since) || 0 },
      { title: "Slices", text: slicesOf, sort: (row) => row.slices.length },
      buttons,
    ]);
    const columns = [
      { title: "Reservation", text: (row) => row.id },
      { title: "Slices", text: (row) => `${row.count} x ${row.instance_type}` },
      { title: "For", text: (row) => (row.user ? `user ${row.user}` : `team ${row.team}`) },
      { title: "From", text: (row) => moment(row.starts) },
      { title: "Until", text: (row) => moment(row.ends) },
      { title: "In use", text: (row) => String(row.held), kind: "number" },
    ];
    if (actions.allowed) columns.push({ title: "Change", make: (_, id) => this.makeCancel(id) });
    this.reservations = new Table("Reservations", columns);
    this.reserve = actions.allowed
      ? [make("div", { class: "tools" }, make("button", { type: "button", class: "main", onclick: () => this.askForReservation() }, "Reserve slices"))]
      : [];
    this.plans = new PlansView(store);
    this.empty = make("p", { class: "card blank" });
    this.elements = [
      ...this.reserve, this.queue.element, this.plans.element, this.reservations.element, this.tenants.element, this.empty,
    ];
  }

  showOwner(element, row) {
    const { colours } = this.store;
    setAttribute(element.firstChild, "class", `swatch ${colours.classOf(colours.ownerOf(row))}`);
    setText(element.lastChild, person(row));
  }

  makeButtons(name) {
    const buttons = make("span", { class: "choices" }, make(
      "button", { type: "button", class: "quiet", "aria-label": `Explain ${name}`, onclick: (event) => this.explain(name, event.target) }, "Explain",
    ));
    if (this.actions.allowed) {
      const act = () => this.actions.offer(name, [choiceFor(name)]);
      buttons.append(make("button", { type: "button", class: "quiet danger", "aria-label": `Delete ${name}`, onclick: act }, "Delete"));
    }
    return buttons;
  }

  makeCancel(id) {
    const question = `Cancel the reservation ${id}? Tenants keep the slices that they hold by it.`;
    const act = () => this.actions.offer(id, [["Cancel the reservation", question, "unreserve", { reservation: id }, "danger"]]);
    return make("button", { type: "button", class: "quiet danger", "aria-label": `Cancel ${id}`, onclick: act }, "Cancel");
  }

  askForReservation() {
    const types = [...new Set([...this.store.rows.slices.values()].map((slice) => slice.instance_type))];
    const type = make("select", {}, ...types.map((value) => make("option", { value }, value)));
    const count = make("input", { type: "number", min: 1, value: 1, required: "" });
    const [user, team] = [make("input", { autocomplete: "off" }), make("input", { autocomplete: "off" })];
    const begin = make("input", { type: "number", min: 0, step: 0.5, value: 0, required: "" });
    const hours = make("input", { type: "number", min: 0.5, step: 0.5, value: 8, required: "" });
    const inputs = [
      ["Type", type], ["Slices", count], ["For the user", user], ["or for the team", team],
      ["Begins in hours (0: now)", begin], ["Lasts hours", hours],
    ].map(([text, input]) => make("label", {}, text, input));
    this.actions.fillIn("Reserve slices", inputs, () => {
      const owner = user.value ? `user ${user.value}` : `team ${team.value}`;
      const when = Number(begin.value) ? `in ${begin.value} h` : "now";
      const question = `Reserve ${count.value} x ${type.value} for ${owner}, for ${hours.value} h from ${when}? `
        + "Tenants that hold slices keep them.";
      return ["Reserve slices", question, "reserve", {
        instance_type: type.value, count: Number(count.value), begin_hours: Number(begin.value), hours: Number(hours.value),
        user: user.value, team: team.value,
      }];
    });
  }

  /** Shows why a tenant waits or runs, in a row of its own below that of the button. */
  async explain(name, button) {
    const row = button.closest("tr");
    this.box?.remove();
    const told = make("td", { colspan: String(row.children.length) }, make("div", { class: "why", "aria-live": "polite" }));
    const box = make("tr", {}, told);
    const put = (...content) => told.firstChild.replaceChildren(...content);
    this.box = box;
    this.boxButton = button;
    row.after(box);
    put(`Asking about ${name} …`);
    try {
      const answer = await ask("api/explain", { tenant: name });
      const close = () => { box.remove(); button.focus(); };
      put(
        ...answer.sentences.map((sentence) => make("p", {}, sentence)),
        make("ul", {}, ...answer.decisions.map((one) => make("li", {}, `${moment(one.time)}: ${one.text}`))),
        make("button", { type: "button", class: "quiet", onclick: close }, "Close"),
      );
    } catch (error) {
      put(`There is no explanation: ${error.message}`);
    }
  }

  show() {
    const { queue, tenants, reservations } = this.store.rows;
    if (this.box && !this.box.previousElementSibling?.contains(this.boxButton)) this.box.remove();
    this.queue.element.hidden = !queue.size;
    this.tenants.element.hidden = !tenants.size;
    this.reservations.element.hidden = !reservations.size;
    this.queue.show([...queue].sort(([, a], [, b]) => a.position - b.position || byName(a.tenant, b.tenant)));
    this.tenants.show([...tenants].sort(([a], [b]) => byName(a, b)));
    this.reservations.show(reservations);
    this.plans.show();
    this.empty.hidden = tenants.size > 0 || !this.store.loaded;
    setText(this.empty, "The service has no tenants.");
  }
}

function makeState() {
  return make("span", {}, chip(), make("small"));
}

function showState(element, row) {
  setChip(element.firstChild, row.state);
  setText(element.lastChild, notesOf(row));
}

function makeOwner() {
  return make("span", { class: "owner" }, swatch(""), " ", make("span"));
}

function slicesOf(row) {
  const names = row.slices.map((slice) => slice.slice_id ?? slice.state);
  return names.length > 6 ? `${names.slice(0, 5).join(", ")} and ${names.length - 5} more` : names.join(", ");
}
