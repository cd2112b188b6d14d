// The view of slices: by type and node pool, each in the colour of who holds it.

import { choiceFor, choicesFor } from "./actions.js";
import { Legend } from "./colours.js";
import { Rows, choice, make, setAttribute, setText } from "./dom.js";
import { KINDS, byType, kindsOf } from "./kinds.js";
import { addressOf, age, byName, counted, passed, speedOf } from "./words.js";

const SIZES = [["large", "Large"], ["small", "Small"], ["dots", "Dots"]];
// With more slices the tiles begin smaller.
const MOST_LARGE = 60;
const MOST_SMALL = 250;

export class SlicesView {
  constructor(store, actions) {
    this.store = store;
    this.actions = actions;
    this.filter = "";
    this.kind = "";
    this.slowHosts = new Map();
    this.size = null;
    const search = make("input", {
      type: "search", placeholder: "slice-7, ada, node-3 …",
      oninput: () => { this.filter = search.value.toLowerCase(); this.show(); },
    });
    const kinds = choice(
      "State", [["", "all"], ...KINDS.map((kind) => [kind, kind])],
      (value) => { this.kind = value; this.show(); },
    );
    const colours = choice("Colour by", [["user", "user"], ["team", "team"]], (by) => { store.colours.use(by); this.show(); });
    colours.select.value = store.colours.by;
    this.sizes = SIZES.map(([size, text]) => make("button", { type: "button", onclick: () => this.resize(size) }, text));
    this.empty = make("p", { class: "empty" });
    this.legend = new Legend("Colours of holders");
    const groups = make("div");
    this.groups = new Rows(groups, (_, type) => this.makeGroup(type), () => {});
    this.elements = [
      make(
        "div", { class: "tools", role: "search", "aria-label": "Filter of slices" },
        make("label", {}, "Slice, holder, user or host", search), kinds.element, colours.element,
        make("div", { class: "segments", role: "group", "aria-label": "Size of the tiles" }, ...this.sizes),
      ),
      make("div", { class: "card" }, this.legend.element), this.empty, groups,
    ];
    this.parts = new Map();
  }

  resize(size) {
    this.size = size;
    this.show();
  }

  makeGroup(type) {
    const counts = make("ul", { class: "counts" });
    const pools = make("div");
    this.parts.set(type, {
      counts: new Rows(counts, () => make("li"), (element, text) => setText(element, text)),
      pools: new Rows(pools, () => this.makePool(), (element, pool) => this.showPool(element, pool)),
    });
    const head = make("div", { class: "group-head" }, make("h3", {}, type), counts);
    return make("section", { class: "card", "aria-label": type }, head, pools);
  }

  makePool() {
    const grid = make("ul", { class: "grid" });
    const element = make("div", { class: "pool" }, make("p"), grid);
    element.grid = new Rows(grid, (row) => this.makeTile(row), (tile, row) => this.showTile(tile, row));
    return element;
  }

  showPool(element, { name, tiles, size }) {
    const [title, grid] = element.children;
    setText(title, name);
    title.hidden = !name;
    setAttribute(grid, "class", `grid ${size}${this.actions.allowed ? " acts" : ""}`);
    element.grid.show(tiles);
  }

  show() {
    const slices = [...this.store.rows.slices.values()].sort((a, b) => byName(a.id, b.id));
    const kinds = kindsOf(slices, this.store.service.spares ?? 0);
    const size = this.size ?? (slices.length <= MOST_LARGE ? "large" : slices.length <= MOST_SMALL ? "small" : "dots");
    this.sizes.forEach((button, number) => setAttribute(button, "aria-pressed", String(SIZES[number][0] === size)));
    this.slowHosts = Map.groupBy([...this.store.rows.executors.values()].filter(({ slow }) => slow), ({ slice }) => slice);
    const rows = slices.map((slice) => ({ slice, kind: kinds.get(slice.id), holder: this.holderOf(slice) }));
    this.showLegend(rows);
    const types = byType(slices);
    this.groups.show(types);
    const shown = rows.filter((row) => this.matches(row));
    const shownTypes = Map.groupBy(shown, ({ slice }) => slice.instance_type);
    for (const [type, members] of types) {
      const { counts, pools } = this.parts.get(type);
      const numbers = KINDS.map((kind) => [kind, members.filter((slice) => kinds.get(slice.id) === kind).length]);
      counts.show([
        ["all", counted(members.length, "slice")],
        ...numbers.filter(([, count]) => count).map(([kind, count]) => [kind, `${count} ${kind}`]),
      ]);
      const found = Map.groupBy(shownTypes.get(type) ?? [], ({ slice }) => slice.node_pool ?? "");
      pools.show([...found].map(([pool, tiles]) => [pool, {
        name: pool && `Node pool ${pool}`, size, tiles: tiles.map((row) => [row.slice.id, row]),
      }]));
    }
    const nothing = slices.length ? "No slice matches the filter." : "The service has no slices.";
    setText(this.empty, shown.length || !this.store.loaded ? "" : nothing);
  }

  showLegend(rows) {
    const { colours } = this.store;
    const held = Map.groupBy(rows.filter(({ holder }) => holder), ({ holder }) => colours.ownerOf(holder));
    colours.know(held.keys());
    const owners = [...held].sort(([a], [b]) => byName(a, b));
    this.legend.show(owners.map(([owner, members]) => [
      owner, colours.classOf(owner), `${owner || `no ${colours.by}`}: ${counted(members.length, "slice")}`,
    ]));
    this.legend.element.parentElement.hidden = !owners.length;
  }

  holderOf(slice) {
    return slice.tenant ? this.store.rows.tenants.get(slice.tenant) ?? {} : null;
  }

  matches({ slice, kind, holder }) {
    if (this.kind && kind !== this.kind) return false;
    if (!this.filter) return true;
    const words = [slice.id, slice.tenant, slice.node_pool, ...slice.hosts ?? [], holder?.user, holder?.team, holder?.host];
    return words.some((word) => word?.toLowerCase().includes(this.filter));
  }

  makeTile({ slice: { id } }) {
    const name = this.actions.allowed
      ? make("button", { type: "button", "aria-haspopup": "dialog", title: `Change ${id}`, onclick: () => this.offer(id) }, id)
      : make("b", {}, id);
    return make(
      "li", {}, make("div", { class: "row" }, name, make("span", { class: "state" })),
      make("a", { class: "who" }), make("small"), make("small"),
    );
  }

  offer(id) {
    const slice = this.store.rows.slices.get(id);
    if (!slice) return;
    const choices = choicesFor(slice);
    if (slice.tenant) choices.push(choiceFor(slice.tenant));
    this.actions.offer(id, choices);
  }

  showTile(element, { slice, kind, holder }) {
    const [row, who, owner, where, speed] = element.children;
    const { colours } = this.store;
    const look = kind === "held" || slice.tenant ? ` ${colours.classOf(colours.ownerOf(holder))}` : "";
    const slow = this.slowHosts.get(slice.id) ?? [];
    setAttribute(element, "class", `${kind}${look}${slow.length ? " has-slow" : ""}`);
    const speeds = slow.map((one) => `host ${one.host} is ${speedOf(one)}`).join(", ");
    if (speed) setText(speed, speeds);
    else if (speeds) element.append(make("small", { class: "slow" }, speeds));
    const since = slice.held_since ?? slice.since;
    const state = since ? `${kind} for ${age(passed(since))}` : kind;
    setText(row.lastChild, state);
    setText(who, holderText(slice));
    if (slice.tenant) setAttribute(who, "href", addressOf(slice.tenant));
    else who.removeAttribute("href");
    const people = slice.tenant ? [holder.user && `user ${holder.user}`, holder.team && `team ${holder.team}`, holder.host && `from ${holder.host}`] : [];
    setText(owner, people.filter(Boolean).join(", "));
    const hosts = slice.hosts ?? [];
    setText(where, hosts.length ? `${hosts.length > 1 ? "hosts" : "host"} ${hosts.join(", ")}` : "");
    const words = [slice.id, state, who.textContent, owner.textContent, where.textContent, speeds];
    setAttribute(element, "title", words.filter(Boolean).join("\n"));
  }
}

/** Returns who has a slice, or for whom it is kept. */
function holderText(slice) {
  if (!slice.tenant) return slice.kept_for ? `kept for ${slice.kept_for}` : "";
  return slice.virtual_index === null ? slice.tenant : `${slice.tenant}[${slice.virtual_index}]`;
}
