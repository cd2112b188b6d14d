// The page: its navigation, the notice about a service that does not answer, and one view at a time.

import { make, setText } from "./dom.js";
import { Store } from "./store.js";
import { ConnectionView } from "./connection.js";
import { SlicesView } from "./slices.js";
import { TenantsView } from "./tenants.js";
import { TimelineView } from "./timeline.js";
import { UsageView } from "./usage.js";
import { ago, passed, span } from "./words.js";

const VIEWS = {
  slices: ["Slices", SlicesView],
  tenants: ["Tenants and queue", TenantsView],
  timeline: ["Timeline", TimelineView],
  usage: ["Usage", UsageView],
  connection: ["Connection", ConnectionView],
};
// Texts such as "12 s ago" are brought up to date this often.
const TICK_MS = 1000;

const store = new Store();
const page = document.getElementById("page");
const notice = document.getElementById("notice");
let view = null;
let scheduled = false;

/** Shows the view that the address names. */
function route() {
  const [wanted, subject = ""] = location.hash.slice(1).split("/");
  if (wanted === "page") return;
  const name = Object.hasOwn(VIEWS, wanted) ? wanted : "slices";
  const [title, View] = VIEWS[name];
  document.title = `${title} - Shared Pathways Service`;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const isFirst = view === null;
  view?.close?.();
  view = new View(store, textOf(subject));
  page.replaceChildren(make("h2", {}, title), ...view.elements);
  if (!isFirst) page.focus();
  show();
}

/** Returns the text that a part of an address stands for; empty if it stands for none. */
function textOf(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return "";
  }
}

/** Brings the page up to date, once per frame however many changes arrive. */
function schedule() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(() => {
    scheduled = false;
    show();
  });
}

function show() {
  const { address, version, home, since } = store.service;
  setText(
    document.getElementById("service"),
    address ? `${home} service ${version} at ${address}, started ${ago(since)}` : "",
  );
  setText(notice, problem());
  view.show();
}

function problem() {
  if (store.lostAt !== null) {
    const seconds = Math.floor((Date.now() - store.lostAt) / 1000);
    return `The server of this page (sps ui) has not answered for ${span(seconds)}; trying again.`;
  }
  const { unreachable_since: since, error, hint } = store.service;
  if (!since) return "";
  const why = hint ? `${error} (${hint})` : error;
  return `The service has not answered for ${span(passed(since))}; trying again. ${why}`;
}

// The token stays in the cookie, not in the address, the history or a bookmark.
const address = new URL(location.href);
address.searchParams.delete("token");
history.replaceState(null, "", address);

store.listeners.add(schedule);
addEventListener("hashchange", route);
setInterval(schedule, TICK_MS);
route();
store.follow();
