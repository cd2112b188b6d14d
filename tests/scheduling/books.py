"""Books kept from the history alone: what it tells must be what the ledger holds."""

from __future__ import annotations

import dataclasses

from shared_pathways_service.events.recorded_decisions import DecisionKind
from shared_pathways_service.scheduling.book.decisions import Decision
from shared_pathways_service.scheduling.book.holdings import StatusReport
from shared_pathways_service.scheduling.history.usage import Usage, UsageBy

_BEGINS = {DecisionKind.PLACED, DecisionKind.REPLACED, DecisionKind.CLAIMED}
_ENDS = {DecisionKind.REFUSED, DecisionKind.RELEASED, DecisionKind.EXPIRED}


@dataclasses.dataclass
class Interval:
    tenant: str
    index: int | None
    generation: int
    began: float
    ended: float | None = None

    def overlap(self, since: float, until: float, now: float) -> float:
        ended = now if self.ended is None else self.ended
        return max(0.0, min(ended, until) - max(self.began, since))


class Books:
    """Who holds and who waits, by the decisions that are on the disk."""

    def __init__(self) -> None:
        self.decisions: list[Decision] = []
        self.held: dict[str, Interval] = {}
        self.waiting: dict[str, Interval] = {}
        self.all_held: list[Interval] = []
        self.all_waited: list[Interval] = []
        self.started: set[int] = set()  # generations whose executors have started

    def hear(self, one: Decision) -> None:
        self.decisions.append(one)
        if one.kind in _BEGINS:
            assert one.slice not in self.held, f"{one.slice} was held already"
            found = Interval(one.tenant, one.virtual_index, one.generation, one.time)
            self.held[one.slice] = found
            self.all_held.append(found)
        elif one.kind in {DecisionKind.UNPLACED, DecisionKind.FREED}:
            found = self.held.pop(one.slice)
            was = (found.tenant, found.index, found.generation, found.began)
            assert was == (one.tenant, one.virtual_index, one.generation, one.began)
            found.ended = one.time
        elif one.kind in {DecisionKind.QUEUED, DecisionKind.PREEMPTED}:
            assert one.tenant not in self.waiting, "queued twice"
            wait = Interval(one.tenant, None, 0, one.time)
            self.waiting[one.tenant] = wait
            self.all_waited.append(wait)
        elif one.kind == DecisionKind.EXECUTOR_STARTED:
            assert one.generation not in self.started, "started twice"
            self.started.add(one.generation)
        elif one.kind == DecisionKind.IDLED:
            assert one.tenant not in self.waiting, "idle in the queue"
        elif one.kind == DecisionKind.RUNNING or one.kind in _ENDS:
            ended = self.waiting.pop(one.tenant, None)
            if ended is not None:
                assert one.began == ended.began
                ended.ended = one.time

    def judge(self, report: StatusReport) -> None:
        """What the history says is what is so."""
        holds = {
            one.id: (one.tenant, one.virtual_index, one.generation, one.held_since)
            for one in report.slices
            if one.tenant
        }
        told = {
            slice_id: (one.tenant, one.index, one.generation, one.began)
            for slice_id, one in self.held.items()
        }
        assert told == holds, "the history has other holders"
        assert self.waiting.keys() == {one.tenant for one in report.queue}

    def judge_usage(self, report: StatusReport, now: float, since: float, until: float) -> None:
        """The usage of a window is what the intervals have in common with it."""
        usage = Usage(UsageBy.TENANT, since, until)
        for one in self.decisions:
            if one.time >= since:
                usage.add(one)
        usage.add_status(report, now)
        rows = {row.name: row for row in usage.rows()}
        for name in {one.tenant for one in (*self.all_held, *self.all_waited)}:
            row = rows.get(name)
            for intervals, counted in (
                (self.all_held, row.slice_s if row else 0.0),
                (self.all_waited, row.waiting_s if row else 0.0),
            ):
                mine = [one for one in intervals if one.tenant == name]
                true = sum(one.overlap(since, until, now) for one in mine)
                assert abs(counted - true) < 1e-3, (name, counted, true)
