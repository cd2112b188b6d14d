"""What the disk must be told before anybody else is: grants, marks, counters, and the history."""

from __future__ import annotations

from shared_pathways_service.scheduling.book.decisions import Decision
from shared_pathways_service.scheduling.book.persisted import (
    Persist,
    PersistedGrant,
    PersistedMark,
    PersistedNotice,
)
from shared_pathways_service.scheduling.book.records import Slice, Tenant
from shared_pathways_service.scheduling.book.reserved import Reservation
from shared_pathways_service.scheduling.book.states import SliceMark

__all__ = ["Journal"]


class Journal:
    """The side of the books that the disk sees: it gathers what is new until that is taken.

    Attributes:
      now: The time of the event that is being handled.
      slices: Every physical slice that is known, by id.
      marks: What operators said of slices, also of those that are not there.
      last_generation: The highest ever given or heard of.
      last_order: The highest arrival number ever given.
    """

    def __init__(self, now: float) -> None:
        self.now = now
        self.slices: dict[str, Slice] = {}
        self.marks: dict[str, SliceMark] = {}
        self.last_generation = 0
        self.last_order = 0
        self._state_lost = False
        self._counters_changed = False
        self._unwritten: dict[str, Tenant] = {}
        self._forgotten: dict[str, None] = {}
        self._unwritten_marks: dict[str, None] = {}
        self._unwritten_reservations: dict[str, Reservation | None] = {}
        self._decisions: list[Decision] = []

    # ---- the history

    def decide(self, decision: Decision) -> None:
        """Adds to the history."""
        self._decisions.append(decision)

    def decide_tenant(
        self, tenant: Tenant, kind: str, reason: str = "", *, ends: bool, related: str = ""
    ) -> None:
        """Adds what was decided of a tenant to the history.

        Args:
          tenant: It.
          kind: What.
          reason: Why.
          ends: Whether its wait ends by that, if it waits.
          related: The other tenant that has to do with it.
        """
        who = tenant.name, tenant.user, tenant.team
        began = tenant.waits_since if ends else None
        self._decisions.append(
            Decision(self.now, kind, *who, "", None, 0, tenant.wanted, reason, related, began)
        )

    def decide_slice(self, about: Slice, kind: str, reason: str) -> None:
        """Adds what was decided of a slice alone to the history."""
        of = about.pool.name
        self._decisions.append(Decision(self.now, kind, "", "", "", about.id, None, 0, of, reason))

    def decide_held(
        self,
        held: Slice,
        kind: str,
        reason: str = "",
        *,
        began: float | None = None,
        related: str = "",
    ) -> None:
        """Adds what was decided of a slice and its holder to the history."""
        tenant = held.tenant
        assert tenant is not None
        self._decisions.append(
            Decision(
                self.now,
                kind,
                tenant.name,
                tenant.user,
                tenant.team,
                held.id,
                held.index,
                held.generation,
                held.pool.name,
                reason,
                related,
                began,
            )
        )

    # ---- what the disk must know

    def write(self, tenant: Tenant) -> None:
        """Notes that what the disk knows of a tenant is outdated."""
        self._unwritten[tenant.name] = tenant

    def write_mark(self, marked: Slice) -> None:
        """Notes that what the disk knows of what an operator said of a slice is outdated."""
        self._unwritten_marks[marked.id] = None

    def write_reservation(self, about: Reservation, *, over: bool = False) -> None:
        """Notes that the disk does not know a reservation yet, or that it is to forget it."""
        self._unwritten_reservations[about.name] = None if over else about

    def set_state_lost(self, lost: bool) -> None:
        """Notes whether a restart must hear everybody's claims again."""
        self._counters_changed |= lost != self._state_lost
        self._state_lost = lost

    def write_no_more(self, tenant: Tenant) -> None:
        """Notes that a tenant is none any more, which the disk may know."""
        self._unwritten.pop(tenant.name, None)
        if tenant.persisted:
            self.forget(tenant.name)

    def forget(self, name: str) -> None:
        """Notes that the disk knows a tenant that is none any more."""
        self._forgotten[name] = None

    def take_unwritten(self) -> Persist | None:
        """Returns what the disk must be told before anybody else is; None: nothing."""
        changed = self._unwritten or self._forgotten or self._unwritten_marks
        reservations = self._unwritten_reservations
        is_news = bool(changed or self._counters_changed or reservations)
        decisions = self._decisions
        if not is_news and not decisions:
            return None
        persist = Persist(
            grants=tuple([_grant_of(tenant) for tenant in self._unwritten.values()]),
            forgotten=tuple(self._forgotten),
            last_generation=self.last_generation,
            last_order=self.last_order,
            state_lost=self._state_lost,
            marks=tuple(map(self._mark_of, self._unwritten_marks)),
            reservations=tuple(filter(None, reservations.values())) if reservations else (),
            reservations_over=tuple(n for n, one in reservations.items() if one is None)
            if reservations
            else (),
            decisions=tuple(decisions),
            can_wait=not is_news and not any(one.tenant for one in decisions),
        )
        for tenant in self._unwritten.values():
            tenant.persisted = True
        self._counters_changed = False
        self._unwritten_marks.clear()
        reservations.clear()
        self._unwritten.clear()
        self._forgotten.clear()
        decisions.clear()
        return persist

    def _mark_of(self, slice_id: str) -> PersistedMark:
        mark = self.marks.get(slice_id, SliceMark.NONE)
        marked = self.slices.get(slice_id)
        return PersistedMark(
            slice_id=slice_id, mark=mark, moves_at=None if marked is None else marked.moves_at
        )


def _grant_of(tenant: Tenant) -> PersistedGrant:
    """Returns what the disk must know of a tenant."""
    placements: dict[int, tuple[str, int]] = {}
    incarnations: dict[str, tuple[str, ...]] = {}
    held_since: dict[str, float] = {}
    for index, held in tenant.placed.items():
        placements[index] = held.id, held.generation
        incarnations[held.id] = held.relied_on
        held_since[held.id] = held.held_since
    told = tenant.notice
    return PersistedGrant(
        tenant.name,
        tenant.incarnation,
        tenant.kinds,
        len(tenant.kinds) - tenant.needed,
        tenant.priority,
        tenant.queue_timeout,
        tenant.user,
        tenant.team,
        tenant.host,
        tenant.pid,
        tenant.order,
        tenant.running,
        placements,
        tenant.asked_at,
        tenant.waits_since,
        tuple(tenant.lost),
        incarnations,
        tenant.preempted,
        None if told is None else PersistedNotice(by=told.by, said=told.said, ends_at=told.ends_at),
        tenant.ends_at,
        held_since,
        tenant.idled,
        tenant.parked,
    )
