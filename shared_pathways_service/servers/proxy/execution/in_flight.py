"""Operations of one placement that were started, and have not settled."""

from __future__ import annotations

import math
import threading
import time
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
#: Less than the number of operations that can be left.
_NONE_WAITS: Final = -1


class _Started(Protocol):
    name: str


class Pace:
    """How long a program takes.

    Attributes:
      nanoseconds: Of its last run. (A sum of integers is exact, also after many were added and
        taken.)
    """

    __slots__ = ("nanoseconds",)

    def __init__(self, seconds: float = math.inf) -> None:
        self.measure(seconds)

    def measure(self, seconds: float) -> None:
        """Notes a run."""
        self.nanoseconds = round(min(seconds, _LONG_S) * 1e9)


class _Entry(NamedTuple):
    began: float
    nbytes: int
    pace: Pace
    #: The pace at its start.
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
        # How many may be left when those that wait go on.
        self._enough_left = _NONE_WAITS
        self._place = place
        self._current = ""
        # The operation that is recorded.
        self._recorded = ""

    def begin_alone(self, name: str, *, waits: bool) -> bool:
        """Records the queue's current operation once all others have settled.

        Returns False if some have not, and it does not wait.
        """
        with self._lock:
            while self._started:
                if not waits:
                    return False
                self._await(0)
            self._current = name
            self._record(name)
        return True

    def end(self) -> None:
        """Records the end of the queue's current operation, unless it was started."""
        if not self._current:
            return
        with self._lock:
            self._current = ""
            if not self._started:
                self._record("")

    def enter(self, operation: _Started, nbytes: int, pace: Pace, *, waits: bool) -> bool:
        """Counts an operation until `leave`, once there is room for it.

        Args:
          operation: The operation, before its start.
          nbytes: The bytes of its results.
          pace: That of its program, which is measured with each operation.
          waits: Whether to wait for room.

        Returns:
          False if there is no room, and it does not wait.
        """
        with self._lock:
            started = self._started
            if not self._has_room(nbytes, pace):
                if not waits:
                    return False
                self._await_room(nbytes, pace)
            if not started:
                self._record(operation.name)
            nanoseconds = pace.nanoseconds
            started[operation] = _Entry(time.monotonic(), nbytes, pace, nanoseconds)
            self._nbytes += nbytes
            self._nanoseconds += nanoseconds
        return True

    def leave(self, operation: _Started) -> None:
        """Ends what `enter` began: the operation has settled."""
        with self._lock:
            started, now = self._started, time.monotonic()
            began, nbytes, pace, nanoseconds = started.pop(operation)
            self._nbytes -= nbytes
            self._nanoseconds -= nanoseconds
            # (They run one after the other.)
            pace.measure(now - max(began, self._last_end))
            self._last_end = now
            oldest = next(iter(started), None)
            self._record(self._current if oldest is None else oldest.name)
            if len(started) <= self._enough_left:
                # (Those that must wait longer set it again.)
                self._enough_left = _NONE_WAITS
                self._changed.notify_all()

    def _has_room(self, nbytes: int, pace: Pace) -> bool:
        if not self._started:
            return True
        if len(self._started) >= _MOST:
            return False
        is_brief = self._nanoseconds + pace.nanoseconds <= _BRIEF_S * 1e9
        return is_brief and self._nbytes + nbytes <= _MOST_BYTES

    def _await_room(self, nbytes: int, pace: Pace) -> None:
        # Until half have settled: so many start together then, and none of them one by one.
        enough = len(self._started) // 2
        while len(self._started) > enough or not self._has_room(nbytes, pace):
            self._await(enough)

    def _await(self, enough_left: int) -> None:
        self._enough_left = max(self._enough_left, enough_left)
        self._changed.wait()

    def _record(self, name: str) -> None:
        if name == self._recorded:
            return
        self._recorded = name
        if name:
            self._place.begin(name)
        else:
            self._place.end()
