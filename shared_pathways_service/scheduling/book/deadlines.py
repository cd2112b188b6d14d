"""Schedules actions that become due without an event."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import TypeAlias

from shared_pathways_service.scheduling.book.actions import Actions

__all__ = ["Deadlines"]

#: Number of entries from which a sweep of those that are never due is worth its cost.
_MANY = 1000

#: Returns when the action is due; None: never.
Until: TypeAlias = Callable[[], float | None]
#: Acts, or returns the actions to carry out.
Act: TypeAlias = Callable[[], Actions | None]


class Deadlines:
    """A heap whose entries are checked when they come up, instead of being searched and removed.

    Each entry has a function that returns its actual due time: later than before (a worker beat
    meanwhile), or never (a tenant came back).
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Until, Act]] = []
        self._numbers = itertools.count()
        self._many = _MANY

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, until: Until, act: Act) -> None:
        """Has `act` called once `until()` has passed.

        Args:
          until: Called whenever the time that it last returned has come. It must not return an
            earlier time than before: an action that becomes due earlier is added anew.
          act: Called when it is due.
        """
        when = until()
        if when is None:
            return
        if len(self._heap) >= self._many:
            self._sweep()
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

    def take_due(self, now: float) -> Act | None:
        """Removes the earliest entry and returns what to do, if it is due."""
        when = self.next()
        if when is None or when > now or when == float("inf"):
            return None
        return heapq.heappop(self._heap)[3]

    def _sweep(self) -> None:
        """Removes entries that are never due: a year's wait that ended early would stay for a year.

        It runs when the entries have doubled since the last sweep, so its amortized cost per entry
        is constant.
        """
        self._heap = [entry for entry in self._heap if entry[2]() is not None]
        heapq.heapify(self._heap)
        self._many = max(_MANY, 2 * len(self._heap))
