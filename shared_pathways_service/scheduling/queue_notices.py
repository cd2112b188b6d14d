"""Notifies waiting tenants of their places in the queue.

Every change of the queue concerns most of the waiting tenants. So that an event costs the same with
one waiting tenant as with ten thousand, only the head of the line is notified of a change at once,
and only if the line has been quiet for `RmConfig.retell_s`; all other notifications are batched and
sent that long after the last batch. A tenant that joins the line is notified at once.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping

from shared_pathways_service.events.recorded_decisions import DecisionKind
from shared_pathways_service.scheduling.book.changes import (
    Change,
    Consumer,
    LineChanged,
    PlaceWanted,
    PoolChanged,
    PromiseBegan,
)
from shared_pathways_service.scheduling.book.config import RmConfig
from shared_pathways_service.scheduling.book.deadlines import Deadlines
from shared_pathways_service.scheduling.book.ledger import Ledger
from shared_pathways_service.scheduling.book.records import Pool, Tenant
from shared_pathways_service.scheduling.book.speaker import Speaker
from shared_pathways_service.scheduling.book.wait_reasons import position_of

__all__ = ["QueueNotices"]

#: Waiting tenants that are notified of a change at once.
_PROMPT = 8


@dataclasses.dataclass(slots=True)
class _Line:
    """When the line of a pool was last notified, and is to be notified as a whole."""

    notified_at: float = float("-inf")
    due_at: float | None = None


class QueueNotices:
    """Its state: tenants and pools' lines to notify, and when each was last notified."""

    def __init__(
        self, config: RmConfig, ledger: Ledger, speaker: Speaker, deadlines: Deadlines
    ) -> None:
        self._pause = config.retell_s
        self._ledger = ledger
        self._speaker = speaker
        self._deadlines = deadlines
        self._newcomers: list[Tenant] = []
        self._outdated: dict[Pool, None] = {}
        self._lines = {pool: _Line() for pool in ledger.pools.values()}

    @property
    def consumes(self) -> Mapping[type[Change], Consumer]:
        """Changes of lines, their heads, and pools, and tenants that must be sent their places."""
        return {
            LineChanged: self._changed,
            PoolChanged: self._changed,
            PromiseBegan: self._stepped_aside,
            PlaceWanted: lambda change: self._newcomers.append(change.tenant),
        }

    def send(self) -> None:
        """Notifies tenants of their places, now or later."""
        for newcomer in self._newcomers:
            if newcomer.is_queued and not newcomer.gone:
                self._note_wait(newcomer)
                self._speaker.queued(newcomer)
        self._newcomers.clear()
        outdated = self._outdated
        if outdated and len(self._lines) > 1:
            self._add_those_that_name_others()
        while outdated:
            pool = next(iter(outdated))
            del outdated[pool]
            if pool.waiting.entries and self._lines[pool].due_at is None:
                self._notify(pool)

    def _changed(self, change: LineChanged | PoolChanged) -> None:
        self._outdated[change.pool] = None

    def _add_those_that_name_others(self) -> None:
        """Adds lines whose tenants are behind one that wants slices of a type that changed."""
        outdated = self._outdated
        others = [pool for pool in self._lines if pool.waiting.entries and pool not in outdated]
        heads = [(pool, pool.first_open()) for pool in others]
        named = [
            pool
            for pool, head in heads
            if head is not None and not outdated.keys().isdisjoint(head[-1].wants)
        ]
        outdated.update(dict.fromkeys(named))

    def _stepped_aside(self, change: PromiseBegan) -> None:
        # Others are at the heads of its lines now.
        self._outdated.update(dict.fromkeys(change.tenant.wants))

    def _note_wait(self, tenant: Tenant) -> None:
        if not tenant.was_queued:
            tenant.was_queued = True
            why = self._speaker.reason(tenant)
            self._ledger.decide_tenant(tenant, DecisionKind.QUEUED, why, ends=False)

    def _notify(self, pool: Pool) -> None:
        now, line = self._ledger.now, self._lines[pool]
        due = line.notified_at + self._pause
        if due <= now:
            line.notified_at = now
            self._notify_line(pool, _PROMPT)
            if len(pool.waiting.entries) <= _PROMPT:
                return
            due = now + self._pause
        line.due_at = due
        self._deadlines.add(lambda: line.due_at, lambda: self._notify_all(pool, line))

    def _notify_all(self, pool: Pool, line: _Line) -> None:
        line.notified_at = self._ledger.now
        line.due_at = None
        self._notify_line(pool, None)

    def _notify_line(self, pool: Pool, first: int | None) -> None:
        for place, entry in enumerate(itertools.islice(pool.waiting.entries, first), start=1):
            tenant = entry[-1]
            # Most tenants are in a single line: their place is their position in it.
            self._speaker.send_place(
                tenant, place if len(tenant.wants) == 1 else position_of(tenant)
            )
