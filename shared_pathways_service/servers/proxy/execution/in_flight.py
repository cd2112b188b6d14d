"""Operations of one placement that were started, and have not settled."""

from __future__ import annotations

import functools
import math
import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from shared_pathways_service.servers.serving.last_requests_file import Place

__all__ = ["InFlight", "Pace"]

#: The most operations, and bytes of their results; one alone may have more. (More operations cost
#: more each: what starts one by one also wakes its executor one by one.)
_MOST: Final = 32
_MOST_BYTES: Final = 256 << 20
#: The most seconds that several may take together, by their programs' last runs: what is in
#: flight cannot be called back, and what comes later, also of other sessions, waits for it.
_BRIEF_S: Final = 0.1
#: Stands for all longer times.
_LONG_S: Final = 1e9


class _Started(Protocol):
    name: str

    def add_callback(self, callback: Callable[[], None]) -> bool:
        """Calls back when it settles; False if it has."""


class Pace:
    """How long a program takes.

    Attributes:
      seconds: Of its last run.
    """

    __slots__ = ("seconds",)

    def __init__(self, seconds: float = math.inf) -> None:
        self.seconds = seconds


class _Entry(NamedTuple):
    began: float
    nbytes: int
    pace: Pace
    #: The pace at its start. (A sum of integers is exact, also after many were added and taken.)
    nanoseconds: int


class InFlight:
    """Counts operations from their start until they settle. Thread-safe.

    All waits end when the operations settle, be it by the loss of the placement.

    Args:
      place: Where the operation is recorded that runs: the oldest that was started, else the
        current one of the placement's queue.
    """

    def __init__(self, place: Place) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._started: dict[_Started, _Entry] = {}
        # The sums over these.
        self._nbytes = 0
        self._nanoseconds = 0
        self._last_end = -math.inf
        # How many may be left when those that wait for room go on; 0: none waits.
        self._enough_left = 0
        self._place = place
        self._current = ""
        # The operation that is recorded.
        self._recorded = ""

    def begin(self, name: str) -> None:
        """Records the queue's current operation, if nothing else runs."""
        with self._lock:
            self._current = name
            self._record()

    def end(self) -> None:
        """Records the end of the queue's current operation; it may have been started."""
        with self._lock:
            self._current = ""
            self._record()

    def enter(self, operation: _Started, nbytes: int, pace: Pace, *, waits: bool) -> bool:
        """Counts an operation once there is room for it; False if there is none, and it waits not.

        Args:
          operation: The operation, before its start.
          nbytes: The bytes of its results.
          pace: That of its program, which is measured with each operation.
          waits: Whether to wait for room.
        """
        with self._changed:
            if not self._has_room(nbytes, pace):
                if not waits:
                    return False
                self._await_room(nbytes, pace)
            entry = _Entry(time.monotonic(), nbytes, pace, _nanoseconds(pace))
            self._started[operation] = entry
            self._nbytes += nbytes
            self._nanoseconds += entry.nanoseconds
            self._record()
        leave = functools.partial(self._leave, operation)
        if not operation.add_callback(leave):
            leave()
        return True

    def is_empty(self, *, waits: bool) -> bool:
        """Whether all have settled; waits until they have if it is to."""
        if not self._started:
            return True
        with self._changed:
            while self._started:
                if not waits:
                    return False
                self._changed.wait()
        return True

    def _has_room(self, nbytes: int, pace: Pace) -> bool:
        if not self._started:
            return True
        if len(self._started) >= _MOST:
            return False
        is_brief = self._nanoseconds + _nanoseconds(pace) <= _BRIEF_S * 1e9
        return is_brief and self._nbytes + nbytes <= _MOST_BYTES

    def _await_room(self, nbytes: int, pace: Pace) -> None:
        # Until half have settled: so many start together then, and none of them one by one.
        enough = len(self._started) // 2
        while len(self._started) > enough or not self._has_room(nbytes, pace):
            self._enough_left = max(self._enough_left, enough)
            self._changed.wait()
        # (Others that wait were woken as well, and set it again.)
        self._enough_left = 0

    def _record(self) -> None:
        oldest = next(iter(self._started), None)
        name = self._current if oldest is None else oldest.name
        if name == self._recorded:
            return
        self._recorded = name
        if name:
            self._place.begin(name)
        else:
            self._place.end()

    def _leave(self, operation: _Started) -> None:
        now = time.monotonic()
        with self._changed:
            entry = self._started.pop(operation)
            self._nbytes -= entry.nbytes
            self._nanoseconds -= entry.nanoseconds
            # (They run one after the other.)
            entry.pace.seconds = now - max(entry.began, self._last_end)
            self._last_end = now
            self._record()
            if len(self._started) <= self._enough_left:
                self._changed.notify_all()


def _nanoseconds(pace: Pace) -> int:
    return round(min(pace.seconds, _LONG_S) * 1e9)
