"""What is done on the machines of `stress.shared_home`, and what must be true of each answer."""

from __future__ import annotations

import collections
import dataclasses
import json
import random
import subprocess
import threading
import time
from pathlib import Path

from harness.deadlines import deadline
from harness.processes import REPOSITORY
from shared_pathways_service.runtime.embedded.job_files import REWRITE_INTERVAL_S
from stress.shared_home.boots import SPS, Boot, Session
from stress.shared_home.jobs import Jobs, Submission, command_of

__all__ = ["Machine", "World"]

#: Names of jobs that both machines want. (Those of jobs of failed machines stay in use.)
_NAMES = [f"job-{number}" for number in range(6)]
_MOST_JOBS = 3
_PAUSE_S = 0.05
#: Seconds that a service needs to end a job which it learns to be another machine's.
GRACE_S = deadline(15.0)
#: Of answers: the command may succeed in a moment; the job is another machine's.
_LATER = "try again in a moment"
_ELSEWHERE = "belongs to the service of"


@dataclasses.dataclass
class World:
    """What the machines share.

    Attributes:
      scratch: A directory for their files.
      work: The directory in which jobs are submitted.
      faults: What was wrong.
      long_jobs: The part of jobs that take minutes.
      done: How often what was done.
      kills: How often what was killed: services, machines.
    """

    scratch: Path
    work: Path
    jobs: Jobs
    faults: list[str]
    long_jobs: float = 0.0
    done: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    kills: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    sessions: list[Session] = dataclasses.field(default_factory=list)

    def certain(self) -> list[Session]:
        """Returns the sessions that certainly run."""
        return [session for session in [*self.sessions] if session.is_certain]


class Machine:
    """A machine by its name, through its boots, and what is done there, on one thread."""

    def __init__(self, name: str, world: World, seed: int) -> None:
        self.name = name
        self._world = world
        self._draw = random.Random(f"{seed}-{name}")
        self.boot = Boot(name, world.scratch)
        self._turn = 0

    def restart(self) -> None:
        """Fails, and boots again, unless it has to notice something; called on any thread."""
        if not self._unnoticed():
            self.boot.fail()
            self.boot = Boot(self.name, self._world.scratch)
            self._world.kills["machine"] += 1

    def kill_service(self) -> None:
        """Kills its supervisor, unless it has to notice something; called on any thread."""
        if not self._unnoticed() and self.boot.kill_service():
            self._world.kills["service"] += 1

    def _unnoticed(self, name: str = "") -> list[Submission]:
        """Returns its jobs, or that of a name, of which it may not know that they have ended."""
        now = time.time()
        return [
            job
            for job in self._world.jobs.all()
            if job.boot is self.boot and job.is_long and now < (job.cancelled_at or 0.0)
            if name in ("", job.name)
        ]

    def live(self, stop: threading.Event) -> None:
        """Does one thing after the other until it is stopped."""
        actions = {
            self.submit: 6,
            self.cancel: 2,
            self.cancel_elsewhere: 1,
            self.take_over: 2,
            self.list: 2,
            self.reap: 1,
            self.use: 1,
            self.begin: 2,
            self.end: 1,
        }
        while not stop.wait(_PAUSE_S):
            if self.boot.has_failed:
                continue
            [action] = self._draw.choices([*actions], [*actions.values()])
            self._turn += 1
            action()
            self.drop_ended()

    # ---- sessions

    def begin(self) -> None:
        """Begins a session, if there is none."""
        if self.sessions() or self._has_long_job():
            return
        session = Session(self.boot)
        if fault := session.begin():
            self._world.faults.append(fault)
        if session.name:
            self._count("session")
            self._world.sessions.append(session)

    def end(self) -> None:
        """Ends a session, or kills its program."""
        if self._draw.random() < 0.7:
            self.tell_to_end()
            return
        for session in self.sessions():
            self._world.sessions.remove(session)
            self._count("session killed")
            session.kill()

    def tell_to_end(self) -> None:
        """Ends its sessions."""
        for session in self.sessions():
            self._world.sessions.remove(session)
            if fault := session.end():
                self._world.faults.append(fault)

    def drop_ended(self) -> None:
        """Removes sessions that have ended, as those of a killed service."""
        for session in self.sessions():
            if session.has_ended or session.boot is not self.boot:
                self._world.sessions.remove(session)
                if fault := session.end():
                    self._world.faults.append(fault)

    def sessions(self) -> list[Session]:
        """Returns the sessions that were begun here, and not ended."""
        return [one for one in self._world.sessions if one.boot.name == self.name]

    # ---- jobs

    def submit(self) -> None:
        """Submits a job, under a name that may be in use."""
        world, draw, boot = self._world, self._draw, self.boot
        if len(self.jobs()) >= _MOST_JOBS:
            return
        retries = draw.choice([0, 1, 2])
        habits = [habit for habit in ("stubborn", "leaves") if draw.random() < 0.5]
        key = f"{self.name}-{self._turn}"
        name = draw.choice([key, draw.choice(_NAMES)])
        job = Submission(key=key, name=name, boot=boot, retries=retries)
        codes = draw.choice([(0,), (3, 0), (3,)])
        seconds = draw.uniform(0.1, 4.0)
        # (A service has two slices, one of which is left for others.)
        if draw.random() < world.long_jobs and not self.sessions() and not self._has_long_job():
            job.is_long, seconds = True, 2 * REWRITE_INTERVAL_S
        job.seconds = seconds
        command = command_of(job.key, seconds, codes, habits)
        world.jobs.add(job)
        began = time.time()
        words = ("submit", f"--name={job.name}", f"--retries={retries}", "--", *command)
        done = self._sps(boot, *words, directory=world.work)
        if done.returncode == 0:
            job.accepted = True
            world.jobs.look()
            if job.record is None:
                world.faults.append(f"{job} was taken, and has no record")
        elif any(text in done.stderr for text in self._refusals(job.name)):
            job.accepted = False
        else:
            self._check(boot, began, done)
        self._count({True: "job", False: "refused job", None: "unknown job"}[job.accepted])

    def _refusals(self, name: str) -> list[str]:
        """Returns texts by which a job of this name may be refused."""
        connected = ["is the name of a connection"] if self._unnoticed(name) else []
        return ["you have an active job", _LATER, *connected]

    def cancel(self) -> None:
        """Cancels a job of this machine, often one whose service was just killed."""
        boot, jobs = self.boot, self.jobs()
        if not jobs:
            return
        job = self._draw.choice(jobs)
        if self._draw.random() < 0.5:
            self.kill_service()
        job.cancel_asked = True
        began = time.time()
        done = self._sps(boot, "cancel", job.name)
        is_active = job in self._world.jobs.look()
        if done.returncode and _ELSEWHERE in done.stderr and not is_active:
            return  # it had ended, and another machine has used its name
        if self._check(boot, began, done):
            job.cancelled_at = time.time()
            if is_active or self._world.jobs.is_running(job):
                self._world.faults.append(f"{job} was cancelled, and goes on: {done.stdout}")

    def cancel_elsewhere(self) -> None:
        """Tries to cancel a job of another machine, which is refused."""
        others = [job for job in self._world.jobs.look() if job.boot.boot_id != self.boot.boot_id]
        if others:
            self.try_to_cancel(self._draw.choice(others))

    def try_to_cancel(self, job: Submission) -> None:
        """Tries to cancel a job of another machine, which was active a moment ago."""
        boot, began = self.boot, time.time()
        done = self._sps(boot, "cancel", job.name)
        if done.returncode == 0 and job in self._world.jobs.look():
            self._world.faults.append(f"{job} was cancelled on {boot.name}: {done.stdout}")
        elif done.returncode and _ELSEWHERE not in done.stderr:
            self._check(boot, began, done)

    def cancel_silent(self, job: Submission) -> None:
        """Cancels a job of a machine which has been silent for long, as others may do just now."""
        boot, began, job.cancel_asked = self.boot, time.time(), True
        self._check(boot, began, self._sps(boot, "cancel", job.name))

    def take_over(self) -> None:
        """Cancels a job of another machine, which seems to have been silent, as one that slept."""
        boot, world, began = self.boot, self._world, time.time()
        for job in world.jobs.look():
            if job.boot.name != self.name and job.is_long and not job.cancel_asked:
                job.cancel_asked = True
                world.jobs.make_silent(job)
                done = self._sps(boot, "cancel", job.name)
                if done.returncode == 0:
                    self._count("job taken over")
                    job.cancelled_at = time.time() + REWRITE_INTERVAL_S + GRACE_S
                elif _ELSEWHERE not in done.stderr:
                    self._check(boot, began, done)
                return

    def _has_long_job(self) -> bool:
        return any(job.is_long for job in self.jobs())

    def jobs(self) -> list[Submission]:
        """Returns the active jobs of this boot."""
        return [job for job in self._world.jobs.look() if job.boot is self.boot]

    # ---- commands

    def list(self) -> None:
        """Lists, and looks for what must be in it."""
        boot, world, began = self.boot, self._world, time.time()
        sessions, jobs = world.certain(), world.jobs.look()
        done = self._sps(boot, "list", "--json")
        if not self._check(boot, began, done):
            return
        listed = json.loads(done.stdout)
        names = [(item["name"], item["host"]) for item in listed]
        for session in sessions:
            if session.is_certain and (session.name, session.boot.name) not in names:
                world.faults.append(f"{session.name} of {session.boot.name} is not in {names}")
        hosts = {item["name"]: item["job"]["host"] for item in listed if item["job"]}
        still = world.jobs.look()
        for job in jobs:
            if job in still and hosts.get(job.name) != job.boot.name:
                world.faults.append(f"{job} is not in {hosts}")

    def reap(self) -> None:
        """Deletes what dead programs left behind."""
        boot, began = self.boot, time.time()
        self._check(boot, began, self._sps(boot, "reap"))

    def use(self) -> None:
        """Connects for a moment, which also sweeps the journal.

        It waits for jobs at most: a service that is started without a request for slices has two,
        and a machine has at most one session.
        """
        boot, began = self.boot, time.time()
        done = self._sps(boot, "run", "--queue-timeout=600", "--", "true")
        self._check(boot, began, done)

    # ---- internals

    def _sps(
        self, boot: Boot, *words: str, directory: Path = REPOSITORY
    ) -> subprocess.CompletedProcess[str]:
        return boot.run(*SPS, *words, directory=directory)

    def _check(self, boot: Boot, began: float, done: subprocess.CompletedProcess[str]) -> bool:
        """Returns whether a command succeeded; one that fails without a cause is a fault."""
        words = " ".join(done.args[done.args.index(SPS[-1]) + 1 :][:2])
        self._count(f"sps {words.split()[0]}")
        if done.returncode and not boot.was_disturbed(began) and _LATER not in done.stderr:
            said = f"{done.stdout[-1000:]}{done.stderr[-2000:]}"
            self._world.faults.append(f"`sps {words}` on {boot.name}: {done.returncode}: {said}")
        return done.returncode == 0

    def _count(self, what: str) -> None:
        self._world.done[what] += 1
