"""Typed actions: what policies return, and how each changes the book and notifies tenants.

An action is carried out before the policy that yielded it goes on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Protocol, TypeAlias

from shared_pathways_service.events.recorded_decisions import DecisionKind
from shared_pathways_service.scheduling.book.changes import Vacated
from shared_pathways_service.scheduling.book.ledger import Ledger
from shared_pathways_service.scheduling.book.records import Pool, Tenant
from shared_pathways_service.scheduling.book.speaker import Speaker

__all__ = [
    "Action",
    "Actions",
    "PlaceMissing",
    "Start",
    "vacate",
]


class Action(Protocol):
    """A change of the book that a policy requests."""

    def apply(self, ledger: Ledger, speaker: Speaker) -> None:
        """Carries it out."""


#: Actions, each carried out before the next one is asked for.
Actions: TypeAlias = Iterable[Action]


@dataclasses.dataclass(eq=False, slots=True)
class Start:
    """Starts a waiting gang on free slices, and on slices reserved for it by its promise.

    Attributes:
      granted: How many slices of each pool it gets.
    """

    tenant: Tenant
    granted: dict[Pool, int]

    def apply(self, ledger: Ledger, speaker: Speaker) -> None:
        """Places the virtual slices that can be placed, and queues the others."""
        tenant, granted, promised = self.tenant, self.granted, self.tenant.promised
        ledger.dequeue(tenant)
        tenant.running = True
        tenant.preempted = tenant.idled = False
        tenant.since = ledger.now
        ledger.decide_tenant(tenant, DecisionKind.RUNNING, ends=True)
        for index, pool in enumerate(tenant.pools):
            if granted[pool]:
                granted[pool] -= 1
                kept = promised.get(pool)
                if kept:
                    onto = kept[0]
                    ledger.keep_no_more(onto)
                    # Hold this slice before the search for the next free one.
                else:
                    onto = ledger.take_free(pool, tenant)
                ledger.place(tenant, index, onto)
                speaker.placed(tenant, index, onto)
            else:
                ledger.want_fill(tenant, index)
        if promised:
            ledger.release_kept(tenant)
        speaker.running(tenant)


@dataclasses.dataclass(eq=False, slots=True)
class PlaceMissing:
    """Places a virtual slice of a running tenant that was lost, or never placed."""

    tenant: Tenant
    index: int
    pool: Pool

    def apply(self, ledger: Ledger, speaker: Speaker) -> None:
        """Takes it out of its line and places it."""
        tenant, index = self.tenant, self.index
        ledger.stop_wanting(tenant, index)
        onto = ledger.take_free(self.pool, tenant)
        ledger.place(tenant, index, onto)
        speaker.placed(tenant, index, onto)
        # The gang was placed before; its proxy may have come back while it was not whole.
        speaker.notify_running(tenant)


def vacate(
    ledger: Ledger, speaker: Speaker, tenant: Tenant, reason: str, *, related: str = ""
) -> None:
    """Takes all slices from a running tenant, which then neither runs nor waits.

    `related` is the name of the other tenant involved.
    """
    for index in range(len(tenant.pools)):
        if index not in tenant.placed:
            ledger.stop_wanting(tenant, index)
    for index, held in sorted(tenant.placed.items()):
        generation = held.generation
        ledger.let_go(held, reason=reason, related=related)
        speaker.unplaced(tenant, index, held.id, generation, reason)
    tenant.running = False
    tenant.lost.clear()
    tenant.was_notified_running = False
    tenant.warned.clear()
    tenant.last_place = None
    tenant.since = tenant.waits_since = ledger.now
    ledger.changes.publish(Vacated(tenant))
