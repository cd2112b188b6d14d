// Questions that a view asks again and again while it is open.

import { ask } from "./store.js";

const REFRESH_MS = 2000;
// Each reading of a cluster asks its API server.
const CLUSTER_REFRESH_MS = 10000;

/** Returns the interval for what a cluster's API server is asked for. */
export function intervalOf(store) {
  return () => (store.service.home === "kubernetes" ? CLUSTER_REFRESH_MS : REFRESH_MS);
}

/** A pause between two questions, which can be cut short. */
export class Pause {
  constructor() {
    this.wake = () => {};
  }

  async wait(milliseconds) {
    await new Promise((wake) => {
      this.wake = wake;
      this.timer = setTimeout(wake, milliseconds);
    });
  }

  end() {
    clearTimeout(this.timer);
    this.wake();
  }
}

/** Asks the server at an interval until it is closed; `interval` returns milliseconds, `take` gets each answer, or the problem. */
export class Poll {
  constructor(path, parameters, interval, take) {
    Object.assign(this, { path, parameters, interval, take });
    this.isOpen = true;
    this.pause = new Pause();
    this.loop();
  }

  async loop() {
    while (this.isOpen) {
      this.isChanged = false;
      let [answer, problem] = [null, ""];
      try {
        answer = await ask(this.path, this.parameters);
      } catch (error) {
        problem = error.message;
      }
      if (!this.isOpen) return;
      if (this.isChanged) continue;
      this.take(answer, problem);
      await this.pause.wait(this.isChanged ? 0 : this.interval());
    }
  }

  /** Asks something else from the next time on. */
  set(parameters) {
    this.parameters = parameters;
  }

  /** Asks something else at once. */
  change(parameters) {
    this.set(parameters);
    this.now();
  }

  /** Asks at once; an answer to what was asked before is not taken. */
  now() {
    this.isChanged = true;
    this.pause.end();
  }

  close() {
    this.isOpen = false;
    this.pause.end();
  }
}
