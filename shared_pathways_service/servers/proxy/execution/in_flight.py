"""Operations of one placement that were started, and have not settled."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import Protocol

__all__ = ["InFlight"]

#: The most operations, and bytes of their results; one alone may have more.
_MOST = 64
_MOST_BYTES = 256 << 20
#: Once the oldest was started so many seconds ago, there are at most two: what is in flight cannot
#: be called back, and what comes later, also of other sessions, waits for it.
_BRIEF_S = 0.05


class _Started(Protocol):
    def add_callback(self, callback: Callable[[], None]) -> bool:
        """Calls back when it settles; False if it has."""


class InFlight:
    """Counts operations from their start until they settle. Thread-safe.

    All waits end when the operations settle, be it by the loss of the placement.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._nbytes = 0
        # When each was started, the oldest first.
        self._started: dict[object, float] = {}

    def enter(self, operation: _Started, nbytes: int, *, waits: bool) -> bool:
        """Counts an operation once there is room for it; False if there is none, and it waits not.

        Args:
          operation: The operation, before its start.
          nbytes: The bytes of its results.
          waits: Whether to wait for room.
        """
        with self._changed:
            while not self._has_room(nbytes):
                if not waits:
                    return False
                self._changed.wait()
            self._started[operation] = time.monotonic()
            self._nbytes += nbytes
        leave = functools.partial(self._leave, operation, nbytes)
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

    def _has_room(self, nbytes: int) -> bool:
        count = len(self._started)
        if not count:
            return True
        if count >= _MOST or self._nbytes + nbytes > _MOST_BYTES:
            return False
        return count < 2 or time.monotonic() - next(iter(self._started.values())) < _BRIEF_S

    def _leave(self, operation: object, nbytes: int) -> None:
        with self._changed:
            del self._started[operation]
            self._nbytes -= nbytes
            self._changed.notify_all()
