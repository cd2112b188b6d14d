// Makes and updates elements. Text reaches the page only here, and only as text.

/** Makes an element. Children are nodes or texts; attributes that are null are left out. */
export function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Makes an element of SVG. */
export function draw(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

/** Sets a text if it is another one, so that an unchanged page costs no layout. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Sets an attribute if it has another value. */
export function setAttribute(element, name, value) {
  if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}

/**
 * Makes the children of an element match rows, by key: an element is made once, moved only when its
 * place changed, and updated in place, so that focus and selection stay.
 */
export class Rows {
  constructor(parent, create, update) {
    this.parent = parent;
    this.create = create;
    this.update = update;
    this.elements = new Map();
  }

  show(entries) {
    const left = new Map(this.elements);
    const own = new Set(this.elements.values());
    let next = this.parent.firstChild;
    for (const [key, row] of entries) {
      let element = left.get(key);
      left.delete(key);
      if (!element) {
        element = this.create(row, key);
        this.elements.set(key, element);
      }
      this.update(element, row, key);
      // (What others have put between stays behind the element that it follows.)
      while (next && !own.has(next)) next = next.nextSibling;
      if (element === next) next = next.nextSibling;
      else this.parent.insertBefore(element, next);
    }
    for (const [key, element] of left) {
      element.remove();
      this.elements.delete(key);
    }
  }
}

/**
 * Makes a table with a row for each entry; columns are {title, text, kind, link, sort, make, update}: `text` returns
 * the text of a row, or `make` and `update` make the content of a cell and bring it up to date; `kind` is the class
 * of its cells; `link` returns the address that the text links to; `sort` returns what rows are sorted by.
 */
export class Table {
  constructor(caption, columns) {
    this.columns = columns;
    this.sorted = null;
    this.entries = [];
    this.body = make("tbody");
    this.heads = columns.map((column) => {
      const { title, kind, sort } = column;
      const content = sort ? make("button", { type: "button", onclick: () => this.sortBy(column) }, title) : title;
      return make("th", { scope: "col", class: kind }, content);
    });
    // (Focusable, as keys scroll a table that is wider than the page.)
    this.element = make(
      "div", { class: "wide card", role: "region", tabindex: 0, "aria-label": caption },
      make(
        "table", { class: "cards" },
        make("caption", {}, caption), make("thead", {}, make("tr", {}, ...this.heads)), this.body,
      ),
    );
    this.rows = new Rows(this.body, (row, key) => this.makeRow(row, key), (element, row) => this.updateRow(element, row));
  }

  makeRow(row, key) {
    const cells = this.columns.map(({ title, kind, link, make: content }, number) => {
      const inside = content ? [content(row, key)] : link ? [make("a")] : [];
      return number === 0
        ? make("th", { scope: "row", class: kind }, ...inside)
        : make("td", { "data-title": title || null, class: kind }, ...inside);
    });
    return make("tr", {}, ...cells);
  }

  updateRow(element, row) {
    this.columns.forEach(({ text, link, update, make: content }, number) => {
      const cell = element.children[number];
      if (content) return update?.(cell.firstChild, row);
      const address = link?.(row);
      setText(link ? cell.firstChild : cell, text(row));
      if (link && address) setAttribute(cell.firstChild, "href", address);
      else if (link) cell.firstChild.removeAttribute("href");
    });
  }

  sortBy(column) {
    const isDown = this.sorted?.column === column && this.sorted.isDown;
    this.sorted = { column, isDown: !isDown };
    this.heads.forEach((head, number) => {
      if (this.columns[number] === column) setAttribute(head, "aria-sort", isDown ? "ascending" : "descending");
      else head.removeAttribute("aria-sort");
    });
    this.show(this.entries);
  }

  show(entries) {
    this.entries = [...entries];
    const shown = [...this.entries];
    if (this.sorted) {
      const { column: { sort }, isDown } = this.sorted;
      shown.sort(([, a], [, b]) => compare(sort(a), sort(b)) * (isDown ? -1 : 1));
    }
    this.rows.show(shown);
  }
}

function compare(a, b) {
  return typeof a === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
}

/** Makes a card with a title. */
export function card(title, ...content) {
  return make("section", { class: "card", "aria-label": title }, make("h3", {}, title), ...content);
}

/** Makes a state in its colour. */
export function chip() {
  return make("span", { class: "state-chip" });
}

/** Shows a state on a chip: a text, and a class for its colour. */
export function setChip(element, text, kind = text) {
  setAttribute(element, "class", `state-chip ${kind}`);
  setText(element, text);
}

/** A list of facts: [title, text], those without a text left out. */
export class Facts {
  constructor() {
    this.element = make("dl", { class: "facts" });
    this.rows = new Rows(this.element, () => make("div", {}, make("dt"), make("dd")), (element, [title, text]) => {
      setText(element.firstChild, title);
      setText(element.lastChild, text);
    });
  }

  show(facts) {
    this.rows.show(facts.filter(([, text]) => text).map((fact) => [fact[0], fact]));
  }
}

/** A bar of parts: [key, class, value, text]; parts without a value are left out. */
export class Shares {
  constructor(label, kind = "") {
    this.element = make("div", { class: `shares ${kind}`, role: "img", "aria-label": label });
    this.rows = new Rows(this.element, () => make("span"), (element, [, look, value, text]) => {
      setAttribute(element, "class", look);
      setAttribute(element, "title", text);
      if (element.style.flexGrow !== String(value)) element.style.flexGrow = String(value);
    });
  }

  show(parts, words) {
    setAttribute(this.element, "aria-label", words);
    this.rows.show(parts.filter(([, , value]) => value > 0).map((part) => [part[0], part]));
  }
}

/** Makes a labelled choice; options are [value, text]. */
export function choice(label, options, onchange) {
  const select = make("select", { onchange: () => onchange(select.value) });
  for (const [value, text] of options) select.append(make("option", { value }, text));
  return { element: make("label", {}, label, select), select };
}
