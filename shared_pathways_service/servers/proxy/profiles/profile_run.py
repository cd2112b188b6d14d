"""One profile of this proxy and its executors."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from typing import Any

from google.protobuf.message import DecodeError

from shared_pathways_service.patience import timeouts
from shared_pathways_service.patience.factor import Deadline, Timeout
from shared_pathways_service.protocol import xplane_pb2 as pb
from shared_pathways_service.runtime.glog import glog
from shared_pathways_service.servers.devices.status_errors import Code, StatusError, from_exception
from shared_pathways_service.servers.proxy.memory import HostCharge, HostMemory
from shared_pathways_service.servers.proxy.profiles.clocks import Offset, offset_of
from shared_pathways_service.servers.proxy.profiles.planes import Origin, began_at, written
from shared_pathways_service.servers.proxy.profiles.recorded_process import Levels, RecordedProcess

__all__ = ["File", "Profile", "Waits"]

#: Round trips to a clock at each end of a profile.
_ROUNDS = 4


@dataclasses.dataclass(frozen=True, slots=True)
class File:
    """A file of a profile, whose memory is charged while `charge` is referred to."""

    name: str
    data: bytes
    charge: HostCharge


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Waits:
    """How long a profile waits for its processes, and for its client."""

    start: Timeout = timeouts.PROFILE_START
    clocks: Timeout = timeouts.PROFILE_CLOCKS
    collection: Timeout = timeouts.PROFILE_COLLECTION
    unfetched: Timeout = timeouts.PROFILE_UNFETCHED


class Profile:
    """A profile, from `start` to `finish` or `drop`. Thread-safe.

    Args:
      processes: The processes to profile.
      most_s: Seconds after which it ends by itself; what it has is kept for a while.
      most_bytes: The most bytes of all processes together; each gets an equal part.
      memory: Accounts for what is kept.
      on_end: Called once when no process is profiled any more.
      waits: The time-outs.

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
        waits: Waits = Waits(),
    ) -> None:
        self.notes: list[str] = []
        self._processes = list(processes)
        self._most_s = most_s
        self._part = most_bytes // max(1, len(processes))
        self._memory = memory
        self._on_end = on_end
        self._waits = waits
        self._lock = threading.Lock()
        self._is_over = False
        self._is_forgotten = False
        self._kept: dict[RecordedProcess, tuple[bytes, HostCharge]] = {}
        #: Set to end the waits for processes.
        self._dropped: futures.Future[None] = futures.Future()
        self._timers: list[threading.Timer] = []

    def start(self, levels: Levels) -> None:
        """Begins the profile of each process.

        Raises:
          StatusError: No process can be profiled.
        """
        with self._lock:
            self._start_all(levels)
            # (Without a thread there is no profile: its end must be sure.)
            self._after(self._most_s, self._expire)

    def finish(self) -> None:
        """Ends the profile of each process, and keeps them; later calls have no effect."""
        with self._lock:
            self._finish()

    def drop(self) -> None:
        """Ends everything, and forgets it; a wait for a process ends at once."""
        with contextlib.suppress(futures.InvalidStateError):  # dropped before
            self._dropped.set_result(None)
        with self._lock:
            try:
                if not self._is_over:
                    for process in self._processes:
                        process.drop()
            finally:
                self._end()
                self._kept.clear()
                timers = list(self._timers)
        for timer in timers:
            timer.cancel()
            if timer.ident is not None:
                timer.join()

    def files(self, began_ns: int, client: Offset) -> Iterator[File]:
        """Yields each file, with its times on the client's clock, and keeps it no longer.

        Args:
          began_ns: When the client's own profile began, by its clock; 0: it has none.
          client: How far this process's clock is ahead of the client's.

        Raises:
          StatusError: It has been kept for too long.
        """
        with self._lock:
            if self._is_forgotten:
                waited_s = self._waits.unfetched.seconds
                text = f"the profile was not fetched within {waited_s:g} s of its end"
                raise StatusError(Code.DEADLINE_EXCEEDED, text)
            kept, self._kept = self._kept, {}
        spaces: dict[RecordedProcess, tuple[pb.XSpace, HostCharge]] = {}
        while kept:
            process, (raw, charge) = kept.popitem()
            try:
                spaces[process] = _parsed(raw), charge
            except StatusError as error:
                self._note(process, error)
            del raw, charge
        offsets = {
            process: client.plus(offset_of(process.samples) if process.samples else Offset())
            for process in spaces
        }
        if not began_ns:
            began = [
                at_ns - offsets[process].offset_ns
                for process, (space, _) in spaces.items()
                if (at_ns := began_at(space))
            ]
            began_ns = max(1, min(began, default=1))
        while spaces:
            process, (space, parsed) = spaces.popitem()
            origin = Origin(name=process.name, devices=process.devices, offset=offsets[process])
            data = written(space, origin, began_ns)
            del space, parsed
            try:
                charge = self._memory.charge(len(data), "a file of a profile")
            except StatusError as error:
                self._note(process, error)
                continue
            yield File(f"{process.file}.xplane.pb", data, charge)
            del data, charge

    def _note(self, process: RecordedProcess, error: StatusError) -> None:
        self.notes.append(f"the profile has no planes of {process.name}: {error.message}")

    # ---- while the lock is held

    def _start_all(self, levels: Levels) -> None:
        deadline = self._waits.start.deadline()
        self._await(lambda process: process.start(levels), deadline)
        if not self._processes:
            self._end()
            raise StatusError(
                Code.UNAVAILABLE, f"no process can be profiled: {'; '.join(self.notes)}"
            )
        self._read_clocks()

    def _finish(self) -> None:
        if self._is_over:
            return
        try:
            self._read_clocks()
            deadline = self._waits.collection.deadline()
            stopped = self._await(lambda process: process.stop(self._part), deadline)
            while stopped:
                process, raw = stopped.popitem()
                try:
                    self._kept[process] = raw, self._memory.charge(len(raw), "a profile")
                except StatusError as error:
                    self._note(process, error)
        except BaseException:
            for process in self._processes:
                process.drop()
            raise
        finally:
            self._end()
        # (Without a thread it is kept until the client's stream ends.)
        with contextlib.suppress(RuntimeError):
            self._after(self._waits.unfetched.s, self._forget)

    def _read_clocks(self) -> None:
        deadline = self._waits.clocks.deadline()
        for _ in range(_ROUNDS):
            self._await(lambda process: process.read_clock(), deadline)

    def _await(
        self, ask: Callable[[RecordedProcess], futures.Future[Any]], deadline: Deadline
    ) -> dict[RecordedProcess, Any]:
        """Asks all processes, and leaves out those that fail or do not answer in time."""
        # (This process last: it answers before its call returns.)
        asked = {process: ask(process) for process in reversed(self._processes)}
        left = {future for future in asked.values() if not future.done()}
        while left and not self._dropped.done() and deadline.left_s:
            _, waiting = futures.wait(
                {*left, self._dropped}, deadline.part_s, return_when=futures.FIRST_COMPLETED
            )
            left &= waiting
        answers: dict[RecordedProcess, Any] = {}
        for process, future in asked.items():
            if not future.done():
                late = "it did not answer in time"
                self._leave_out(process, StatusError(Code.DEADLINE_EXCEEDED, late))
            elif (error := future.exception()) is not None:
                self._leave_out(process, from_exception(error))
            else:
                answers[process] = future.result()
        return answers

    def _leave_out(self, process: RecordedProcess, error: StatusError) -> None:
        process.drop()
        self._processes.remove(process)
        self._note(process, error)

    def _end(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._on_end()

    def _after(self, seconds: float, act: Callable[[], None]) -> None:
        """Acts on a thread of its own later, unless the profile is dropped."""
        if self._dropped.done():
            return
        timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), act)
        timer.name, timer.daemon = "profile-end", True
        self._timers = [*(old for old in self._timers if old.is_alive()), timer]
        timer.start()

    # ---- on the timers' threads

    def _expire(self) -> None:
        with self._lock:
            if self._is_over:
                return
            limit = f"{self._most_s:g} seconds, which is the limit (--trace_s)"
            self.notes.append(f"the profile of the proxy ended after {limit}")
            glog("W", f"A profile is ended after {limit}")
            try:
                self._finish()
            except Exception as error:  # noqa: BLE001 - whatever it is, the profile has ended
                self.notes.append(f"its end failed: {error}")
                glog("E", f"The end of a profile failed: {error}")

    def _forget(self) -> None:
        with self._lock:
            self._is_forgotten = bool(self._kept)
            self._kept.clear()


def _parsed(raw: bytes) -> pb.XSpace:
    try:
        space = pb.XSpace.FromString(raw)
    except DecodeError as error:
        raise StatusError(Code.INTERNAL, f"its profile cannot be read: {error}") from error
    if not began_at(space) and not any(line.events for p in space.planes for line in p.lines):
        raise StatusError(Code.NOT_FOUND, "its profile is empty")
    return space
