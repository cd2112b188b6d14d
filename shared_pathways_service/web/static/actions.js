// Actions on the service, where the server allows them: each is asked back in a dialog.

import { make, setText } from "./dom.js";
import { ask } from "./store.js";

export class Actions {
  constructor() {
    this.token = null;
    /** The user that the page's proxy has verified; empty: there is no such proxy. */
    this.user = "";
    this.content = make("form", { onsubmit: (event) => this.submit(event) });
    this.result = make("p", { role: "status", "aria-live": "polite" });
    this.title = make("h2", { id: "action" });
    this.close = make("button", { type: "button", onclick: () => this.dialog.close() }, "Close");
    this.ends = make("div", { class: "ends" }, this.close);
    this.dialog = make(
      "dialog", { "aria-labelledby": "action" }, this.title, this.content, this.result, this.ends,
    );
    document.body.append(this.dialog);
  }

  get allowed() {
    return this.token !== null;
  }

  /** Asks the server whether the page may act, and who its user is. */
  async load() {
    ({ csrf_token: this.token, user: this.user = "" } = await ask("api/actions", {}));
  }

  /**
   * Opens the dialog with choices; each is [text, question, action, its fields, "danger" if it destroys]. A single
   * one is asked back at once. `done` is called after an action.
   */
  offer(title, choices, done = () => {}) {
    this.done = done;
    if (choices.length === 1) {
      this.open(title, []);
      this.askBack(choices[0]);
      return;
    }
    const buttons = choices.map((choice) =>
      make("button", { type: "button", class: choice[4] ?? null, onclick: () => this.askBack(choice) }, choice[0]));
    this.open(title, [make("div", { class: "menu" }, ...buttons)]);
  }

  /** Opens the dialog with inputs; `choiceOf` returns what is chosen by them. */
  fillIn(title, inputs, choiceOf) {
    this.done = () => {};
    this.open(title, inputs);
    const go = make("button", { class: "main" }, title);
    this.content.id = "filled-in";
    go.setAttribute("form", "filled-in");
    this.ends.append(go);
    this.choiceOf = choiceOf;
  }

  open(title, content) {
    this.choiceOf = null;
    setText(this.title, title);
    setText(this.result, "");
    setText(this.close, "Close");
    this.content.replaceChildren(...content);
    this.ends.replaceChildren(this.close);
    if (!this.dialog.open) this.dialog.showModal();
    (this.content.querySelector("button, input, select") ?? this.close).focus();
  }

  submit(event) {
    event.preventDefault();
    if (this.choiceOf) this.askBack(this.choiceOf());
  }

  askBack([text, question, action, fields, kind]) {
    const yes = make("button", { type: "button", class: kind ? `main ${kind}` : "main", onclick: () => this.send(action, fields, yes) }, text);
    this.choiceOf = null;
    this.content.replaceChildren(make("p", {}, question));
    setText(this.close, "Keep it as it is");
    this.ends.replaceChildren(this.close, yes);
    (kind === "danger" ? this.close : yes).focus();
  }

  async send(action, fields, button) {
    button.disabled = true;
    setText(this.result, "Asking the service …");
    const told = await this.post(action, fields);
    // (The dialog may be about something else by now.)
    if (!button.isConnected) return;
    button.disabled = false;
    setText(this.result, told.done ?? (told.hint ? `${told.error} (${told.hint})` : told.error));
    if (told.done) {
      this.content.replaceChildren();
      button.remove();
      setText(this.close, "Close");
      this.close.focus();
      this.done();
    }
  }

  async post(action, fields) {
    try {
      const response = await fetch(`api/actions/${action}`, {
        method: "POST",
        headers: { "Content-Type": "application/json", "X-CSRF-Token": this.token },
        body: JSON.stringify(fields),
      });
      return await response.json();
    } catch {
      return { error: "The server of this page does not answer." };
    }
  }
}

/** Returns the choices for a slice in its state. */
export function choicesFor(slice) {
  const moves = slice.tenant ? ` ${slice.tenant} moves to another slice, and loses what is on this one.` : "";
  const cordon = ["Cordon", `Stop new placements on ${slice.id}? Its holder keeps it.`, "cordon", { slice: slice.id }];
  const drain = ["Drain", `Take ${slice.id} out of service?${moves}`, "drain", { slice: slice.id }, slice.tenant ? "danger" : null];
  const undo = ["Uncordon", `Put ${slice.id} back into service?`, "uncordon", { slice: slice.id }];
  const choices = [];
  if (slice.state !== "cordoned") choices.push(cordon);
  if (slice.state !== "draining") choices.push(drain);
  if (slice.state === "cordoned" || slice.state === "draining") choices.push(undo);
  return choices;
}

/** Returns the choice to profile a connection. */
export function profileChoiceFor(name) {
  return ["Profile", `Profile the proxy and the executors of ${name} for 5 s? Its program goes on, a little slower.`, "profile", { name }];
}

/** Returns the choice to end a connection. */
export function choiceFor(name) {
  return [`Delete ${name}`, `End ${name}? Its program loses its slices, and the work on them.`, "delete", { name }, "danger"];
}
