// Actions on the service, where the server allows them: each is asked back in a dialog.

import { make, setText } from "./dom.js";
import { ask } from "./store.js";

export class Actions {
  constructor() {
    this.token = null;
    this.content = make("form", { onsubmit: (event) => this.submit(event) });
    this.result = make("p", { role: "status", "aria-live": "polite" });
    this.title = make("h2", { id: "action" });
    this.close = makeButton("Close", () => this.dialog.close());
    this.dialog = make(
      "dialog", { "aria-labelledby": "action" }, this.title, this.content, this.result, this.close,
    );
    document.body.append(this.dialog);
  }

  get allowed() {
    return this.token !== null;
  }

  /** Asks the server whether the page may act. */
  async load() {
    ({ csrf_token: this.token } = await ask("/api/actions", {}));
  }

  /** Opens the dialog with choices; each is [text, question, action, its fields]. */
  offer(title, choices) {
    this.open(title, choices.map((choice) => makeButton(choice[0], () => this.askBack(choice))));
  }

  /** Opens the dialog with inputs; `choiceOf` returns what is chosen by them. */
  fillIn(title, inputs, choiceOf) {
    this.open(title, [...inputs, make("button", {}, title)]);
    this.choiceOf = choiceOf;
  }

  open(title, content) {
    this.choiceOf = null;
    setText(this.title, title);
    setText(this.result, "");
    this.content.replaceChildren(...content);
    if (!this.dialog.open) this.dialog.showModal();
    this.content.querySelector("button, input, select").focus();
  }

  submit(event) {
    event.preventDefault();
    if (this.choiceOf) this.askBack(this.choiceOf());
  }

  askBack([text, question, action, fields]) {
    const yes = makeButton(text, () => this.send(action, fields, yes));
    this.choiceOf = null;
    this.content.replaceChildren(make("p", {}, question), yes);
    yes.focus();
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
      this.close.focus();
    }
  }

  async post(action, fields) {
    try {
      const response = await fetch(`/api/actions/${action}`, {
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

function makeButton(text, onclick) {
  return make("button", { type: "button", onclick }, text);
}

/** Returns the choices for a slice in its state. */
export function choicesFor(slice) {
  const moves = slice.tenant ? ` ${slice.tenant} moves to another slice, and loses what is on this one.` : "";
  const cordon = ["Cordon", `Stop new placements on ${slice.id}? Its holder keeps it.`, "cordon", { slice: slice.id }];
  const drain = ["Drain", `Take ${slice.id} out of service?${moves}`, "drain", { slice: slice.id }];
  const undo = ["Uncordon", `Put ${slice.id} back into service?`, "uncordon", { slice: slice.id }];
  const choices = [];
  if (slice.state !== "cordoned") choices.push(cordon);
  if (slice.state !== "draining") choices.push(drain);
  if (slice.state === "cordoned" || slice.state === "draining") choices.push(undo);
  return choices;
}

/** Returns the choice for a connection. */
export function choiceFor(name) {
  return [`Delete ${name}`, `End ${name}? Its program loses its slices, and the work on them.`, "delete", { name }];
}
