// The view of submitted jobs, and that of one of them with its output.

import { Facts, Table, card, chip, choice, make, setChip, setText } from "./dom.js";
import { LogBox } from "./log_box.js";
import { Poll, intervalOf } from "./polling.js";
import { addressOf, amounts, ago, jobAddressOf, moment, span } from "./words.js";

const ACTIVE = ["queued", "running", "retrying"];
const STATES = [...ACTIVE, "succeeded", "failed", "cancelled", "lost"];

// (A lost one may go on with the next service.)
const isActive = (job) => ACTIVE.includes(job.state) || (job.state === "lost" && !job.ended);

function durationOf(job) {
  if (!job.started || (job.state === "lost" && !job.ended)) return "";
  const end = job.ended ? Date.parse(job.ended) : Date.now();
  return span(Math.max(0, Math.round((end - Date.parse(job.started)) / 1000)));
}

function attemptsOf(job) {
  return job.retries ? `${job.attempt} of ${job.retries + 1}` : String(job.attempt);
}

/** Returns the choices for a job in its state. */
function choicesFor(job) {
  if (isActive(job)) {
    return [[`Cancel ${job.name}`, `End ${job.name}? Its program gets SIGTERM, and its slices are released.`, "cancel-job", { name: job.name }, "danger"]];
  }
  const question = `Submit ${job.command.join(" ")} again, as a new job with the same slices and directory? `
    + "Variables that were given with --env are not kept after a job's end: the new one has none of them.";
  return [["Submit again", question, "submit-again", { name: job.name }]];
}

export class JobsView {
  constructor(store, actions) {
    this.store = store;
    this.state = "";
    this.jobs = [];
    this.told = make("p", { class: "empty", role: "status" });
    const states = choice("State", [["", "all"], ["active", "active"], ...STATES.map((state) => [state, state])], (value) => {
      this.state = value;
      this.show();
    });
    const columns = [
      { title: "Job", text: (row) => row.name, link: (row) => jobAddressOf(row.name), sort: (row) => row.name },
      { title: "State", make: chip, update: (element, row) => setChip(element, row.state), sort: (row) => row.state },
      { title: "Program", text: (row) => row.command.join(" ") },
      { title: "Slices", text: (row) => amounts(row.slices) || "1" },
      { title: "Attempts", text: attemptsOf, kind: "number" },
      { title: "Submitted", text: (row) => ago(row.submitted), sort: (row) => Date.parse(row.submitted) },
      { title: "Duration", text: durationOf, kind: "number" },
      { title: "Exit", text: (row) => String(row.exit_code ?? ""), kind: "number" },
      { title: "Reason", text: (row) => row.reason },
    ];
    if (actions.allowed) {
      columns.push({
        title: "Change",
        make: (row, name) => make("button", { type: "button", class: "quiet", onclick: () => this.offer(actions, name) }),
        update: (button, row) => {
          setText(button, isActive(row) ? "Cancel" : "Submit again");
          button.setAttribute("aria-label", `${button.textContent} ${row.name}`);
          button.classList.toggle("danger", isActive(row));
        },
      });
    }
    this.table = new Table("Your submitted jobs", columns);
    this.elements = [make("div", { class: "tools" }, states.element), this.told, this.table.element];
    this.poll = new Poll("api/jobs", {}, intervalOf(store), (answer, problem) => {
      this.jobs = answer?.jobs ?? this.jobs;
      this.problem = problem;
      this.isKnown ||= Boolean(answer);
      this.isShared = answer?.jobs === null;
      this.show();
    });
  }

  close() {
    this.poll.close();
  }

  offer(actions, name) {
    const job = this.jobs.find((one) => one.name === name);
    if (job) actions.offer(name, choicesFor(job), () => this.poll.now());
  }

  show() {
    const found = this.jobs.filter((job) => !this.state || job.state === this.state || (this.state === "active" && isActive(job)));
    const none = this.isShared ? "Submitted jobs are their users' own: this page, which several people use, shows none."
      : this.jobs.length ? "No job is in this state." : "You have no submitted jobs. In a terminal, sps submit python train.py submits one.";
    setText(this.told, this.problem ? `The jobs are not known: ${this.problem}` : found.length || !this.isKnown ? "" : none);
    this.table.element.hidden = !found.length;
    this.table.show(found.map((job) => [job.name, job]));
  }
}

export class JobView {
  constructor(store, actions, name) {
    this.store = store;
    this.name = name;
    this.job = null;
    this.state = chip();
    this.told = make("p", { class: "empty", role: "status" });
    this.facts = new Facts();
    this.act = make("button", { type: "button", onclick: () => this.job && actions.offer(name, choicesFor(this.job), () => this.poll.now()) });
    this.act.hidden = true;
    this.mayAct = actions.allowed;
    this.output = new LogBox(`Output of ${name}`, "The program has written nothing yet.");
    this.connection = make("a", { href: addressOf(name) }, "Its connection, with slices, decisions and the proxy's log");
    this.elements = [
      make("p", { class: "subject" }, name, " ", this.state),
      this.told,
      card("The job", this.facts.element, make("p", {}, this.connection), this.act),
      card("Output of the program", ...this.output.elements),
    ];
    this.poll = new Poll("api/jobs", {}, intervalOf(store), (answer, problem) => this.take(answer, problem));
    this.outputPoll = new Poll("api/job-output", { name }, intervalOf(store), (answer, problem) => {
      this.output.show(answer?.lines, this.output.text ? "" : problem);
    });
  }

  close() {
    this.poll.close();
    this.outputPoll.close();
  }

  take(answer, problem) {
    const found = answer?.jobs?.find((job) => job.name === this.name);
    this.job = found ?? this.job;
    const gone = answer && !found ? "There is no job of this name now: its files were deleted, or replaced." : "";
    setText(this.told, problem || gone);
    this.show();
  }

  show() {
    const { job } = this;
    if (!job) return;
    setChip(this.state, job.state);
    this.facts.show([
      ["Program", job.command.join(" ")],
      ["Directory", job.workdir],
      ["Slices", amounts(job.slices) || "1 of the service's first type"],
      ["Attempts", attemptsOf(job)],
      ["Submitted", moment(job.submitted)],
      ["Started", moment(job.started)],
      ["Ended", moment(job.ended)],
      ["Duration", durationOf(job)],
      ["Exit code", job.exit_code === null ? "" : String(job.exit_code)],
      ["Reason", job.reason],
      ["Machine", job.host],
    ]);
    this.act.hidden = !this.mayAct;
    setText(this.act, isActive(job) ? "Cancel the job" : "Submit again");
    this.act.classList.toggle("danger", isActive(job));
  }
}
