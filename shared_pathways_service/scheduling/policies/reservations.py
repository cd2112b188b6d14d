"""Slices of a type are reserved for a user or a team, from one moment until another.

From its start on, as many slices as are reserved are kept for the owner's tenants, which then pass
everybody in line. Slices that others hold at the start are not taken from them: they come to the
owner as they come free, unless a request of the owner's preempts by its priority, as any does.
Before the start others may have them if enough remain, or if they stated a lifetime that is over
by then (`scheduling.policies.reserved_slices`). What an owner holds by a reservation is not
preempted; nobody preempts for more than the reservations leave.

Slices that were lost are replaced, and slices that are drained are left, before reservations are
looked at: a gang that runs would else be lost to slices that nobody uses yet.
"""

from __future__ import annotations

from functools import partial

from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.events import manager_events
from shared_pathways_service.events.recorded_decisions import DecisionKind
from shared_pathways_service.scheduling.book.deadlines import Deadlines
from shared_pathways_service.scheduling.book.decisions import Decision
from shared_pathways_service.scheduling.book.ledger import Ledger
from shared_pathways_service.scheduling.book.messages import ReservationCancelled, ReservationMade
from shared_pathways_service.scheduling.book.persisted import Restored
from shared_pathways_service.scheduling.book.records import Pool
from shared_pathways_service.scheduling.book.reserved import Reservation, moment
from shared_pathways_service.scheduling.book.speaker import Speaker
from shared_pathways_service.scheduling.policies.reserved_slices import ReservedSlices

__all__ = ["Reservations"]

#: Reservations that a refusal names: it must fit in the metadata of a call.
_NAMED = 5


class Reservations:
    """Reservations are made, begin, end, and are cancelled."""

    def __init__(self, ledger: Ledger, speaker: Speaker, deadlines: Deadlines) -> None:
        self._ledger = ledger
        self._speaker = speaker
        self._deadlines = deadlines
        self._reserved: dict[Pool, ReservedSlices] = {}

    def restore(self, restored: Restored) -> None:
        """Enters what the disk has; what is over, or of a type that there is no more, goes."""
        for one in restored.reservations:
            pool = self._ledger.pools.get(InstanceType.parse(one.instance_type))
            if pool is None:
                self._ledger.write_reservation(one, over=True)
                self._decide(DecisionKind.RESERVATION_ENDED, one, "the service has no such slices")
            else:
                self._enter(pool, one)

    def refusal(self, asked: Reservation) -> tuple[str, str] | None:
        """Returns which field cannot be, and what would be right; None: all can."""
        return self._refusal(asked, max(self._ledger.now, asked.starts))

    def _refusal(self, asked: Reservation, before: float) -> tuple[str, str] | None:
        """As `refusal`; it must end behind `before`."""
        pool = self._ledger.pools.get(InstanceType.parse(asked.instance_type))
        if pool is None:
            known = ", ".join(one.name for one in self._ledger.pools.values())
            return "instance_type", f"one of {known}"
        if asked.ends <= before:
            return "ends", f"after {moment(before)}, the reservation's start or now"
        if not 0 < asked.count <= pool.usable:
            return "count", f"from 1 to {pool.usable}, the slices of {pool.name} beside the spares"
        reserved = self._reserved.get(pool)
        taken = 0 if reserved is None else reserved.most(asked.starts, asked.ends)
        if taken + asked.count > pool.usable:
            left = pool.usable - taken
            others = [
                f"{one.name}: {one.count} {one.said}"
                for one in (reserved.entries if reserved else ())
                if one.starts < asked.ends and one.ends > asked.starts
            ]
            named = "; ".join(others[:_NAMED])
            if len(others) > _NAMED:
                named += f"; and {len(others) - _NAMED} more"
            most = f"{left} at most, or another time" if left else "another time"
            return "count", f"{most}: there is {named}"
        return None

    def made(self, event: ReservationMade) -> None:
        """Takes in a reservation, which can be; one that is over by now ends at once.

        Raises:
          ValueError: It cannot.
        """
        new = event.reservation
        if (wrong := self._refusal(new, new.starts)) is not None:
            raise ValueError(f"{wrong[0]}: {wrong[1]}")
        if self._find(new.name) is not None:
            raise ValueError(f"name={new.name}: there is one of that name")
        self._enter(self._ledger.pools[InstanceType.parse(new.instance_type)], new)
        self._ledger.write_reservation(new)
        self._tell(manager_events.ReservationMade, new)

    def cancelled(self, event: ReservationCancelled) -> None:
        """Ends a reservation before its time; of one that is not known, nothing."""
        found = self._find(event.name)
        if found is not None:
            self._leave(*found, "cancelled")

    def knows(self, name: str) -> bool:
        """Returns whether there is a reservation of that name."""
        return self._find(name) is not None

    def _find(self, name: str) -> tuple[Pool, Reservation] | None:
        for pool, reserved in self._reserved.items():
            for one in reserved.entries:
                if one.name == name:
                    return pool, one
        return None

    def _enter(self, pool: Pool, new: Reservation) -> None:
        reserved = self._reserved.get(pool)
        if reserved is None:
            reserved = ReservedSlices(pool, lambda: self._ledger.now)
            self._reserved[pool] = pool.reserved = reserved
        reserved.add(new)
        if new.starts <= self._ledger.now:
            reserved.in_force[new.name] = None
        else:
            self._deadlines.add(
                lambda: new.starts if self._is_there(pool, new) else None,
                lambda: self._began(pool, new),
            )
        self._deadlines.add(
            lambda: new.ends if self._is_there(pool, new) else None,
            lambda: self._leave(pool, new, "its time is over"),
        )
        self._ledger.reservations_changed(pool)

    def _began(self, pool: Pool, one: Reservation) -> None:
        self._reserved[pool].in_force[one.name] = None
        self._ledger.reservations_changed(pool)
        self._tell(manager_events.ReservationStarted, one)

    def _leave(self, pool: Pool, one: Reservation, why: str) -> None:
        reserved = self._reserved[pool]
        reserved.entries.remove(one)
        reserved.in_force.pop(one.name, None)
        if not reserved.entries:
            del self._reserved[pool]
            pool.reserved = None
        self._ledger.reservations_changed(pool)
        self._ledger.write_reservation(one, over=True)
        self._tell(manager_events.ReservationEnded, one, why)

    def _is_there(self, pool: Pool, one: Reservation) -> bool:
        return pool in self._reserved and one in self._reserved[pool].entries

    def _tell(
        self, event: type[manager_events.ReservationEvent], about: Reservation, why: str = ""
    ) -> None:
        self._decide(DecisionKind(event.kind), about, why)
        self._speaker.announce(
            partial(
                event,
                reason=f"{about.name}: {why}" if why else f"{about.name} {about.said}",
                instance_type=about.instance_type,
                count=about.count,
            )
        )

    def _decide(self, kind: DecisionKind, about: Reservation, why: str = "") -> None:
        self._ledger.decide(
            Decision(
                time=self._ledger.now,
                kind=kind,
                user=about.user,
                team=about.team,
                instance_type=f"{about.instance_type}={about.count}",
                reason=f"{about.name} {about.said}" + (f": {why}" if why else ""),
            )
        )
