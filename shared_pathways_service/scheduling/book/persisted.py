"""The persisted state, as the core writes it and is restored from it: data only.

Most events create one of these, so they are created by position and are not frozen: keyword
arguments or frozen classes would double the cost of creating one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from shared_pathways_service.api.tenant_requests import TenantRequest
from shared_pathways_service.scheduling.book.decisions import Decision
from shared_pathways_service.scheduling.book.reserved import Reservation
from shared_pathways_service.scheduling.book.states import SliceMark

__all__ = ["Persist", "PersistedGrant", "PersistedMark", "PersistedNotice", "Restored"]


@dataclasses.dataclass(kw_only=True, slots=True)
class PersistedNotice:
    """A preemption notice that a tenant was given.

    Attributes:
      by: The name of the preemptor, which gets the slices.
      said: The label of the preemptor in the notice.
      ends_at: When the slices are taken at the earliest, by the core's clock.
    """

    by: str
    said: str
    ends_at: float


@dataclasses.dataclass(kw_only=True, slots=True)
class PersistedMark:
    """An operator's mark on a slice.

    Attributes:
      mark: `SliceMark.NONE`: the former mark was removed.
      moves_at: When its holder is moved to another slice, if it is; by the core's clock.
    """

    slice_id: str
    mark: SliceMark
    moves_at: float | None = None


@dataclasses.dataclass(slots=True)
class PersistedGrant:
    """The persisted state of one tenant whose request was answered.

    Attributes:
      order: Arrival number; the queue's order among equal priorities.
      running: Whether its gang was placed once: False means that it is in the queue.
      placements: Virtual index to (slice id, generation) of each placement.
      asked_at: When it made its request, by the core's clock, for people and the queue's timeout.
      waits_since: When its present or last wait began; None: at `asked_at`.
      lost: Virtual indices that were placed once and are not now: they may take a spare.
      incarnations: Slice id to the incarnations of the workers of each placement: a worker with
        another incarnation after the RM's restart means that the slice was lost meanwhile.
      preempted: Whether it waits because it was preempted.
      notice: The preemption notice that it is under; None: it is under none.
      ends_at: When its stated lifetime is over, by the core's clock; None: it stated none.
      held_since: Slice id to when it was placed there, by the core's clock.
      idled: Whether it has not run since its slices were taken back because it was idle.
      parked: While it is parked (waits in no line): its count of activity at that time.
      starting: The ids of the slices of placements whose start is not in the history yet; None:
        unknown, as an older release wrote this.
    """

    request: TenantRequest
    incarnation: str
    pid: int
    order: int
    running: bool
    placements: Mapping[int, tuple[str, int]]
    asked_at: float
    waits_since: float | None = None
    lost: tuple[int, ...] = ()
    incarnations: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    preempted: bool = False
    notice: PersistedNotice | None = None
    ends_at: float | None = None
    held_since: Mapping[str, float] = dataclasses.field(default_factory=dict)
    idled: bool = False
    parked: int | None = None
    starting: tuple[str, ...] | None = None

    @property
    def wait_began(self) -> float:
        """When its present or last wait began, by the core's clock."""
        return self.asked_at if self.waits_since is None else self.waits_since


@dataclasses.dataclass(slots=True)
class Persist:
    """Write these before any later instruction is carried out.

    Attributes:
      grants: Tenants to write, each replacing its former record.
      forgotten: Names of tenants to delete.
      last_generation: The highest generation ever given.
      last_order: The highest arrival number ever given.
      state_lost: The former state was lost and may not be fully recovered: a restart must collect
        all claims again.
      marks: Slices whose mark changed.
      reservations: New ones.
      reservations_over: Names of reservations to delete.
      decisions: For the history, in this order; the other fields have the resulting state.
      can_wait: Whether this has only decisions, and no later message depends on them: they may be
        written with the next `Persist`.
    """

    grants: tuple[PersistedGrant, ...]
    forgotten: tuple[str, ...]
    last_generation: int
    last_order: int
    state_lost: bool = False
    marks: tuple[PersistedMark, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    reservations_over: tuple[str, ...] = ()
    decisions: tuple[Decision, ...] = ()
    can_wait: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Restored:
    """The state that all `Persist` before a restart left on the disk.

    Attributes:
      grants: In any order.
      last_generation: As of the last `Persist`.
      last_order: As of the last `Persist`.
      state_lost: As of the last `Persist`; True before the first one, unless the service is new.
      marks: The marks of all slices that have one.
      reservations: In any order.
    """

    grants: tuple[PersistedGrant, ...] = ()
    last_generation: int = 0
    last_order: int = 0
    state_lost: bool = False
    marks: tuple[PersistedMark, ...] = ()
    reservations: tuple[Reservation, ...] = ()
