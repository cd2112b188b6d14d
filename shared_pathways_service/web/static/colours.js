// One colour for each user or team, the same on every page. Nine hues, and the same with stripes.

import { draw, make, setAttribute } from "./dom.js";
import { byName } from "./words.js";

const HUES = 9;
const LOOKS = 2 * HUES;
const KEY = "sps-colour-by";
const FIELDS = { user: "user", team: "team" };

/** Gives owners their colours. No two have the same while there are as many looks as owners. */
export class Colours {
  constructor() {
    this.by = remembered() === "team" ? "team" : "user";
    // By kind of owner, as names of tenants and types have colours as well.
    this.kinds = new Map();
  }

  /** Tells owners apart by "user" or "team" from now on. */
  use(by) {
    this.by = FIELDS[by] ?? "user";
    remember(this.by);
  }

  /** Returns the owner of a row with a user and a team: what its colour stands for. */
  ownerOf(row) {
    return row?.[this.by] || "";
  }

  /** Makes sure that these owners have looks, in the order of their names. */
  know(owners, by = this.by) {
    if (!this.kinds.has(by)) this.kinds.set(by, new Map());
    const looks = this.kinds.get(by);
    for (const owner of [...new Set(owners)].sort(byName)) {
      if (owner && !looks.has(owner) && looks.size < LOOKS) looks.set(owner, looks.size);
    }
    return looks;
  }

  /** Returns the classes of an owner's colour; one without a name, or too late for a look, has grey. */
  classOf(owner, by = this.by) {
    const look = this.kinds.get(by)?.get(owner) ?? this.know([owner], by).get(owner);
    if (look === undefined) return "own own-none";
    return `own own-${look % HUES}${look >= HUES ? " striped" : ""}`;
  }

  /** Whether an owner's colour is one with stripes. */
  isStriped(owner, by = this.by) {
    return (this.know([owner], by).get(owner) ?? 0) >= HUES;
  }

  /** Returns an owner's colour for lines of a canvas. */
  valueOf(owner, by = this.by) {
    const look = this.know([owner], by).get(owner);
    return colour(look === undefined ? "--own-none" : `--own-${look % HUES}`);
  }

  /** Returns what areas of a canvas are filled with: the colour, with stripes where the owner has them. */
  fillOf(owner, by = this.by) {
    const value = this.valueOf(owner, by);
    if (!this.isStriped(owner, by)) return value;
    const tile = make("canvas", { width: 8, height: 8 });
    const pen = tile.getContext("2d");
    pen.fillStyle = value;
    pen.fillRect(0, 0, 8, 8);
    pen.strokeStyle = "rgb(255 255 255 / 45%)";
    pen.lineWidth = 2.5;
    for (const shift of [-8, 0, 8]) {
      pen.moveTo(shift, 8);
      pen.lineTo(shift + 8, 0);
    }
    pen.stroke();
    return pen.createPattern(tile, "repeat");
  }
}

function remembered() {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null;  // the browser lets the page store nothing
  }
}

function remember(by) {
  try {
    localStorage.setItem(KEY, by);
  } catch {
    // (Then it holds until the page is closed.)
  }
}

/** Returns a colour of the page, by the name of its variable. */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** Makes a small box of a colour. */
export function swatch(kind) {
  return make("span", { class: `swatch ${kind}`, "aria-hidden": "true" });
}

/** Makes a legend: entries are [key, classes of the colour, text]. */
export class Legend {
  constructor(label) {
    this.element = make("ul", { class: "legend", "aria-label": label });
    this.shown = "";
  }

  show(entries) {
    const now = JSON.stringify(entries);
    if (now === this.shown) return;
    this.shown = now;
    this.element.replaceChildren(...entries.map(([, kind, text]) => make("li", {}, swatch(kind), text)));
  }
}

/** Returns the definition of the stripes that lie over a bar. */
export function stripes() {
  return draw(
    "defs", {},
    draw(
      "pattern", { id: "stripes", width: 7, height: 7, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
      draw("rect", { width: 2.5, height: 7, fill: "#ffffff", "fill-opacity": 0.4 }),
    ),
  );
}

/** Gives a bar of a picture its colour, and stripes over it where its owner has them. */
export function paint(bar, over, colours, owner, going = false) {
  setAttribute(bar, "class", `${colours.classOf(owner)}${going ? " going" : ""}`);
  over.style.display = colours.isStriped(owner) ? "" : "none";
}
