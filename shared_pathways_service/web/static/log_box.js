// A box with the text of a program, which follows its end while the reader is there.

import { pieces, settled } from "./ansi.js";
import { make, setText } from "./dom.js";

export class LogBox {
  /** @param label Names the box. @param none What is said where nothing is written. */
  constructor(label, none) {
    this.none = none;
    this.text = "";
    this.told = make("p", { class: "empty" });
    this.box = make("pre", { class: "log", tabindex: "0", role: "region", "aria-label": label });
    this.box.hidden = true;
  }

  get elements() {
    return [this.told, this.box];
  }

  /** Shows lines; null: those that are there, as there are no newer ones, with the reason. */
  show(lines, problem = "") {
    const text = lines ? settled(lines).join("\n") : this.text;
    setText(this.told, problem || (text ? "" : this.none));
    if (text === this.text) return;
    this.text = text;
    const { box } = this;
    const isAtEnd = box.hidden || box.scrollHeight - box.scrollTop - box.clientHeight < 8;
    box.hidden = !text;
    box.replaceChildren(...pieces(text).map(([piece, kind]) => (kind ? make("span", { class: kind }, piece) : piece)));
    if (isAtEnd) box.scrollTop = box.scrollHeight;
  }
}
