"""Runs the executor that this host is assigned: at most one, and never one of another placement."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable

from shared_pathways_service.patience import timeouts
from shared_pathways_service.patience.factor import Timeout
from shared_pathways_service.runtime.executor_lines import ExecutorTag
from shared_pathways_service.runtime.glog import glog
from shared_pathways_service.servers.worker.executor_process import (
    Assignment,
    Command,
    ExecutorProcess,
)
from shared_pathways_service.servers.worker.executor_usage import Usage
from shared_pathways_service.servers.worker.orphans import reap_orphans, reaping_interval_s

__all__ = ["Ended", "ExecutorSupervisor", "Serving"]

_KILL = signal.SIGKILL
#: How many placements that were over are known, and what is said of one that is assigned again.
_KNOWN_ENDS = 1000
_ENDED_BEFORE = "ended before: this placement was over"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Serving:
    """The executor of a generation serves."""

    generation: int
    port: int
    token: str = dataclasses.field(repr=False)
    pid: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ended:
    """The executor of a generation ended by itself; there is no other one for it.

    Attributes:
      reason: How it ended, after its subject, e.g. "was killed by signal 9 (out of memory?)".
      exit_code: Its exit code; negative: the number of a signal.
    """

    generation: int
    reason: str
    exit_code: int


class ExecutorSupervisor:
    """Starts and kills executors on a thread of its own, as the host is assigned.

    The thread lives until `close`: on Linux, its children would be killed with it.
    """

    def __init__(
        self,
        command: Command,
        *,
        slice_id: str,
        host_index: int,
        report: Callable[[Serving | Ended], None],
        on_unfit: Callable[[str], None],
        serve_within: Timeout = timeouts.EXECUTOR_SERVES,
        end_within: Timeout = timeouts.EXECUTOR_KILLED,
        with_connection: Timeout = timeouts.EXECUTOR_CAUSE,
    ) -> None:
        """Starts without an assignment.

        Args:
          command: Builds the command line of an executor.
          slice_id: The slice of this host.
          host_index: The index of this host in it.
          report: Called on the thread with what is to be reported.
          on_unfit: Called with the reason, once, if this host cannot run executors: one did not
            serve, or could not be killed. None is started after it.
          serve_within: The time for an executor to serve.
          end_within: The time for it to end.
          with_connection: The time until one that ended with its connection is reported.
        """
        self._command = command
        self._slice_id = slice_id
        self._host_index = host_index
        self._report = report
        self._on_unfit = on_unfit
        self._serve_within = serve_within
        self._end_within = end_within
        self._with_connection = with_connection
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        # Guards the four below, and that a closed pipe is not written to.
        self._lock = threading.Lock()
        self._wanted: Assignment | None = None
        self._repeats = False
        self._closing = False
        self._closed = False
        # The thread's own, except that `measure` reads the first.
        self._running: ExecutorProcess | None = None
        self._serve_by = 0.0
        self._news: Serving | Ended | None = None
        self._report_by: float | None = None  # when the end in `_news` is due; None: it is reported
        self._last_code = 0
        #: Placements whose executor has ended here, with its exit code; the latest ones.
        self._over: dict[int, int] = {}
        self._thread = threading.Thread(target=self._run, name="executors", daemon=True)
        self._thread.start()

    def assign(self, assignment: Assignment | None) -> None:
        """Has the executor of this placement run, and no other; None: no executor."""
        with self._lock:
            self._wanted = assignment
        self._wake()

    def repeat_report(self) -> None:
        """Has reported again what was reported of the present assignment."""
        with self._lock:
            self._repeats = True
        self._wake()

    def measure(self) -> tuple[Assignment, Usage] | None:
        """Measures the executor that runs, on any thread; None: there is none, or no result."""
        running = self._running
        usage = None if running is None else running.meter.read()
        return None if running is None or usage is None else (running.assignment, usage)

    def close(self) -> None:
        """Kills the executor, and ends the thread; only the first call counts."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
        self._wake()
        self._thread.join()
        with self._lock:
            self._closed = True
            os.close(self._wake_read)
            os.close(self._wake_write)

    # ---- on the thread

    def _run(self) -> None:
        while True:
            with self._lock:
                wanted, closing = self._wanted, self._closing
                repeats, self._repeats = self._repeats, False
            running = self._running
            generation = 0 if wanted is None or closing else wanted.generation
            if running is not None and running.assignment.generation != generation:
                if not self._end(running):
                    return
                continue
            if closing:
                return
            if self._news is not None and self._news.generation != generation:
                self._news = self._report_by = None
            is_due = self._report_by is not None and time.monotonic() >= self._report_by
            if self._news is not None and (is_due or (repeats and self._report_by is None)):
                self._report_by = None
                self._report(self._news)
            if running is None and self._news is None and wanted is not None:
                if not self._start(wanted):
                    return
            elif running is not None and not self._look_at(running):
                return
            self._wait()

    def _start(self, wanted: Assignment) -> bool:
        # (A manager that has lost its state may believe a proxy whose placement was over.)
        if (code := self._over.get(wanted.generation)) is not None:
            self._say(Ended(generation=wanted.generation, reason=_ENDED_BEFORE, exit_code=code))
            return True
        tag = ExecutorTag(
            tenant=wanted.tenant,
            slice_id=self._slice_id,
            host=self._host_index,
            generation=wanted.generation,
        )
        try:
            self._running = ExecutorProcess(wanted, self._command, tag=tag, on_end=self._wake)
        except OSError as error:
            return self._give_up(f"the executor could not be started: {error}")
        self._serve_by = time.monotonic() + self._serve_within.s
        self._running.output.say(f"Process {self._running.pid} was started")
        return True

    def _look_at(self, running: ExecutorProcess) -> bool:
        """Sees whether an executor serves or has ended; returns False if the host is unfit."""
        running.read_report()
        running.output.pass_on()
        if running.has_ended:
            if not self._end(running):
                return False
            how = _how_ended(self._last_code)
            if not running.serves:
                return self._give_up(f"the executor {how} before it served{_last(running)}")
            ended = Ended(
                generation=running.assignment.generation, reason=how, exit_code=self._last_code
            )
            if self._last_code == 0:
                self._news, self._report_by = ended, time.monotonic() + self._with_connection.s
            else:
                self._say(ended)
        elif running.serves and self._news is None:
            self._say(
                Serving(
                    generation=running.assignment.generation,
                    port=running.port,
                    token=running.token,
                    pid=running.pid,
                )
            )
        elif not running.serves and time.monotonic() >= self._serve_by:
            return self._end(running) and self._give_up(
                f"the executor did not serve within {self._serve_within.s:g} s{_last(running)}"
            )
        return True

    def _say(self, news: Serving | Ended) -> None:
        self._news = news
        glog("I" if isinstance(news, Serving) else "W", f"Executor: {news}")
        self._report(news)

    def _end(self, running: ExecutorProcess) -> bool:
        """Kills an executor and waits for its end; returns False if the host is unfit."""
        self._running = None
        by_itself = running.has_ended
        try:
            code = running.kill(self._end_within.s)
            how = _how_ended(code) if by_itself else "was killed by its worker"
            running.output.say(f"Process {running.pid} {how}")
        except subprocess.TimeoutExpired as error:
            # (The executor's own end is reported with its command line.)
            left = error.cmd if isinstance(error.cmd, str) else f"process {running.pid}"
            return self._give_up(
                f"the executor was killed, but {left} did not end in {self._end_within.s:g} s"
            )
        self._last_code = code
        self._over[running.assignment.generation] = code
        if len(self._over) > _KNOWN_ENDS:
            del self._over[next(iter(self._over))]
        return True

    def _give_up(self, reason: str) -> bool:
        self._on_unfit(reason)
        return False

    def _wait(self) -> None:
        """Waits for another assignment, for news of the executor, or for its deadline."""
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        until = self._report_by
        if (running := self._running) is not None:
            if running.ready_pipe is not None:
                poll.register(running.ready_pipe, select.POLLIN)
            if running.output.pipe is not None:
                poll.register(running.output.pipe, select.POLLIN)
            if not running.serves:
                until = self._serve_by
            if (interval_s := reaping_interval_s()) is not None:
                reap_orphans(running.pid)
                next_s = time.monotonic() + interval_s
                until = next_s if until is None else min(until, next_s)
        poll.poll(None if until is None else max(0.0, until - time.monotonic()) * 1000 + 1)
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 4096)

    def _wake(self) -> None:
        with self._lock, contextlib.suppress(BlockingIOError):
            if not self._closed:
                os.write(self._wake_write, b".")


def _last(running: ExecutorProcess) -> str:
    text = running.output.last_text
    return f"; its last line: {text}" if text else ""


def _how_ended(code: int) -> str:
    if code > 0:
        return f"ended with exit code {code}"
    if code == 0:
        return "ended with the connection of its proxy"
    # (The kernel ends a process by this one when the memory of the machine or pod runs out.)
    return f"was killed by signal {-code}" + (" (out of memory?)" if code == -_KILL else "")
