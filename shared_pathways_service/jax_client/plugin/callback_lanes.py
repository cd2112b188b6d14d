"""Lanes: calls of functions that are made one after another, in the order of their coming.

Like the plug-in the file needs the standard library only: it is copied with it.
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable

__all__ = ["Lanes", "NotCalled"]

#: Lanes in which a call failed that are remembered: messages of a few may still be on their way.
_REMEMBERED = 256

#: Makes a call, or answers it with the error that it is given; returns whether it went well.
Call = Callable[["NotCalled | None"], bool]


class NotCalled(Exception):  # noqa: N818 - an answer
    """A function was not called, as one that the same program called before has failed."""


class Lanes:
    """The lanes of one stream. Thread-safe."""

    def __init__(self) -> None:
        """No lane has calls yet."""
        self._lock = threading.Lock()
        self._queues: dict[int, deque[Call]] = {}
        self._failed: deque[int] = deque(maxlen=_REMEMBERED)

    def enter(self, lane: int, call: Call) -> Callable[[], None] | None:
        """Puts a call into a lane; returns what makes it, None: a thread that is at it already.

        Args:
          lane: Its number; 0: none, and the call is made at once.
          call: What makes it.
        """
        if not lane:
            return functools.partial(_make, call)
        with self._lock:
            if (queue := self._queues.get(lane)) is not None:
                queue.append(call)
                return None
            self._queues[lane] = deque([call])
        return functools.partial(self._work_off, lane)

    def _work_off(self, lane: int) -> None:
        queue = self._queues[lane]
        while True:
            with self._lock:
                if not queue:
                    del self._queues[lane]
                    return
                call = queue.popleft()
                has_failed = lane in self._failed
            went_well = call(NotCalled(str(NotCalled.__doc__)) if has_failed else None)
            if not went_well and not has_failed:
                with self._lock:
                    self._failed.append(lane)


def _make(call: Call) -> None:
    call(None)
