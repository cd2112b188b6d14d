"""What the resource manager must remember, as its core says it and has it back: data only.

Most events make one. So they are made by position, and are not frozen: either would double what
making one costs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.scheduling.book.decisions import Decision
from shared_pathways_service.scheduling.book.reserved import Reservation
from shared_pathways_service.scheduling.book.states import SliceMark

__all__ = ["Persist", "PersistedGrant", "PersistedMark", "PersistedNotice", "Restored"]


@dataclasses.dataclass(kw_only=True, slots=True)
class PersistedNotice:
    """That a tenant was told that its slices will be taken.

    Attributes:
      by: The tenant that gets them.
      said: How the holder was told of that one.
      ends_at: When they are taken at the earliest, by the core's clock.
    """

    by: str
    said: str
    ends_at: float


@dataclasses.dataclass(kw_only=True, slots=True)
class PersistedMark:
    """What an operator said of a slice.

    Attributes:
      mark: `SliceMark.NONE`: what was said before is over.
      moves_at: When its holder is moved to another slice, if it is; by the core's clock.
    """

    slice_id: str
    mark: SliceMark
    moves_at: float | None = None


@dataclasses.dataclass(slots=True)
class PersistedGrant:
    """All that the RM must remember of one tenant that it has answered.

    Attributes:
      order: Arrival number; the queue's order among equal priorities.
      running: Whether its gang was placed once: False means that it is in the queue.
      placements: Virtual index to (slice id, generation), of what is placed.
      asked_at: When it asked, by the core's clock, for people and for the queue's timeout.
      waits_since: When its present or last wait began; None: when it asked.
      lost: Virtual indices that were placed once and are not now: they may take a spare.
      incarnations: Slice id to the incarnations of its workers, of what is placed: a worker that
        is another after the RM's restart was lost meanwhile.
      preempted: Whether it waits because it was preempted.
      notice: While its slices are about to be taken.
      ends_at: When its stated lifetime is over, by the core's clock; None: it stated none.
      held_since: Slice id to when it was placed there, by the core's clock.
      idled: Whether it has not run since its slices were taken back, as it was idle.
      parked: While it does not wait for others either: its count of activity at that time.
    """

    tenant: str
    incarnation: str
    virtual_slices: tuple[InstanceType, ...]
    num_elastic: int
    priority: int
    queue_timeout_s: float | None
    user: str
    team: str
    host: str
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

    @property
    def wait_began(self) -> float:
        """When its present or last wait began, by the core's clock."""
        return self.asked_at if self.waits_since is None else self.waits_since


@dataclasses.dataclass(slots=True)
class Persist:
    """Write these before any instruction behind this one is carried out.

    Attributes:
      grants: Tenants to write, each replacing what was written of it.
      forgotten: Names of tenants to delete.
      last_generation: The highest generation ever given.
      last_order: The highest arrival number ever given.
      state_lost: What was there before is not known, and not all of it may be known again: a
        restart must hear everybody's claims once more.
      marks: Slices whose mark changed.
      reservations: New ones.
      reservations_over: Names of those that are no more.
      decisions: For the history, in this order; what they say is what the rest of this makes so.
      can_wait: Whether there are decisions only, none of which anybody is told behind this: they
        may be written with the next one.
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
    """What all `Persist` before a restart have left on the disk.

    Attributes:
      grants: In any order.
      last_generation: As of the last `Persist`.
      last_order: As of the last `Persist`.
      state_lost: As of the last `Persist`; True before the first one, unless the service is new.
      marks: Of all slices that have one.
      reservations: In any order.
    """

    grants: tuple[PersistedGrant, ...] = ()
    last_generation: int = 0
    last_order: int = 0
    state_lost: bool = False
    marks: tuple[PersistedMark, ...] = ()
    reservations: tuple[Reservation, ...] = ()
