"""Lanes: calls of functions that are made one after another, in the order of arrival."""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable

__all__ = ["Lanes", "NotCalled"]

#: The number of failed lanes to remember: messages of a few may still be in flight.
_REMEMBERED = 256

#: Makes a call, or answers it with the given error; returns whether it succeeded.
Call = Callable[["NotCalled | None"], bool]


class NotCalled(Exception):  # noqa: N818 - an answer
    """A function was not called, because an earlier call of the same program failed."""


class Lanes:
    """The lanes of one stream. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queues: dict[int, deque[Call]] = {}
        self._failed: deque[int] = deque(maxlen=_REMEMBERED)

    def enter(self, lane: int, call: Call) -> Callable[[], None] | None:
        """Puts a call into a lane; returns what makes it, or None if a thread already does.

        In lane 0 a call is made at once.
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
