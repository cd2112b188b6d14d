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
    let next = this.parent.firstChild;
    for (const [key, row] of entries) {
      let element = left.get(key);
      left.delete(key);
      if (!element) {
        element = this.create(row, key);
        this.elements.set(key, element);
      }
      this.update(element, row, key);
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
 * Makes a table with a row for each entry; columns are [title, text of a row, class, address that a row's
 * text links to]. The last column may have other content: `extra` has its title, and functions that make
 * and update it.
 */
export class Table {
  constructor(caption, columns, extra = null) {
    this.columns = columns;
    this.body = make("tbody");
    const heads = columns.map(([title, , kind]) => make("th", { scope: "col", class: kind }, title));
    if (extra) heads.push(make("th", { scope: "col" }, extra.title));
    // (Focusable, as keys scroll a table that is wider than the page.)
    this.element = make(
      "div", { class: "wide", role: "region", tabindex: 0, "aria-label": caption },
      make(
        "table", { class: "cards" },
        make("caption", {}, caption), make("thead", {}, make("tr", {}, ...heads)), this.body,
      ),
    );
    this.rows = new Rows(
      this.body,
      (row, key) => {
        const cells = columns.map(([title, , kind, link], number) => {
          const content = link ? [make("a")] : [];
          return number === 0
            ? make("th", { scope: "row", class: kind }, ...content)
            : make("td", { "data-title": title, class: kind }, ...content);
        });
        if (extra) cells.push(make("td", {}, extra.make(row, key)));
        return make("tr", {}, ...cells);
      },
      (element, row) => {
        columns.forEach(([, text, , link], number) => {
          const cell = element.children[number];
          setText(link ? cell.firstChild : cell, text(row));
          if (link) setAttribute(cell.firstChild, "href", link(row));
        });
        extra?.update?.(element.lastChild.firstChild, row);
      },
    );
  }

  show(entries) {
    this.rows.show(entries);
  }
}

/** Makes a labelled choice; options are [value, text]. */
export function choice(label, options, onchange) {
  const select = make("select", { onchange: () => onchange(select.value) });
  for (const [value, text] of options) select.append(make("option", { value }, text));
  return { element: make("label", {}, label, select), select };
}
