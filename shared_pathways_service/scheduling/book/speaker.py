"""Gathers the messages to tenants, workers and watchers, one batch per event."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from shared_pathways_service.events import Event
from shared_pathways_service.events.recorded_decisions import DecisionKind
from shared_pathways_service.scheduling.book import announcements
from shared_pathways_service.scheduling.book.ledger import Ledger
from shared_pathways_service.scheduling.book.messages import (
    Announce,
    Instruction,
    NotifyPlaced,
    NotifyPreempting,
    NotifyQueued,
    NotifyRunning,
    NotifyUnplaced,
    RefusalKind,
    RefuseTenant,
)
from shared_pathways_service.scheduling.book.records import Notice, Slice, Tenant
from shared_pathways_service.scheduling.book.wait_reasons import (
    holders_of,
    position_of,
    reason_of,
)

__all__ = ["Speaker"]


class Speaker:
    """Gathers the instructions of one event.

    Attributes:
      gathered: The instructions, in the order in which they must be carried out.
      waits_for: Why nothing is granted now, apart from the state of the pools; empty: no reason.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.gathered: list[Instruction] = []
        self.waits_for = ""

    def say(self, instruction: Instruction) -> None:
        """Adds an instruction."""
        self.gathered.append(instruction)

    def announce(self, make: Callable[[], Event]) -> None:
        """Adds an event for watchers and logs.

        Args:
          make: A factory of the event, from a function of `announcements`.
        """
        self.gathered.append(Announce(make))

    def take(self) -> list[Instruction]:
        """Returns the gathered instructions, led by a `Persist` if anything must be persisted."""
        if self._ledger.has_unplaced:
            self._ledger.has_unplaced = False
            self._drop_superseded()
        gathered, self.gathered = self.gathered, []
        persist = self._ledger.take_unwritten()
        return gathered if persist is None else [persist, *gathered]

    def _drop_superseded(self) -> None:
        """Drops messages about placements that ended in the batch that they began in.

        Several deadlines of one tick can place a virtual slice and take it away again. Only the
        final grants are persisted, so a tenant must not be sent such a placement. Its events and
        decisions stay.
        """
        ended = {
            one.generation: one.tenant
            for one in self.gathered
            if isinstance(one, NotifyPlaced) and not self._is_current(one)
        }
        if not ended:
            return
        tenants = set(ended.values())
        sent: set[int] = set()
        kept: list[Instruction] = []
        to_run: dict[str, None] = {}
        for one in self.gathered:
            if isinstance(one, NotifyPlaced) and one.generation in ended:
                sent.add(one.generation)
            elif isinstance(one, NotifyRunning) and one.tenant in tenants:
                to_run[one.tenant] = None  # it may count a placement that is dropped
            elif not isinstance(one, NotifyUnplaced) or one.generation not in sent:
                kept.append(one)
        self.gathered = kept
        for name in to_run:
            tenant = self._ledger.tenants.get(name)
            if tenant is not None:
                tenant.was_notified_running = False
                self.notify_running(tenant)

    def _is_current(self, placed: NotifyPlaced) -> bool:
        """Returns whether the tenant still has this placement."""
        tenant = self._ledger.tenants.get(placed.tenant)
        held = None if tenant is None else tenant.placed.get(placed.virtual_index)
        return held is not None and held.generation == placed.generation

    # ---- placements

    def placed(self, tenant: Tenant, index: int, onto: Slice) -> None:
        """Reports the placement of a virtual slice to its tenant and watchers."""
        self.notify_placed(tenant, index, onto)
        starting = self._ledger.has_executors
        self.announce(announcements.placed(tenant, index, onto, starting=starting))

    def notify_placed(self, tenant: Tenant, index: int, onto: Slice) -> None:
        """Reports a placement to its tenant alone."""
        if tenant.connected:
            self.say(NotifyPlaced(tenant.name, index, onto.pool.kind, onto.id, onto.generation))

    def unplaced(
        self, tenant: Tenant, index: int, slice_id: str, generation: int, reason: str
    ) -> None:
        """Reports the end of a placement to its tenant and watchers."""
        tenant.warned.pop((index,), None)
        self.notify_unplaced(tenant, index, slice_id, generation, reason)
        self.announce(announcements.unplaced(tenant, index, slice_id, generation, reason))

    def notify_unplaced(
        self, tenant: Tenant, index: int, slice_id: str, generation: int, reason: str
    ) -> None:
        """Reports to a tenant alone that a placement does not exist."""
        if tenant.connected:
            kind = tenant.request.virtual_slices[index]
            self.say(NotifyUnplaced(tenant.name, index, kind, slice_id, generation, reason))

    def running(self, tenant: Tenant) -> None:
        """Reports that a tenant's gang is placed."""
        self.notify_running(tenant)
        self.announce(announcements.running(tenant))

    def notify_running(self, tenant: Tenant) -> None:
        """Notifies a tenant alone that it may compute, once it can and unless it was notified."""
        enough = len(tenant.placed) >= tenant.gang
        if tenant.connected and enough and not tenant.was_notified_running:
            tenant.was_notified_running = True
            self.say(NotifyRunning(tenant.name, len(tenant.placed), len(tenant.pools)))

    # ---- notices

    def preempting(self, tenant: Tenant) -> None:
        """Reports that a running tenant's slices will be taken."""
        notice = tenant.notice
        assert notice is not None
        self.send_notices(tenant)
        self.announce(announcements.preempting(tenant, notice, self._ledger.now))

    def preempting_no_more(self, tenant: Tenant, notice: Notice) -> None:
        """Withdraws a preemption notice."""
        self._notify_preempting(tenant, notice.said, withdrawn=True)
        self.announce(announcements.preempting_withdrawn(tenant, notice))

    def preempted(self, tenant: Tenant, reason: str) -> None:
        """Reports that a tenant's slices were taken."""
        self.announce(announcements.preempted(tenant, reason))

    def moving(self, drained: Slice) -> None:
        """Reports that the holder of a drained slice will be moved or, without `onto`, will not."""
        self._notify_moving(drained)
        self.announce(announcements.moving(drained))

    def send_notices(self, tenant: Tenant) -> None:
        """Sends a returning tenant its notices, and withdraws those that no longer hold."""
        for indices, by in list(tenant.warned.items()):
            if not _is_warned(tenant, indices):
                self._notify_preempting(tenant, by, indices=indices, withdrawn=True)
        if tenant.notice is not None:
            left = max(0.0, tenant.notice.ends_at - self._ledger.now)
            self._notify_preempting(tenant, tenant.notice.said, grace_s=left)
        for held in tenant.placed.values():
            if held.onto is not None:
                self._notify_moving(held)

    def _notify_moving(self, drained: Slice) -> None:
        tenant = drained.tenant
        assert tenant is not None
        due, withdrawn = drained.moves_at, drained.onto is None
        self._notify_preempting(
            tenant,
            f"a drain of {drained.id}",
            grace_s=0.0 if withdrawn or due is None else max(0.0, due - self._ledger.now),
            indices=(drained.index,),
            withdrawn=withdrawn,
        )

    def _notify_preempting(
        self,
        tenant: Tenant,
        by: str,
        *,
        grace_s: float = 0.0,
        indices: tuple[int, ...] = (),
        withdrawn: bool = False,
    ) -> None:
        if tenant.connected:
            if withdrawn:
                tenant.warned.pop(indices, None)
            else:
                tenant.warned[indices] = by
            self.say(
                NotifyPreempting(
                    tenant=tenant.name, grace_s=grace_s, by=by, indices=indices, withdrawn=withdrawn
                )
            )

    # ---- the queue

    def queued(self, tenant: Tenant) -> None:
        """Sends a waiting tenant its place, unless it was sent already."""
        self.send_place(tenant, position_of(tenant))

    def send_place(self, tenant: Tenant, position: int) -> None:
        """Sends a waiting tenant the given place, unless it was sent already."""
        if not tenant.connected:
            return
        place = (position, self.reason(tenant), holders_of(tenant.wants))
        if place == tenant.last_place:
            return
        tenant.last_place = place
        _, reason, holders = place
        self.say(NotifyQueued(tenant.name, position, reason, holders))
        self.announce(announcements.queued(tenant, position, reason, holders))

    def reason(self, tenant: Tenant) -> str:
        """Returns why a tenant waits."""
        said = reason_of(tenant)
        return f"{said}; {self.waits_for}" if self.waits_for else said

    # ---- refusals

    def refused(
        self,
        tenant: Tenant,
        kind: RefusalKind,
        message: str,
        *,
        position: int | None = None,
        holders: Sequence[str] = (),
        spares: Mapping[str, int],
        waiting_is_futile: bool | None = None,
    ) -> None:
        """Refuses a tenant that the ledger knew, with its request and the slices that exist."""
        self._ledger.decide_tenant(tenant, DecisionKind.REFUSED, message, ends=not tenant.running)
        self.refuse(
            RefuseTenant(
                tenant=tenant.name,
                incarnation=tenant.incarnation,
                kind=kind,
                message=message,
                wanted={pool.name: count for pool, count in tenant.wants.items()},
                free={pool.name: pool.room_for(tenant) for pool in tenant.wants},
                holders=tuple(holders),
                position=position,
                spares=spares,
                waiting_is_futile=waiting_is_futile,
            ),
            connected=tenant.connected,
        )

    def refuse(self, refusal: RefuseTenant, *, connected: bool = True) -> None:
        """Refuses a proxy."""
        if connected:
            self.say(refusal)
        self.announce(announcements.refused(refusal))


def _is_warned(tenant: Tenant, indices: tuple[int, ...]) -> bool:
    """Whether the slices that a tenant was warned about will still be taken."""
    if not indices:
        return tenant.notice is not None
    held = tenant.placed.get(indices[0])
    return held is not None and held.moves_at is not None
