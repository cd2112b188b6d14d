// The page: its navigation, the notice about a service that does not answer, and one view at a time.

import { Actions } from "./actions.js";
import { make, setAttribute, setText } from "./dom.js";
import { ConnectionView } from "./connection.js";
import { JobView, JobsView } from "./jobs.js";
import { OverviewView } from "./overview.js";
import { RunView } from "./run.js";
import { SlicesView } from "./slices.js";
import { Store, ask } from "./store.js";
import { TenantsView } from "./tenants.js";
import { TimelineView } from "./timeline.js";
import { UsageView } from "./usage.js";
import { ago } from "./words.js";

// By name: title, view, and the entry of the navigation that it belongs to.
const VIEWS = {
  overview: ["Overview", OverviewView, "overview"],
  jobs: ["Jobs", JobsView, "jobs"],
  job: ["Job", JobView, "jobs"],
  slices: ["Slices", SlicesView, "slices"],
  tenants: ["Queue and tenants", TenantsView, "tenants"],
  timeline: ["Timeline", TimelineView, "timeline"],
  usage: ["Usage", UsageView, "usage"],
  run: ["Training", RunView, "run"],
  connection: ["Connection", ConnectionView, "tenants"],
};
// Texts such as "12 s ago" are brought up to date this often.
const TICK_MS = 1000;
const SITE = "Shared Pathways";

const store = new Store();
const actions = new Actions();
const page = document.getElementById("page");
let view = null;
let title = "";
let scheduled = false;

/** Shows the view that the address names. */
function route() {
  const [wanted, subject = ""] = location.hash.slice(1).split("/");
  const name = Object.hasOwn(VIEWS, wanted) ? wanted : "overview";
  const [text, View, entry] = VIEWS[name];
  title = text;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${entry}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const isFirst = view === null;
  view?.close?.();
  view = new View(store, actions, textOf(subject));
  page.replaceChildren(make("h2", {}, title), ...view.elements);
  if (!isFirst) {
    page.focus();
    scrollTo(0, 0);
  }
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
  const service = document.getElementById("service");
  const known = address ? `${home === "kubernetes" ? "Service in a cluster" : "Embedded service"} ${version}, started ${ago(since)}` : "";
  setText(service, [known, actions.user ? `signed in as ${actions.user}` : ""].filter(Boolean).join(" · "));
  setAttribute(service, "title", address ? `at ${address}` : "");
  const [condition, elapsed] = problem();
  setAttribute(document.getElementById("notice"), "class", condition ? "problem" : "");
  setText(document.getElementById("condition"), condition);
  setText(document.getElementById("elapsed"), elapsed);
  showTab(Boolean(condition));
  view.show();
}

/** Shows the state of the service in the title and the icon of the browser's tab. */
function showTab(isAway) {
  const slices = [...store.rows.slices.values()];
  const held = slices.filter((slice) => slice.tenant).length;
  const lost = slices.filter((slice) => slice.state === "lost").length;
  const waiting = store.rows.queue.size ? `, ${store.rows.queue.size} waiting` : "";
  const state = isAway ? "no answer: " : slices.length ? `${held}/${slices.length}${waiting}${lost ? `, ${lost} lost` : ""} · ` : "";
  const shown = `${state}${title} - ${SITE}`;
  if (document.title !== shown) document.title = shown;
  setAttribute(document.getElementById("icon"), "href", `static/icon${isAway || lost ? "_alarm" : ""}.svg`);
}

/** Returns what does not answer, which a screen reader announces, and since when, which it does not. */
function problem() {
  if (!store.hasLogin) return ["Your login has ended; reload the page.", ""];
  if (store.lostAt !== null) {
    const lost = new Date(store.lostAt).toISOString();
    return ["The server of this page (sps ui) does not answer; trying again.", `Last answer ${ago(lost)}.`];
  }
  const { unreachable_since: since, error, hint } = store.service;
  if (!since) return ["", ""];
  const why = hint ? `${error} (${hint})` : error;
  return [`The service does not answer; trying again. ${why}`, `Last answer ${ago(since)}.`];
}

// The token stays in the cookie, not in the address, the history or a bookmark.
const address = new URL(location.href);
address.searchParams.delete("token");
history.replaceState(null, "", address);

/** Shows the link to the runs if there are any. */
async function offerRuns() {
  const { runs } = await ask("api/runs", {});
  document.getElementById("runs").hidden = !runs.length;
}

// (The address keeps naming the view.)
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  page.focus();
});
store.listeners.add(schedule);
await actions.load().catch(() => {});  // without an answer the page is read-only
// (On a page for several people: jobs are their users' own.)
document.getElementById("jobs-link").hidden = Boolean(actions.user);
addEventListener("hashchange", route);
setInterval(schedule, TICK_MS);
route();
store.follow();
offerRuns().catch(() => {});  // without an answer there is no link
