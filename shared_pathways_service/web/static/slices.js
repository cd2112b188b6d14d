// The view of slices: a grid for each type, with the holder of each slice.

import { choiceFor, choicesFor } from "./actions.js";
import { Rows, choice, make, setAttribute, setText } from "./dom.js";
import { byName, passed, person, span } from "./words.js";

const KINDS = ["free", "held", "spare", "cordoned", "draining", "starting", "lost"];

/** Returns the kind of a slice: its state, or who has a ready one. */
function kindOf(slice) {
  if (slice.state !== "ready") return slice.state;
  return slice.tenant ? "held" : "free";
}

/**
 * Returns kinds by slice. The service keeps so many free slices of each type as spares, and not
 * particular ones: the last free slices are shown as these.
 */
function kindsOf(slices, spares) {
  const kinds = new Map();
  const left = new Map();
  for (const slice of slices.toReversed()) {
    let kind = kindOf(slice);
    const kept = left.get(slice.instance_type) ?? spares;
    if (kind === "free" && kept > 0 && !slice.kept_for) {
      kind = "spare";
      left.set(slice.instance_type, kept - 1);
    }
    kinds.set(slice.id, kind);
  }
  return kinds;
}

export class SlicesView {
  constructor(store, actions) {
    this.store = store;
    this.actions = actions;
    this.filter = "";
    this.kind = "";
    const search = make("input", {
      type: "search",
      oninput: () => { this.filter = search.value.toLowerCase(); this.show(); },
    });
    const kinds = choice(
      "State", [["", "all"], ...KINDS.map((kind) => [kind, kind])],
      (value) => { this.kind = value; this.show(); },
    );
    this.empty = make("p", { class: "empty" });
    const groups = make("div");
    this.groups = new Rows(groups, (_, type) => this.makeGroup(type), (element, group) => group);
    this.elements = [
      make(
        "div", { class: "tools", role: "search", "aria-label": "Filter of slices" },
        make("label", {}, "Slice, holder, user or host", search), kinds.element,
      ),
      this.empty, groups,
    ];
    this.grids = new Map();
  }

  makeGroup(type) {
    const counts = make("ul", { class: "counts" });
    const grid = make("ul", { class: "grid" });
    this.grids.set(type, {
      counts: new Rows(counts, () => make("li"), (element, text) => setText(element, text)),
      grid: new Rows(grid, (row) => this.makeTile(row), (element, row) => this.updateTile(element, row)),
    });
    return make("section", { "aria-label": type }, make("h2", {}, type), counts, grid);
  }

  show() {
    const slices = [...this.store.rows.slices.values()].sort((a, b) => byName(a.id, b.id));
    const kinds = kindsOf(slices, this.store.service.spares ?? 0);
    const types = new Map();
    for (const slice of slices) {
      if (!types.has(slice.instance_type)) types.set(slice.instance_type, []);
      types.get(slice.instance_type).push(slice);
    }
    this.groups.show(types);
    let shown = 0;
    for (const [type, members] of types) {
      const counts = KINDS.map((kind) => [kind, members.filter((s) => kinds.get(s.id) === kind).length]);
      const { counts: list, grid } = this.grids.get(type);
      list.show([
        ["all", `${members.length} slices`],
        ...counts.filter(([, count]) => count).map(([kind, count]) => [kind, `${count} ${kind}`]),
      ]);
      const tiles = members
        .map((slice) => [slice.id, { slice, kind: kinds.get(slice.id), holder: this.holderOf(slice) }])
        .filter(([, row]) => this.matches(row));
      shown += tiles.length;
      grid.show(tiles);
    }
    const nothing = slices.length ? "No slice matches the filter." : "The service has no slices.";
    setText(this.empty, shown || !this.store.loaded ? "" : nothing);
  }

  holderOf(slice) {
    return slice.tenant ? this.store.rows.tenants.get(slice.tenant) ?? {} : null;
  }

  matches({ slice, kind, holder }) {
    if (this.kind && kind !== this.kind) return false;
    if (!this.filter) return true;
    const words = [slice.id, slice.tenant, slice.node_pool, ...slice.hosts ?? [], holder?.user, holder?.host];
    return words.some((word) => word?.toLowerCase().includes(this.filter));
  }

  makeTile({ slice: { id } }) {
    const tile = make("li", {}, make("b"), make("span", { class: "state" }), make("small"), make("small"));
    if (this.actions.allowed) {
      tile.append(make("button", { type: "button", "aria-label": `Change ${id}`, onclick: () => this.offer(id) }, "Change"));
    }
    return tile;
  }

  offer(id) {
    const slice = this.store.rows.slices.get(id);
    if (!slice) return;
    const choices = choicesFor(slice);
    if (slice.tenant) choices.push(choiceFor(slice.tenant));
    this.actions.offer(id, choices);
  }

  updateTile(element, { slice, kind, holder }) {
    const [id, state, who, where] = element.children;
    setAttribute(element, "class", kind);
    setText(id, slice.id);
    const since = slice.held_since ?? slice.since;
    setText(state, since ? `${kind} for ${span(passed(since))}` : kind);
    const index = slice.virtual_index === null ? "" : `[${slice.virtual_index}]`;
    const waiting = slice.kept_for ? `kept for ${slice.kept_for}` : "";
    setText(who, slice.tenant ? `${slice.tenant}${index} ${person(holder)}` : waiting);
    setText(where, [slice.node_pool, ...slice.hosts ?? []].filter(Boolean).join(", "));
  }
}
