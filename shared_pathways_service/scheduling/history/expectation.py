"""Estimates the waits of queued tenants from the durations of past holdings.

The estimate is for people; no decision depends on it. Each holder is assumed to hold for the mean
of the past holdings that lasted at least as long as its own has, and each tenant ahead in the
queue for the mean of all.
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
import heapq
import itertools
import math
from collections.abc import Iterable, Mapping

from shared_pathways_service.events.recorded_decisions import DecisionKind
from shared_pathways_service.scheduling.book.decisions import Decision, span
from shared_pathways_service.scheduling.book.holdings import QueueEntry, StatusReport
from shared_pathways_service.scheduling.book.states import SliceState

__all__ = ["Expectation", "HoldingTimes", "expect"]

#: The number of most recent holdings of one type that count.
_KEPT = 200


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Expectation:
    """The expected wait of a tenant.

    Attributes:
      wait_s: Seconds from now; None: it cannot be estimated.
      basis: What the estimate is based on, or why there is none.
    """

    wait_s: float | None
    basis: str


class HoldingTimes:
    """The durations of the last holdings of each type that ended with the slice's return.

    Holdings that ended with the loss of a slice say nothing about the holder, and do not count.
    """

    def __init__(self) -> None:
        self._of: dict[str, collections.deque[float]] = {}

    def add(self, decision: Decision) -> None:
        """Notes a holding that ended; ignores other decisions."""
        lasted = decision.duration_s
        if decision.kind == DecisionKind.FREED and lasted is not None:
            known = self._of.setdefault(decision.instance_type, collections.deque(maxlen=_KEPT))
            known.append(lasted)

    def of(self, instance_type: str) -> Past:
        """Returns the past holdings of one type."""
        return Past(instance_type, self._of.get(instance_type, ()))


class Past:
    """The past holdings of one type, in order of their length."""

    def __init__(self, instance_type: str, lasted: Iterable[float]) -> None:
        self._name = instance_type
        self._sorted = sorted(lasted)
        # From the longest down, so that each has the sum of all longer ones.
        sums = itertools.accumulate(reversed(self._sorted), initial=0.0)
        self._sums_from = list(sums)[::-1]

    @property
    def is_known(self) -> bool:
        """Whether there are any."""
        return bool(self._sorted)

    @property
    def mean(self) -> float:
        """Their mean duration; infinity without any."""
        return self._sums_from[0] / len(self._sorted) if self._sorted else math.inf

    def remaining(self, held_s: float) -> float:
        """Returns the mean remaining time of those that lasted longer; infinity: none did."""
        first = bisect.bisect_right(self._sorted, held_s)
        longer = len(self._sorted) - first
        return self._sums_from[first] / longer - held_s if longer else math.inf

    def __str__(self) -> str:
        if not self._sorted:
            return f"no holding of {self._name} has ended yet"
        count = len(self._sorted)
        return f"{count} past holdings of {self._name}, {span(self.mean)} on average"


def expect(report: StatusReport, times: HoldingTimes, now: float) -> dict[str, Expectation]:
    """Estimates the wait of each tenant in the queue, by its name."""
    if not report.queue:
        return {}
    past = {name: times.of(name) for name in report.types}
    frees = _frees(report, past, now)
    kept = collections.Counter(
        (one.kept_for, one.instance_type) for one in report.slices if one.kept_for
    )
    # No tenant passes one that is before it in the line of a type.
    line = dict.fromkeys(report.types, 0.0)
    expected = {}
    for entry in report.queue:
        start = max(
            max(_take(frees[name], max(0, count - kept[entry.tenant, name])), line[name])
            for name, count in entry.wants.items()
        )
        for name, count in entry.wants.items():
            line[name] = start
            lasts = past[name].mean
            for _ in range(count):
                heapq.heappush(frees[name], start + lasts)
        expected[entry.tenant] = _expectation_of(entry, start, past)
    return expected


def _expectation_of(entry: QueueEntry, start: float, past: Mapping[str, Past]) -> Expectation:
    basis = "; ".join(str(past[name]) for name in entry.wants)
    if math.isfinite(start):
        return Expectation(wait_s=start, basis=basis)
    if all(past[name].is_known for name in entry.wants):
        basis += "; who holds slices now has held them longer than any of these"
    return Expectation(wait_s=None, basis=basis)


def _take(frees: list[float], count: int) -> float:
    """Takes the `count` slices that are free first; returns when the last of them is free."""
    taken = [heapq.heappop(frees) for _ in range(min(count, len(frees)))]
    if len(taken) < count:
        return math.inf
    return taken[-1] if taken else 0.0


def _frees(report: StatusReport, past: Mapping[str, Past], now: float) -> dict[str, list[float]]:
    """Returns the seconds until each slice of a type is available, without spares.

    Slices promised to a waiting tenant do not count; a slice reserved for the holder of a drained
    slice counts as if the holder were on it.
    """
    moving = {one.onto: one for one in report.slices if one.onto}
    frees: dict[str, list[float]] = {name: [] for name in report.types}
    for found in report.slices:
        if found.state is not SliceState.READY or found.instance_type not in frees:
            continue
        if found.kept_for and found.id not in moving:
            continue
        since = moving.get(found.id, found).held_since
        rest = 0.0 if since is None else past[found.instance_type].remaining(now - since)
        frees[found.instance_type].append(rest)
    # The slices that are free first are withheld as spares.
    return {name: sorted(rests)[report.spares_kept[name] :] for name, rests in frees.items()}
