"""Collects changes to persist before they take effect: grants, marks, counters, history."""

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
    """The part of the book that persists state: it collects changes until they are taken.

    Attributes:
      now: The time of the event that is being handled.
      slices: Every known physical slice, by id.
      marks: Operators' marks on slices, also on slices that are missing now.
      last_generation: The highest ever given or reported.
      last_order: The highest arrival number ever given.
      starting: Held slices whose executors' start is not in the history yet.
    """

    def __init__(self, now: float) -> None:
        self.now = now
        self.slices: dict[str, Slice] = {}
        self.marks: dict[str, SliceMark] = {}
        self.last_generation = 0
        self.last_order = 0
        self.starting: set[Slice] = set()
        self._state_lost = False
        self._counters_changed = False
        self._unwritten: dict[str, Tenant] = {}
        self._forgotten: dict[str, None] = {}
        self._unwritten_marks: dict[str, None] = {}
        self._unwritten_reservations: dict[str, Reservation | None] = {}
        self._decisions: list[Decision] = []

    # ---- the history

    def decide(self, decision: Decision) -> None:
        """Adds a decision to the history."""
        self._decisions.append(decision)

    def decide_tenant(
        self, tenant: Tenant, kind: str, reason: str = "", *, ends: bool, related: str = ""
    ) -> None:
        """Adds a decision about a tenant to the history.

        Args:
          tenant: The tenant.
          kind: The kind of decision.
          reason: The reason, in words.
          ends: Whether the decision ends the tenant's wait, if it waits.
          related: The name of the other tenant involved.
        """
        who = tenant.name, tenant.request.user, tenant.request.team
        began = tenant.waits_since if ends else None
        self._decisions.append(
            Decision(self.now, kind, *who, "", None, 0, tenant.wanted, reason, related, began)
        )

    def decide_slice(self, about: Slice, kind: str, reason: str) -> None:
        """Adds a decision about a slice alone to the history."""
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
        """Adds a decision about a slice and its holder to the history."""
        tenant = held.tenant
        assert tenant is not None
        self._decisions.append(
            Decision(
                self.now,
                kind,
                tenant.name,
                tenant.request.user,
                tenant.request.team,
                held.id,
                held.index,
                held.generation,
                held.pool.name,
                reason,
                related,
                began,
            )
        )

    # ---- persistence

    def write(self, tenant: Tenant) -> None:
        """Notes that a tenant's persisted state is outdated."""
        self._unwritten[tenant.name] = tenant

    def note_start(self, held: Slice) -> None:
        """Notes that the start of a placement's executors is in the history."""
        assert held.tenant is not None
        self.starting.discard(held)
        self.write(held.tenant)

    def write_mark(self, marked: Slice) -> None:
        """Notes that a slice's persisted mark is outdated."""
        self._unwritten_marks[marked.id] = None

    def write_reservation(self, about: Reservation, *, over: bool = False) -> None:
        """Notes that a reservation must be persisted, or deleted if it is over."""
        self._unwritten_reservations[about.name] = None if over else about

    def set_state_lost(self, lost: bool) -> None:
        """Notes whether a restart must collect all claims again."""
        self._counters_changed |= lost != self._state_lost
        self._state_lost = lost

    def write_no_more(self, tenant: Tenant) -> None:
        """Notes that a tenant is gone, and must be deleted if it was persisted."""
        self._unwritten.pop(tenant.name, None)
        if tenant.persisted:
            self.forget(tenant.name)

    def forget(self, name: str) -> None:
        """Notes that a persisted tenant is gone and must be deleted."""
        self._forgotten[name] = None

    def take_unwritten(self) -> Persist | None:
        """Returns the changes to persist before any message is sent; None: no changes."""
        unwritten, decisions = self._unwritten, self._decisions
        has_rest = bool(
            self._unwritten_marks or self._unwritten_reservations or self._counters_changed
        )
        is_news = bool(unwritten or self._forgotten or has_rest)
        if not is_news and not decisions:
            return None
        persist = Persist(
            tuple([_grant_of(tenant, self.starting) for tenant in unwritten.values()]),
            tuple(self._forgotten),
            self.last_generation,
            self.last_order,
            self._state_lost,
            decisions=tuple(decisions),
            can_wait=not is_news and not any(one.tenant for one in decisions),
        )
        for tenant in unwritten.values():
            tenant.persisted = True
        unwritten.clear()
        self._forgotten.clear()
        decisions.clear()
        if has_rest:
            self._take_rest(persist)
        return persist

    def _take_rest(self, persist: Persist) -> None:
        """Moves changes that few events make to a record: marks and reservations."""
        marks, reservations = self._unwritten_marks, self._unwritten_reservations
        persist.marks = tuple(map(self._mark_of, marks))
        persist.reservations = tuple(filter(None, reservations.values()))
        persist.reservations_over = tuple(n for n, one in reservations.items() if one is None)
        self._counters_changed = False
        marks.clear()
        reservations.clear()

    def _mark_of(self, slice_id: str) -> PersistedMark:
        mark = self.marks.get(slice_id, SliceMark.NONE)
        marked = self.slices.get(slice_id)
        return PersistedMark(
            slice_id=slice_id, mark=mark, moves_at=None if marked is None else marked.moves_at
        )


def _grant_of(tenant: Tenant, starting: set[Slice]) -> PersistedGrant:
    """Returns the state of a tenant to persist."""
    placements: dict[int, tuple[str, int]] = {}
    incarnations: dict[str, tuple[str, ...]] = {}
    held_since: dict[str, float] = {}
    for index, held in tenant.placed.items():
        placements[index] = held.id, held.generation
        incarnations[held.id] = held.relied_on
        held_since[held.id] = held.held_since
    notice = tenant.notice
    return PersistedGrant(
        tenant.request,
        tenant.incarnation,
        tenant.pid,
        tenant.order,
        tenant.running,
        placements,
        tenant.asked_at,
        tenant.waits_since,
        tuple(tenant.lost),
        incarnations,
        tenant.preempted,
        None
        if notice is None
        else PersistedNotice(by=notice.by, said=notice.said, ends_at=notice.ends_at),
        tenant.ends_at,
        held_since,
        tenant.idled,
        tenant.parked,
        tuple([held.id for held in tenant.placed.values() if held in starting]),
    )
