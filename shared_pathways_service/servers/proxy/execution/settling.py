"""The end of operations: after all their parts, with callbacks in turn, not nested."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from shared_pathways_service.runtime.glog import glog
from shared_pathways_service.servers.devices.status_errors import StatusError

__all__ = ["Countdown", "Hold", "call_in_turn"]


class _Due(threading.local):
    """The callbacks that this thread still has to call; None: it calls none now.

    An operation that settles may settle the next, and so on: a long chain must not become a deep
    stack.
    """

    callbacks: deque[Callable[[], None]] | None = None


_due = _Due()


def call_in_turn(callbacks: Iterable[Callable[[], None]]) -> None:
    """Calls an operation's callbacks: now, or after those that this thread calls already."""
    due = _due.callbacks
    if due is not None:
        due.extend(callbacks)
        return
    due = _due.callbacks = deque(callbacks)
    try:
        while due:
            try:
                due.popleft()()
            except Exception as error:  # noqa: BLE001 - the others wait for theirs
                glog("E", f"a callback failed: {type(error).__name__}: {error}")
    finally:
        _due.callbacks = None


class Hold:
    """Parts of one operation that have not ended; `made` is what the work made before they did.

    Its operation's lock guards it.
    """

    __slots__ = ("count", "error", "made")

    def __init__(self) -> None:
        self.count = 0
        self.error: StatusError | None = None
        self.made: Sequence[Any] | None = None

    def keep(self, error: StatusError | None, made: Sequence[Any]) -> None:
        """Stores how the work ended, until its parts have."""
        self.made = made
        self.error = None if error is None else error.copy()

    def release(self, error: StatusError | None) -> Sequence[Any] | None:
        """Ends one part; returns what the work made if this was the last thing to end."""
        self.count -= 1
        self.error = self.error or error
        return None if self.count else self.made


class Countdown:
    """Calls `then` when it has been called `count` times, from 1 up. Thread-safe."""

    def __init__(self, count: int, then: Callable[[], None]) -> None:
        self._count = count
        self._then = then
        # One call of C: no two threads get the same number.
        self._next = itertools.count(1).__next__

    def __call__(self) -> None:
        """Counts one."""
        if self._next() == self._count:
            self._then()
