"""One profile of this proxy and its executors."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from typing import Any

from google.protobuf.message import DecodeError

from shared_pathways_service.patience import timeouts
from shared_pathways_service.patience.factor import Timeout
from shared_pathways_service.protocol import xplane_pb2 as pb
from shared_pathways_service.runtime.glog import glog
from shared_pathways_service.servers.devices.status_errors import Code, StatusError, from_exception
from shared_pathways_service.servers.proxy.memory import HostCharge, HostMemory
from shared_pathways_service.servers.proxy.profiles.clocks import Offset, offset_of
from shared_pathways_service.servers.proxy.profiles.planes import Origin, began_at, written
from shared_pathways_service.servers.proxy.profiles.recorded_process import Levels, RecordedProcess

__all__ = ["Profile"]

#: Round trips to a clock at each end of a profile.
_ROUNDS = 4


class Profile:
    """A profile, from `start` to `finish` or `drop`. Thread-safe.

    Args:
      processes: The processes to profile.
      most_s: Seconds after which it ends by itself; what it has is kept.
      most_bytes: The most bytes of all processes together; each gets an equal part.
      memory: Accounts for what is kept.
      on_end: Called once when no process is profiled any more.

    Attributes:
      notes: What is missing, and why.
    """

    def __init__(
        self,
        processes: Sequence[RecordedProcess],
        *,
        most_s: float,
        most_bytes: int,
        memory: HostMemory,
        on_end: Callable[[], object],
    ) -> None:
        self.notes: list[str] = []
        self._processes = list(processes)
        self._most_s = most_s
        self._part = most_bytes // max(1, len(processes))
        self._memory = memory
        self._on_end = on_end
        self._lock = threading.Lock()
        self._is_over = False
        self._kept: dict[RecordedProcess, tuple[bytes, HostCharge | None]] = {}
        seconds = min(most_s, threading.TIMEOUT_MAX)
        self._timer = threading.Timer(seconds, self._expire)
        self._timer.name, self._timer.daemon = "profile-end", True

    def start(self, levels: Levels) -> None:
        """Begins the profile of each process.

        Raises:
          StatusError: No process can be profiled.
        """
        with self._lock:
            self._start_all(levels)
        # (Without a thread there is no profile: its end must be sure.)
        self._timer.start()

    def finish(self) -> None:
        """Ends the profile of each process, and keeps them; later calls have no effect."""
        with self._lock:
            self._finish()

    def drop(self) -> None:
        """Ends everything, and forgets it."""
        self._timer.cancel()
        with self._lock:
            if not self._is_over:
                for process in self._processes:
                    process.drop()
                self._end()
            self._kept.clear()
        if self._timer.ident is not None:
            self._timer.join()

    def files(self, began_ns: int, client: Offset) -> Iterator[tuple[str, bytes]]:
        """Yields the name and the content of each file, with its times on the client's clock.

        Args:
          began_ns: When the client's own profile began, by its clock; 0: it has none.
          client: How far this process's clock is ahead of the client's.
        """
        with self._lock:
            kept = {process: raw for process, (raw, _) in self._kept.items()}
        origins = {
            process: Origin(
                name=process.name,
                devices=process.devices,
                offset=client.plus(offset_of(process.samples) if process.samples else Offset()),
            )
            for process in kept
        }
        if not began_ns:
            times = (
                began_at(_parsed(raw)) - origins[process].offset.offset_ns
                for process, raw in kept.items()
            )
            began_ns = max(1, min(times, default=1))
        for process, raw in kept.items():
            data = written(_parsed(raw), origins[process], began_ns)
            yield f"{process.file}.xplane.pb", data

    # ---- while the lock is held

    def _start_all(self, levels: Levels) -> None:
        self._await(lambda process: process.start(levels), timeouts.PROFILE_START)
        if not self._processes:
            self._end()
            raise StatusError(Code.UNAVAILABLE, f"no process can be profiled: {self.notes}")
        self._read_clocks()

    def _finish(self) -> None:
        if self._is_over:
            return
        self._read_clocks()
        stopped = self._await(lambda process: process.stop(self._part), timeouts.PROFILE_COLLECTION)
        for process, raw in stopped.items():
            try:
                _parsed(raw)
                charge = self._memory.charge(len(raw), "a profile")
            except StatusError as error:
                self._leave_out(process, error)
            else:
                self._kept[process] = (raw, charge)
        self._end()

    def _read_clocks(self) -> None:
        for _ in range(_ROUNDS):
            self._await(lambda process: process.read_clock(), timeouts.PROFILE_REPLY)

    def _await(
        self, ask: Callable[[RecordedProcess], futures.Future[Any]], timeout: Timeout
    ) -> dict[RecordedProcess, Any]:
        """Asks all processes, and leaves out those that fail or do not answer in time."""
        # (This process last: it answers before its call returns.)
        asked = {process: ask(process) for process in reversed(self._processes)}
        futures.wait(asked.values(), timeout.s)
        answers: dict[RecordedProcess, Any] = {}
        for process, future in asked.items():
            if not future.done():
                late = f"it did not answer within {timeout.s:g} s"
                self._leave_out(process, StatusError(Code.DEADLINE_EXCEEDED, late))
            elif (error := future.exception()) is not None:
                self._leave_out(process, from_exception(error))
            else:
                answers[process] = future.result()
        return answers

    def _leave_out(self, process: RecordedProcess, error: StatusError) -> None:
        process.drop()
        self._processes.remove(process)
        self.notes.append(f"the profile has no planes of {process.name}: {error.message}")

    def _end(self) -> None:
        self._is_over = True
        self._on_end()

    # ---- on the timer's thread

    def _expire(self) -> None:
        with self._lock:
            if self._is_over:
                return
            limit = f"{self._most_s:g} seconds, which is the limit (--trace_s)"
            self.notes.append(f"the profile of the proxy ended after {limit}")
            glog("W", f"A profile is ended after {limit}")
            with contextlib.suppress(Exception):  # whatever it is, the client finds no files
                self._finish()


def _parsed(raw: bytes) -> pb.XSpace:
    try:
        return pb.XSpace.FromString(raw)
    except DecodeError as error:
        raise StatusError(Code.INTERNAL, f"its profile cannot be read: {error}") from error
