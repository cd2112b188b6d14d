"""What a queue message must say of reservations, computed from the status alone."""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime

from shared_pathways_service.scheduling.book.holdings import StatusReport, TenantStatus
from shared_pathways_service.scheduling.book.reserved import Reservation

#: Reservations that are in force, and others that are to come, that a message names at most.
NAMED = 3


def said_of_reservations(reason: str, kind: str, wanted: int) -> list[str]:
    """Returns what a queue message says of each reservation of an instance type that it names."""
    (details,) = re.findall(rf"{kind} slices? (?:is|are) free \({wanted} wanted([^()]*)\)", reason)
    return [said for said in details.split("; ") if "reserved for" in said]


@dataclasses.dataclass(frozen=True)
class ReservedOf:
    """The reservations of one instance type, and what they leave.

    Attributes:
      kind: The instance type.
      usable: The most slices that a tenant may have, which are all but the spares.
      now: The time of the report.
    """

    report: StatusReport
    kind: str
    usable: int
    now: float

    @property
    def _all(self) -> list[Reservation]:
        """Those of users before those of teams: a slice counts for one of them, the first."""
        found = [one.reservation for one in self.report.reservations]
        found = [one for one in found if one.instance_type == self.kind]
        return sorted(found, key=lambda one: (not one.user, one.starts, one.name))

    def words(self) -> list[str]:
        """Returns the words about each reservation that is named, in their order."""
        in_force, short = self._in_force(), self._short_at(self.now)
        to_come = [one for one in self._all if one not in in_force]
        kept = [
            f"{_are(short[one.name])} reserved for {_owner(one)} until {_time(one.ends)}"
            for one in in_force
            if short[one.name]
        ]
        coming = [
            f"{_are(one.count)} reserved for {_owner(one)} from {_time(one.starts)} "
            f"until {_time(one.ends)}"
            for one in sorted(to_come, key=lambda one: one.starts)
        ]
        return kept[:NAMED] + coming[:NAMED]

    def room(self, tenant: TenantStatus, free: int) -> int:
        """Returns how many of some free slices a tenant may have beside others' reservations."""
        others = {one.name for one in self._all if not _is_for(one, tenant)}
        ends_at = math.inf if tenant.ends_at is None else tenant.ends_at
        starts = {one.starts for one in self._all if one.name in others}
        rooms = [free - _of(others, self._short_at(self.now))]
        rooms += [
            self.usable - self._taken_at(start) - _of(others, self._short_at(start))
            for start in starts
            if self.now < start < ends_at
        ]
        return max(0, min(rooms))

    def held(self) -> dict[str, int]:
        """Returns how many slices of each reservation in force its owner holds, by its name."""
        short = self._short_at(self.now)
        return {one.name: one.count - short[one.name] for one in self._in_force()}

    def _in_force(self) -> list[Reservation]:
        return [one for one in self._all if one.starts <= self.now]

    def _holders_at(self, when: float) -> Iterable[TenantStatus]:
        """Yields the holder of each slice that it has now, and will have at a time."""
        tenants = {one.name: one for one in self.report.tenants}
        for one in self.report.slices:
            if one.instance_type == self.kind and one.tenant:
                holder = tenants[one.tenant]
                if when == self.now or holder.ends_at is None or holder.ends_at > when:
                    yield holder

    def _short_at(self, when: float) -> dict[str, int]:
        """Returns how many slices of each reservation its owner does not have at a time."""
        left = Counter((one.user, one.team) for one in self._holders_at(when))
        short = {}
        for one in self._all:
            if one.starts <= when < one.ends:
                short[one.name] = one.count
                for user, team in left:
                    if one.user == user if one.user else one.team == team:
                        had = min(short[one.name], left[user, team])
                        short[one.name] -= had
                        left[user, team] -= had
        return short

    def _taken_at(self, when: float) -> int:
        """Returns how many slices are held at a time, or promised to waiting tenants now."""
        tenants = {one.name for one in self.report.tenants}
        promised = [
            one
            for one in self.report.slices
            if one.instance_type == self.kind and one.kept_for in tenants
        ]
        return len(list(self._holders_at(when))) + len(promised)


def _is_for(one: Reservation, tenant: TenantStatus) -> bool:
    return tenant.user == one.user if one.user else tenant.team == one.team


def _owner(one: Reservation) -> str:
    return f"user {one.user}" if one.user else f"team {one.team}"


def _are(count: int) -> str:
    return f"{count} is" if count == 1 else f"{count} are"


def _time(when: float) -> str:
    return f"{datetime.fromtimestamp(when, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _of(names: set[str], counts: dict[str, int]) -> int:
    return sum(count for name, count in counts.items() if name in names)
