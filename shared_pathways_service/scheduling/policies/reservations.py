"""Reserves slices of a type for a user or a team during a time window.

From its start on, a reservation withholds its number of slices for the owner's tenants, which then
pass all others in line. It does not evict holders: slices that others hold at the start go to the
owner as they become free, unless a request of the owner preempts by its priority, as any may.
Before the start, others may have the slices if enough remain, or if they stated a lifetime that is
over by then (`scheduling.policies.reserved_slices`). Slices that an owner holds by a reservation
are not preempted, and no tenant preempts for more than the reservations leave.

Lost slices are replaced, and holders of drained slices are moved, before reservations are served:
otherwise a running gang would be lost for slices that no tenant uses yet.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Mapping
from functools import partial
from typing import Any

from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.events import manager_events
from shared_pathways_service.events.recorded_decisions import DecisionKind
from shared_pathways_service.scheduling.book.actions import Action, Actions, PlaceMissing, Start
from shared_pathways_service.scheduling.book.config import RmConfig
from shared_pathways_service.scheduling.book.deadlines import Deadlines
from shared_pathways_service.scheduling.book.decisions import Decision
from shared_pathways_service.scheduling.book.ledger import Ledger
from shared_pathways_service.scheduling.book.messages import ReservationCancelled, ReservationMade
from shared_pathways_service.scheduling.book.persisted import Restored
from shared_pathways_service.scheduling.book.precedence import grantable_to
from shared_pathways_service.scheduling.book.records import Pool, Tenant
from shared_pathways_service.scheduling.book.reserved import Reservation, moment
from shared_pathways_service.scheduling.book.speaker import Speaker
from shared_pathways_service.scheduling.policies.policy import Policy
from shared_pathways_service.scheduling.policies.reserved_slices import (
    ReservedSlices,
    most_reserved,
)

__all__ = ["Reservations", "refusal_of"]

#: Reservations that a refusal names at most: it must fit in the metadata of a call.
_NAMED = 5


class Reservations(Policy):
    """Its state: the reservations of each pool that has any."""

    def __init__(self, _config: RmConfig, ledger: Ledger, deadlines: Deadlines) -> None:
        self._ledger = ledger
        self._deadlines = deadlines
        self._reserved: dict[Pool, ReservedSlices] = {}

    @property
    def events(self) -> Mapping[type, Callable[[Any], Actions]]:
        """Operators' requests to make or cancel a reservation."""
        return {ReservationMade: self._made, ReservationCancelled: self._cancelled}

    def begin(self, restored: Restored) -> Actions:
        """Restores reservations; one of a type that the service no longer has is ended."""
        for one in restored.reservations:
            pool = self._ledger.pools.get(InstanceType.parse(one.instance_type))
            if pool is None:
                why = "the service has no such slices"
                yield Record(manager_events.ReservationEnded, one, why, is_announced=False)
            else:
                yield self._enter(pool, one)

    def serve_owners(self, pool: Pool) -> Actions:
        """Gives reserved slices to tenants of their owners."""
        return self._serve_all_owners(pool) if self._reserved else ()

    def _serve_all_owners(self, pool: Pool) -> Actions:
        while pool.grantable:
            if not (yield from self._serve_owner(pool)):
                return

    def validate(self, *, recovering: bool) -> None:
        """Checks that the book has the reservations of each pool."""
        del recovering
        for pool in self._ledger.pools.values():
            assert pool.reserved is self._reserved.get(pool)

    # ---- events

    def _made(self, event: ReservationMade) -> Actions:
        """Makes a reservation; one whose window is over ends at once.

        Raises:
          ValueError: It cannot be made.
        """
        new = event.reservation
        if (wrong := refusal_of(self._ledger, new, new.starts)) is not None:
            raise ValueError(f"{wrong[0]}: {wrong[1]}")
        if self._find(new.name) is not None:
            raise ValueError(f"name={new.name}: there is one of that name")
        yield self._enter(self._ledger.pools[InstanceType.parse(new.instance_type)], new)
        yield Record(manager_events.ReservationMade, new)

    def _cancelled(self, event: ReservationCancelled) -> Actions:
        """Ends a reservation before its time; does nothing if it is not known."""
        found = self._find(event.name)
        if found is not None:
            yield from self._leave(*found, "cancelled")

    def _find(self, name: str) -> tuple[Pool, Reservation] | None:
        for pool, reserved in self._reserved.items():
            for one in reserved.entries:
                if one.name == name:
                    return pool, one
        return None

    # ---- from the start of a reservation to its end

    def _enter(self, pool: Pool, new: Reservation) -> Action:
        reserved = self._reserved.get(pool)
        if reserved is None:
            reserved = self._reserved[pool] = ReservedSlices(pool, lambda: self._ledger.now)
        reserved.add(new)
        if new.starts <= self._ledger.now:
            reserved.in_force[new.name] = None
        else:
            self._deadlines.add(
                lambda: new.starts if self._is_there(pool, new) else None,
                lambda: self._begin(pool, new),
            )
        self._deadlines.add(
            lambda: new.ends if self._is_there(pool, new) else None,
            lambda: self._leave(pool, new, "its time is over"),
        )
        return ChangeReserved(pool, reserved)

    def _begin(self, pool: Pool, one: Reservation) -> Actions:
        reserved = self._reserved[pool]
        reserved.in_force[one.name] = None
        yield ChangeReserved(pool, reserved)
        yield Record(manager_events.ReservationStarted, one)

    def _leave(self, pool: Pool, one: Reservation, why: str) -> Actions:
        reserved = self._reserved[pool]
        reserved.entries.remove(one)
        reserved.in_force.pop(one.name, None)
        if not reserved.entries:
            del self._reserved[pool]
        yield ChangeReserved(pool, self._reserved.get(pool))
        yield Record(manager_events.ReservationEnded, one, why)

    def _is_there(self, pool: Pool, one: Reservation) -> bool:
        return pool in self._reserved and one in self._reserved[pool].entries

    # ---- placement

    def _serve_owner(self, pool: Pool) -> Generator[Action, None, bool]:
        """Gives reserved slices to one of their owner's tenants; returns whether there was one."""
        for *_, tenant in pool.waiting.entries:
            if any(_own_room(tenant, wanted) for wanted in tenant.wants):
                granted = {
                    wanted: min(count, _kept_for(tenant, wanted))
                    for wanted, count in tenant.wants.items()
                }
                if sum(granted.values()) >= tenant.gang:
                    yield Start(tenant, granted)
                    return True
        for *_, index, tenant in pool.fills.entries:
            if _own_room(tenant, pool):
                yield PlaceMissing(tenant, index, pool)
                return True
        return False


def _own_room(tenant: Tenant, pool: Pool) -> int:
    """Returns how many free slices are reserved for a tenant, whatever its place in line."""
    if pool.reserved is None or pool.repairs.entries or pool.drains:
        return 0
    return pool.reserved.own_room(tenant)


def _kept_for(tenant: Tenant, pool: Pool) -> int:
    """Returns how many slices a tenant could have by a promise, a reservation, or its turn."""
    promised = len(tenant.promised.get(pool, ()))
    return promised + max(_own_room(tenant, pool), grantable_to(tenant, pool))


def refusal_of(ledger: Ledger, asked: Reservation, before: float) -> tuple[str, str] | None:
    """Returns the invalid field of a reservation, and what is valid; None: it can be made.

    It must end after the time `before`.
    """
    pool = ledger.pools.get(InstanceType.parse(asked.instance_type))
    if pool is None:
        known = ", ".join(one.name for one in ledger.pools.values())
        return "instance_type", f"one of {known}"
    if asked.ends <= before:
        return "ends", f"after {moment(before)}, the reservation's start or now"
    if not 0 < asked.count <= pool.usable:
        return "count", f"from 1 to {pool.usable}, the slices of {pool.name} beside the spares"
    entries = () if pool.reserved is None else pool.reserved.entries
    taken = most_reserved(entries, asked.starts, asked.ends)
    if taken + asked.count > pool.usable:
        left = pool.usable - taken
        others = [
            f"{one.name}: {one.count} {one.said}"
            for one in entries
            if one.starts < asked.ends and one.ends > asked.starts
        ]
        named = "; ".join(others[:_NAMED])
        if len(others) > _NAMED:
            named += f"; and {len(others) - _NAMED} more"
        most = f"{left} at most, or another time" if left else "another time"
        return "count", f"{most}: there is {named}"
    return None


# ---- actions


@dataclasses.dataclass(eq=False, slots=True)
class ChangeReserved:
    """Applies the present reservations of a pool.

    Attributes:
      reserved: The reservations; None: there are none any more.
    """

    pool: Pool
    reserved: ReservedSlices | None

    def apply(self, ledger: Ledger, _speaker: Speaker) -> None:
        """Replaces the pool's reservations."""
        self.pool.reserved = self.reserved
        ledger.reservations_changed(self.pool)


@dataclasses.dataclass(eq=False, slots=True)
class Record:
    """Records that a reservation was made, began or ended.

    Attributes:
      why: Why it ended.
      is_announced: Whether watchers and logs are notified.
    """

    event: type[manager_events.ReservationEvent]
    about: Reservation
    why: str = ""
    is_announced: bool = True

    def apply(self, ledger: Ledger, speaker: Speaker) -> None:
        """Writes it to the disk and to the history."""
        about, why = self.about, self.why
        if self.event is not manager_events.ReservationStarted:
            is_over = self.event is manager_events.ReservationEnded
            ledger.write_reservation(about, over=is_over)
        ledger.decide(
            Decision(
                time=ledger.now,
                kind=DecisionKind(self.event.kind),
                user=about.user,
                team=about.team,
                instance_type=f"{about.instance_type}={about.count}",
                reason=f"{about.name} {about.said}" + (f": {why}" if why else ""),
            )
        )
        if self.is_announced:
            speaker.announce(
                partial(
                    self.event,
                    reason=f"{about.name}: {why}" if why else f"{about.name} {about.said}",
                    instance_type=about.instance_type,
                    count=about.count,
                )
            )
