"""How long a tenant that waits may expect to wait, from how long slices were held before.

An estimate for people, on which nothing is decided: each holder is taken to hold as long as those
before it who held at least as long as it does already, and each that waits before, as long as all.
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

#: Past holdings of one type that count: so many of the last.
_KEPT = 200


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Expectation:
    """What a waiting tenant may expect.

    Attributes:
      wait_s: Seconds from now; None: there is nothing to tell it from.
      basis: What it was told from, or why it cannot be told.
    """

    wait_s: float | None
    basis: str


class HoldingTimes:
    """How long the last holders of each type held a slice until they gave it back.

    What ended with the loss of a slice tells nothing of who held it, and does not count.
    """

    def __init__(self) -> None:
        self._of: dict[str, collections.deque[float]] = {}

    def hear(self, decision: Decision) -> None:
        """Takes note of a holding that ended; other decisions are passed over."""
        lasted = decision.duration_s
        if decision.kind == DecisionKind.FREED and lasted is not None:
            known = self._of.setdefault(decision.instance_type, collections.deque(maxlen=_KEPT))
            known.append(lasted)

    def of(self, instance_type: str) -> Past:
        """Returns those of one type."""
        return Past(instance_type, self._of.get(instance_type, ()))


class Past:
    """The past holdings of one type, in order of their length."""

    def __init__(self, instance_type: str, lasted: Iterable[float]) -> None:
        self._name = instance_type
        self._sorted = sorted(lasted)
        # From the longest down, so that the sum of all longer ones is there for each.
        sums = itertools.accumulate(reversed(self._sorted), initial=0.0)
        self._sums_from = list(sums)[::-1]

    @property
    def is_known(self) -> bool:
        """Whether there are any."""
        return bool(self._sorted)

    @property
    def mean(self) -> float:
        """How long they lasted on average; infinity: there are none."""
        return self._sums_from[0] / len(self._sorted) if self._sorted else math.inf

    def remaining(self, held_s: float) -> float:
        """Returns the mean rest of those that lasted longer than this; infinity: none did."""
        first = bisect.bisect_right(self._sorted, held_s)
        longer = len(self._sorted) - first
        return self._sums_from[first] / longer - held_s if longer else math.inf

    def __str__(self) -> str:
        if not self._sorted:
            return f"no holding of {self._name} has ended yet"
        count = len(self._sorted)
        return f"{count} past holdings of {self._name}, {span(self.mean)} on average"


def expect(report: StatusReport, times: HoldingTimes, now: float) -> dict[str, Expectation]:
    """Returns what each tenant in the queue may expect, by its name.

    Args:
      report: How things stand.
      times: Of the holdings before.
      now: The time of the report.
    """
    if not report.queue:
        return {}
    past = {name: times.of(name) for name in report.types}
    frees = _frees(report, past, now)
    kept = collections.Counter(
        (one.kept_for, one.instance_type) for one in report.slices if one.kept_for
    )
    # Nobody passes whoever stands before it in the line of a type.
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
        expected[entry.tenant] = _told(entry, start, past)
    return expected


def _told(entry: QueueEntry, start: float, past: Mapping[str, Past]) -> Expectation:
    basis = "; ".join(str(past[name]) for name in entry.wants)
    if math.isfinite(start):
        return Expectation(wait_s=start, basis=basis)
    if all(past[name].is_known for name in entry.wants):
        basis += "; who holds slices now has held them longer than any of these"
    return Expectation(wait_s=None, basis=basis)


def _take(frees: list[float], count: int) -> float:
    """Takes so many of the slices that are free first; returns when the last of them is."""
    taken = [heapq.heappop(frees) for _ in range(min(count, len(frees)))]
    if len(taken) < count:
        return math.inf
    return taken[-1] if taken else 0.0


def _frees(report: StatusReport, past: Mapping[str, Past], now: float) -> dict[str, list[float]]:
    """Returns in how many seconds each slice of a type can be had, spares left out.

    What is kept for one that waits is nobody else's; what is kept for the holder of a slice that is
    drained is as if it were there.
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
    # What is free first is what is kept back.
    return {name: sorted(rests)[report.spares_kept[name] :] for name, rests in frees.items()}
