"""When something has to be looked at again, although no event came."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import TypeAlias

__all__ = ["Deadlines"]

#: Returns until when there is nothing to do; None: never again.
Until: TypeAlias = Callable[[], float | None]


class Deadlines:
    """A heap whose entries are checked when they come up, instead of being searched and removed.

    Each entry has a function that says when it is really due: later than it was once (a worker beat
    meanwhile), or never (a tenant came back).
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Until, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, until: Until, act: Callable[[], None]) -> None:
        """Has `act` called once `until()` has passed.

        Args:
          until: Asked whenever the time that it gave last has come. It never goes back to an
            earlier time: what becomes due earlier is added anew.
          act: What is done then.
        """
        when = until()
        if when is not None:
            heapq.heappush(self._heap, (when, next(self._numbers), until, act))

    def next(self) -> float | None:
        """Returns the earliest time at which something is due; None: never."""
        while self._heap:
            when, number, until, act = self._heap[0]
            true = until()
            if true is None:
                heapq.heappop(self._heap)
            elif true > when:
                heapq.heapreplace(self._heap, (true, number, until, act))
            else:
                return when
        return None

    def take_due(self, now: float) -> Callable[[], None] | None:
        """Removes the earliest entry and returns what to do, if it is due."""
        when = self.next()
        if when is None or when > now or when == float("inf"):
            return None
        return heapq.heappop(self._heap)[3]
