"""Slices whose executors start: they do not answer yet, and are not lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping

from shared_pathways_service.patience import timeouts

__all__ = ["Starts", "start_text"]


class Starts:
    """Slices that start: each from the service's report until its first answer. Thread-safe.

    Args:
      starting: Returns the slices whose executors do not serve yet, as the service reports them,
        each with a number of its placement.
      clock: Returns the time in seconds.
    """

    def __init__(
        self,
        starting: Callable[[], Mapping[int, int]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._starting = starting
        self._clock = clock
        self._lock = threading.Lock()
        self._reported: Mapping[int, int] = {}
        self._since: dict[int, float] = {}
        #: The last reported placements that have answered.
        self._served: dict[int, int | None] = {}

    def look(self) -> Mapping[int, int]:
        """Reads the service's report, and returns it."""
        reported, now = self._starting(), self._clock()
        with self._lock:
            self._reported = reported
            starting = {i for i, placement in reported.items() if self._served.get(i) != placement}
            for index in starting:
                self._since.setdefault(index, now)
            for index in self._late(now).difference(starting):
                del self._since[index]
        return reported

    def answered(self, slices: Iterable[int], before: Mapping[int, int]) -> None:
        """Ends the starts of slices that answered.

        Args:
          slices: The slices.
          before: The report that `look` returned before they were probed. A placement that was
            reported later, to another thread, did not give the answer.
        """
        with self._lock:
            for index in slices:
                placement = before.get(index)
                if self._reported.get(index, placement) == placement:
                    self._since.pop(index, None)
                    self._served[index] = placement
                else:
                    self._served.setdefault(index, placement)

    @property
    def current(self) -> frozenset[int]:
        """The slices that start, except those that have done so for too long."""
        with self._lock:
            return frozenset(self._since).difference(self._late(self._clock()))

    @property
    def again(self) -> frozenset[int]:
        """Those of them that have answered before, so that an earlier placement is lost."""
        return self.current.intersection(self._served)

    def _late(self, now: float) -> set[int]:
        return {i for i, since in self._since.items() if now - since >= timeouts.SLICE_START.s}


def start_text(slices: Collection[int]) -> str:
    """Returns a clause for messages: which slices start."""
    which = ", ".join(map(str, sorted(slices)))
    if len(slices) == 1:
        return f"slice {which} starts: its executors do not serve yet"
    return f"slices {which} start: their executors do not serve yet"
