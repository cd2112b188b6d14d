"""A callback that is called once several things have happened."""

from __future__ import annotations

import itertools
from collections.abc import Callable

__all__ = ["Countdown"]


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
