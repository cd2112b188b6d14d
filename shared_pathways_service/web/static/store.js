// The state of the service as the server last sent it, and the stream that keeps it up to date.

import { Colours } from "./colours.js";

const NAMES = ["service", "slices", "executors", "tenants", "queue", "reservations", "plans"];
// The server sends a sign of life every 5 seconds.
const SILENCE_MS = 15000;

export class Store {
  constructor() {
    this.rows = Object.fromEntries(NAMES.map((name) => [name, new Map()]));
    this.listeners = new Set();
    this.colours = new Colours();
    /** When this page lost its server, in milliseconds since the epoch; null: it is there. */
    this.lostAt = null;
    this.loaded = false;
    /** Whether the login, if there is one, has not ended. */
    this.hasLogin = true;
    /** Counts changes of slices, after which the history has more. */
    this.sliceChanges = 0;
  }

  get service() {
    return this.rows.service.get("service") ?? {};
  }

  /** Follows the server, and reconnects for ever. */
  follow() {
    const source = new EventSource("api/stream");
    this.heard();
    source.addEventListener("state", (event) => this.replace(JSON.parse(event.data)));
    source.addEventListener("changes", (event) => this.change(JSON.parse(event.data)));
    source.addEventListener("alive", () => this.heard());
    // The login behind this stream has to be shown again.
    source.addEventListener("again", () => {
      source.close();
      this.follow();
    });
    source.onerror = () => {
      this.lose();
      // The browser reconnects by itself, except after a refusal.
      if (source.readyState === EventSource.CLOSED) this.refused();
    };
  }

  /** Tries again, unless the user has to log in, which no request of a page can do. */
  async refused() {
    const answer = await fetch("api/actions", { redirect: "manual" }).catch(() => null);
    if (answer?.status === 401 || answer?.type === "opaqueredirect") {
      this.hasLogin = false;
      this.tell();
    } else setTimeout(() => this.follow(), 2000);
  }

  heard() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.lose(), SILENCE_MS);
  }

  found() {
    this.heard();
    this.lostAt = null;
  }

  lose() {
    this.lostAt ??= Date.now();
    this.tell();
  }

  replace(state) {
    this.found();
    for (const name of NAMES) this.rows[name] = new Map(Object.entries(state[name]));
    this.loaded = this.rows.service.size > 0;
    this.sliceChanges += 1;
    this.tell();
  }

  change(changes) {
    this.found();
    for (const [name, { set, gone }] of Object.entries(changes)) {
      for (const [key, row] of Object.entries(set)) this.rows[name].set(key, row);
      for (const key of gone) this.rows[name].delete(key);
    }
    this.loaded = true;
    if (changes.slices) this.sliceChanges += 1;
    this.tell();
  }

  tell() {
    for (const listener of this.listeners) listener();
  }
}

/** Asks the server; throws an Error with its words if it cannot answer. */
export async function ask(path, parameters) {
  const response = await fetch(`${path}?${new URLSearchParams(parameters)}`).catch(() => {
    throw new Error("The server of this page does not answer.");
  });
  if (response.ok) return response.json();
  const told = await response.json().catch(() => ({ error: "The server refused the request." }));
  throw new Error(told.hint ? `${told.error} (${told.hint})` : told.error);
}
