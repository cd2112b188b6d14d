"""The files of submitted jobs: one directory per name, which only its user can enter.

`job.json` is the job's record, `request.json` its request with its environment (removed when the
job has ended), and `output.log` the output of its program. The supervisor writes them; others
only remove jobs that have ended.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from shared_pathways_service.constants import NO_LOCKS
from shared_pathways_service.patience import timeouts
from shared_pathways_service.runtime.embedded.job_processes import kill_job_processes
from shared_pathways_service.runtime.embedded.log_directory import cut_log, open_log
from shared_pathways_service.runtime.embedded.state_file import write_private
from shared_pathways_service.runtime.glog import glog
from shared_pathways_service.runtime.processes import Identity, Life, signal_process
from shared_pathways_service.runtime.user_directories import make_private

__all__ = ["SILENT_AGE_S", "REWRITE_INTERVAL_S", "JobFiles", "JobRecord", "Replaced"]

_VERSION = 1
#: Limits: ended jobs that are kept, and for how many seconds.
ENDED_KEPT = 50
ENDED_KEPT_S = 14 * 86_400.0
#: Bytes of a long output's older part that are kept.
OLDER_KEPT = 16 << 20


#: Seconds after which its service writes the record of an active job again, and after which a
#: service elsewhere has been silent for so long that its user may end the job here.
REWRITE_INTERVAL_S = 60.0
SILENT_AGE_S = 900.0
#: Seconds between two looks at a killed runner.
_LOOK_S = 0.02


class Replaced(Exception):  # noqa: N818 - what has happened
    """A job's record is that of another job of the same name, or others have ended the job."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class JobRecord:
    """A job as its file describes it.

    Attributes:
      state: As in `JobStatus`; of a job that was active when its service ended, the state then.
      uid: Identifies this job among all jobs of its name; its processes are marked with it.
      runtime_dir: The runtime directory of its service.
      supervisor: The process that is responsible for it.
      host: The name of its machine.
      runner: The process of its last attempt; None: none was started.
      slices: Requested instance types; empty: one slice of the service's first type.
      submitted_at: Seconds since the epoch, as all times here.
      started_at: When its program was last started; None: not in this attempt, or not yet.
    """

    name: str
    uid: str
    state: str
    command: tuple[str, ...]
    workdir: str
    slices: tuple[str, ...]
    retries: int
    runtime_dir: str
    supervisor: Identity
    submitted_at: float
    host: str = ""
    runner: Identity | None = None
    attempt: int = 0
    started_at: float | None = None
    ended_at: float | None = None
    exit_code: int | None = None
    reason: str = ""

    @property
    def is_ended(self) -> bool:
        """Whether it has ended, and will not be started again."""
        return self.ended_at is not None

    @property
    def is_orphaned(self) -> bool:
        """Whether its service ended while it was active.

        One of another machine, which shares this directory, has not as far as we can see.
        """
        return not self.is_ended and self.supervisor.has_ended()

    @property
    def is_elsewhere(self) -> bool:
        """Whether a service of another machine or container is responsible for it."""
        return not self.is_ended and self.supervisor.life() is Life.UNKNOWN

    def kill_processes(self) -> None:
        """Kills what is left of its last attempt, once its service has ended."""
        if self.runner is not None and signal_process(self.runner, signal.SIGKILL):
            # Until then it may start the program.
            deadline = timeouts.KILLED_PROCESSES.deadline()
            while self.runner.is_alive() and deadline.left_s:
                time.sleep(_LOOK_S)
        kill_job_processes(self.uid)

    def to_json(self) -> dict[str, Any]:
        """Returns it as plain data."""
        return {"version": _VERSION, **dataclasses.asdict(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> JobRecord:
        """Makes the record that `to_json` described; fields of a newer version are dropped."""
        names = {field.name for field in dataclasses.fields(cls)}
        fields = {name: value for name, value in data.items() if name in names}
        runner = data.get("runner")
        return cls(
            **{
                **fields,
                "command": tuple(data["command"]),
                "slices": tuple(data["slices"]),
                "supervisor": Identity.from_json(data["supervisor"]),
                "runner": None if runner is None else Identity.from_json(runner),
            }
        )


class JobFiles:
    """The jobs of one user, in a directory that need not exist."""

    def __init__(self, state_dir: Path) -> None:
        self._directory = state_dir / "jobs"

    def output(self, name: str) -> Path:
        """Returns the file with the output of a job's program."""
        return self._directory / name / "output.log"

    def request(self, name: str) -> Path:
        """Returns the file with the request of an active job."""
        return self._directory / name / "request.json"

    def create(self, record: JobRecord, request: Mapping[str, Any]) -> None:
        """Creates a job; replaces one of its name that has ended.

        Raises:
          Replaced: Another service has just created one of its name.
        """
        with self._locked():
            known = self.read(record.name)
            if known is not None and not known.is_ended and not known.is_orphaned:
                raise Replaced(record.name)
            self.remove(record.name)
            (self._directory / record.name).mkdir(mode=0o700)
            write_private(self.request(record.name), json.dumps(request).encode())
            open_log(self.output(record.name)).close()
            self._put(record)

    def write(self, record: JobRecord) -> None:
        """Replaces a job's record atomically; creates it again if others have removed it.

        Raises:
          Replaced: It is no longer that of this job, or says that it has ended, as others took it
            for lost.
        """
        with self._locked_if_possible():
            self._write(record)

    def silent_s(self, name: str) -> float:
        """Returns the seconds since a job's record was last written.

        The clock is that of the file system, as clocks of machines differ.
        """
        touched = self._record(name).stat().st_mtime
        with tempfile.NamedTemporaryFile(dir=self._directory) as now:
            return max(0.0, os.fstat(now.fileno()).st_mtime - touched)

    def end(self, record: JobRecord, *, instead_of: JobRecord | None = None) -> None:
        """Writes the record of a job that has ended, and removes its request.

        Args:
          record: The new record.
          instead_of: The record that the caller has judged; None: any of the job.

        Raises:
          Replaced: As of `write`, or another process has changed the record since.
        """
        with self._locked_if_possible():
            if instead_of is not None and self.read(record.name) != instead_of:
                raise Replaced(record.name)
            self._write(record)
            self.request(record.name).unlink(missing_ok=True)

    def read(self, name: str) -> JobRecord | None:
        """Returns a job; None if there is none, or its record is unreadable."""
        try:
            return JobRecord.from_json(json.loads(self._record(name).read_bytes()))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            glog("W", f"{self._record(name)} is ignored: {error!r}")
            return None

    def records(self) -> list[JobRecord]:
        """Returns all jobs, the oldest first."""
        names = [path.parent.name for path in self._directory.glob("*/job.json")]
        found = [record for record in map(self.read, names) if record is not None]
        return sorted(found, key=lambda record: (record.submitted_at, record.name))

    def remove(self, name: str) -> None:
        """Removes all files of a job that has ended, or of a name without a job."""
        directory = self._directory / name
        # First, so that a removal that is interrupted leaves no half of a job.
        self._record(name).unlink(missing_ok=True)
        if directory.exists():
            shutil.rmtree(directory)

    def forget_old(self) -> None:
        """Removes jobs that ended long ago, or before many others."""
        ended = [(record.ended_at, record.name) for record in self.records() if record.ended_at]
        limit = time.time() - ENDED_KEPT_S
        for index, (moment, name) in enumerate(sorted(ended, reverse=True)):
            if index >= ENDED_KEPT or moment < limit:
                with contextlib.suppress(OSError):
                    self.remove(name)

    def keep_small(self, name: str) -> None:
        """Limits the size of a job's output."""
        with contextlib.suppress(OSError):
            cut_log(self.output(name), OLDER_KEPT)

    def _write(self, record: JobRecord) -> None:
        known = self.read(record.name)
        if known is None:
            make_private(self._record(record.name).parent)
        elif known.uid != record.uid or (known.is_ended and known != record):
            raise Replaced(record.name)
        self._put(record)

    def _put(self, record: JobRecord) -> None:
        write_private(self._record(record.name), json.dumps(record.to_json()).encode())

    @contextlib.contextmanager
    def _locked_if_possible(self) -> Iterator[None]:
        """Locks as `_locked` does, but does without if another machine keeps the lock."""
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(Timeout):
                stack.enter_context(self._locked())
            yield

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Keeps other processes, also of machines that share the directory, from changing records.

        Without it, one could remove another's new job in place of an ended one. On a file system
        that has no locks there is none.

        Raises:
          Timeout: Another process has the lock.
        """
        make_private(self._directory)
        lock = FileLock(self._directory / ".lock", mode=0o600)
        try:
            lock.acquire(timeout=timeouts.SERVICE_LOCK.s)
        except NotImplementedError:
            pass  # (`filelock` raises it for ENOSYS.)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
        try:
            yield
        finally:
            lock.release()

    def _record(self, name: str) -> Path:
        return self._directory / name / "job.json"
