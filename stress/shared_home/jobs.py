"""Jobs of `stress.shared_home`: their program, its notes, and what must be true of both."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import itertools
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from harness.deadlines import deadline
from shared_pathways_service.runtime.embedded.job_files import SILENT_AGE_S, JobFiles, JobRecord

__all__ = ["Boot", "Jobs", "Note", "Submission", "command_of", "faults_of", "make_silent"]

#: What the program of a job notes: what, when, where and in which attempt.
Note = dict[str, Any]

#: Notes its start and its end. A lock, which a process that it leaves behind has as well, shows
#: another run at the same time. With code 0 it has succeeded.
_PROGRAM = """
import fcntl, json, os, platform, signal, sys, time
key, seconds, codes, habits = sys.argv[1:]
attempt = int(os.environ["SPS_JOB_ATTEMPT"])
boot = open("/proc/sys/kernel/random/boot_id").read().strip()
notes = os.open(f"{key}.notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
def note(what, **more):
    about = {"what": what, "time": time.time(), "host": platform.node(), "boot": boot, **more}
    about |= {"attempt": attempt, "pid": os.getpid(), "uid": os.environ["SPS_JOB_ID"]}
    os.write(notes, (json.dumps(about) + "\\n").encode())
lock = os.open(f"{key}.lock", os.O_RDWR | os.O_CREAT, 0o600)
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    note("twice")
note("start")
if "stubborn" in habits:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "leaves" in habits and os.fork() == 0:
    os.setsid()
    while True:
        time.sleep(60)
time.sleep(float(seconds))
code = int(codes.split(",")[min(attempt, codes.count(",") + 1) - 1])
note("end", code=code)
sys.exit(code)
"""
_KEY_AT = 5
#: Seconds before another attempt, at most.
_BETWEEN_ATTEMPTS_S = 10.0
#: Seconds in which a program may go on, and end by itself, once its service was killed: the longest
#: that its runner waits on a busy machine. And those in which it starts once its service let it.
_END_S = 60.0
_START_S = deadline(5.0)


def command_of(key: str, seconds: float, codes: Sequence[int], habits: Sequence[str]) -> list[str]:
    """Returns the command of a job.

    Args:
      key: Names its files, in the directory of its submission.
      seconds: How long each attempt takes.
      codes: The exit codes of its attempts; the last one is that of all later ones.
      habits: Of ``stubborn`` (it ignores SIGTERM) and ``leaves`` (a process, behind).
    """
    codes_text = ",".join(map(str, codes))
    words = (key, f"{seconds:.2f}", codes_text, "+".join(habits))
    command = [sys.executable, "-I", "-S", "-c", _PROGRAM, *words]
    assert command[_KEY_AT] == key
    return command


class Boot(Protocol):
    """One boot of a machine.

    Attributes:
      name: The host name.
      boot_id: The boot's id.
    """

    name: str
    boot_id: str

    def was_disturbed(self, since: float, until: float = ...) -> bool:
        """Whether its service was killed, or it failed, between two moments."""


@dataclasses.dataclass(kw_only=True)
class Submission:
    """One call of `sps submit`.

    Attributes:
      boot: Where it was made.
      accepted: Whether the service took it; None: its answer did not come.
      cancel_asked: Whether its end was requested.
      cancelled_at: When it must have ended after that, in seconds since the epoch, as all times.
      is_long: Whether it takes minutes.
      seconds: How long each of its attempts takes.
      record: Its record when it was last seen.
      is_gone: Whether there is no record of it any more: another job has its name.
    """

    key: str
    name: str
    boot: Boot
    retries: int
    accepted: bool | None = None
    cancel_asked: bool = False
    cancelled_at: float | None = None
    is_long: bool = False
    seconds: float = 0.0
    record: JobRecord | None = None
    is_gone: bool = False

    @property
    def is_active(self) -> bool:
        """Whether it was taken, and had not ended when all were last looked at."""
        return self.record is not None and not self.record.is_ended and not self.is_gone

    @property
    def longest_s(self) -> float:
        """How long it takes if each attempt is made, with the pauses and starts between them."""
        return (self.retries + 1) * (self.seconds + _BETWEEN_ATTEMPTS_S)

    @property
    def state(self) -> str:
        """Its state, in one word."""
        if self.record is None:
            return "not taken"
        if self.is_gone and not self.record.is_ended:
            return "replaced"
        return self.record.state

    def __str__(self) -> str:
        return f"the job {self.name} ({self.key}) of {self.boot.name}"


class Jobs:
    """All submissions; several threads use it.

    Args:
      files: Of the shared home.
      directory: In which all jobs are submitted.
      report: Gets what is wrong.
    """

    def __init__(self, files: JobFiles, directory: Path, report: Callable[[str], object]) -> None:
        self._files = files
        self._directory = directory
        self._report = report
        self._lock = threading.Lock()
        self._by_key: dict[str, Submission] = {}

    def add(self, submission: Submission) -> None:
        """Adds one that is about to be made."""
        with self._lock:
            self._by_key[submission.key] = submission

    def all(self) -> list[Submission]:
        """Returns all."""
        return [*self._by_key.values()]

    def look(self) -> list[Submission]:
        """Reads all records; returns the active jobs."""
        with self._lock:
            seen = set()
            for record in self._files.records():
                self._see(self._by_key[record.command[_KEY_AT]], record)
                seen.add(record.uid)
            for job in self._by_key.values():
                job.is_gone = job.record is not None and job.record.uid not in seen
            return [job for job in self._by_key.values() if job.is_active]

    def _see(self, job: Submission, record: JobRecord) -> None:
        before = job.record
        if before is not None and before.uid != record.uid:
            self._report(f"{job} was taken twice: {before} and {record}")
        if before is not None and before.is_ended and before.state != record.state:
            self._report(f"{job} had ended ({before.state}), and is {record.state} now")
        job.record = record

    def make_silent(self, job: Submission) -> None:
        """Makes a record old, as that of a service which has not run for long."""
        make_silent(self._files.output(job.name).with_name("job.json"))

    def faults(self) -> Iterator[str]:
        """Yields what is wrong with any job, once all have ended."""
        for job in self._by_key.values():
            for fault in faults_of(job, self.notes(job), self._successor(job)):
                yield f"{job}: {fault}"
            if self.is_running(job):
                yield f"{job}: a process of it still runs"

    def notes(self, job: Submission) -> list[Note]:
        """Returns what its program noted."""
        path = self._directory / f"{job.key}.notes"
        return [*map(json.loads, path.read_text().splitlines())] if path.exists() else []

    def _successor(self, job: Submission) -> JobRecord | None:
        """Returns the record of the job that replaced one, if any did."""
        later = [
            other.record
            for other in self._by_key.values()
            if other.name == job.name and other.record is not None and job.record is not None
            if other.record.submitted_at > job.record.submitted_at
        ]
        return min(later, key=lambda record: record.submitted_at, default=None)

    def is_running(self, job: Submission) -> bool:
        """Whether a process of a job runs that must have ended, as its program has a lock."""
        path = self._directory / f"{job.key}.lock"
        if not path.exists():
            return False
        with path.open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False


def make_silent(path: Path) -> None:
    """Makes a file old, as that of a machine which has not run for long."""
    with contextlib.suppress(FileNotFoundError):
        long_ago = path.stat().st_mtime - SILENT_AGE_S - 60.0
        os.utime(path, (long_ago, long_ago))


def faults_of(
    job: Submission, notes: Sequence[Note], successor: JobRecord | None = None
) -> Iterator[str]:
    """Yields what is wrong with a job that has ended, by its record and the notes of its program.

    Of a service that is killed, the next one does not know how an attempt ended meanwhile.

    Args:
      job: The job.
      notes: Of its program.
      successor: The record of the next job of its name.
    """
    yield from _wrong_runs(job, notes)
    for note in notes:
        if note["boot"] != job.boot.boot_id:
            yield f"it ran on another machine: {note}"
        if job.cancelled_at is not None and note["time"] > job.cancelled_at:
            yield f"cancelled at {job.cancelled_at}, it went on: {note}"
        if successor is not None and note["time"] > successor.submitted_at:
            yield f"it went on beside its successor {successor.uid}: {note}"
    if job.is_gone and job.record is not None and not job.record.is_ended:
        # How it ended was not seen.
        if successor is None:
            yield f"its record is gone: {job.record}"
    elif job.record is not None:
        yield from _contradictions(job, job.record, notes)
    elif job.accepted or notes:
        yield f"it has no record (accepted: {job.accepted}): {notes}"


def _wrong_runs(job: Submission, notes: Sequence[Note]) -> Iterator[str]:
    starts = [note for note in notes if note["what"] == "start"]
    if any(note["what"] == "twice" for note in notes):
        yield f"two runs at once: {notes}"
    if len(starts) > job.retries + 1:
        yield f"{len(starts)} attempts with {job.retries} retries: {starts}"
    if len({note["attempt"] for note in starts}) != len(starts):
        yield f"an attempt ran twice: {starts}"
    if len({note["uid"] for note in notes}) > 1:
        yield f"it was started under two ids: {notes}"
    for index, (note, then) in enumerate(itertools.pairwise(notes), 1):
        is_again = _has_succeeded(note) and then["what"] == "start"
        if is_again and not job.boot.was_disturbed(_earliest_kill(notes[:index]), then["time"]):
            yield f"it had succeeded, and was started again: {note}, {then}"


def _contradictions(job: Submission, record: JobRecord, notes: Sequence[Note]) -> Iterator[str]:
    """Yields what the record says, and the notes do not."""
    said = f"its record says {record.state} ({record.reason}), code {record.exit_code}: {notes}"
    if job.accepted is False:
        yield f"it was refused, but {said}"
    if record.host != job.boot.name:
        yield f"its record names the host {record.host}"
    if any(note["attempt"] > record.attempt for note in notes):
        yield f"its record has only {record.attempt} attempts: {notes}"
    last = notes[-1] if notes else None
    can_be_unknown = job.boot.was_disturbed(_earliest_kill(notes))
    may_try_again = record.attempt <= job.retries
    if record.state == "succeeded":
        is_right = _has_succeeded(last)
    elif record.state == "failed":
        code = last and last.get("code")
        is_right = bool(code) and code == record.exit_code and not may_try_again
    elif record.state == "cancelled":
        is_right = job.cancel_asked
    else:
        # Lost, or active on a machine that has failed.
        is_right = can_be_unknown and not (record.state == "lost" and may_try_again)
    if not is_right:
        yield said


def _earliest_kill(notes: Sequence[Note]) -> float:
    """Returns when a kill may have happened for which no service knows how the last attempt ended.

    Its program may have noted its start, and its end, after the kill.
    """
    starts = [note["time"] - _START_S for note in notes if note["what"] == "start"]
    return max(starts[-1], notes[-1]["time"] - _END_S) if starts else 0.0


def _has_succeeded(note: Note | None) -> bool:
    return note is not None and note["what"] == "end" and note["code"] == 0
