"""Computes what the reservations of one instance type leave to each tenant."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from shared_pathways_service.scheduling.book.records import Pool, Tenant
from shared_pathways_service.scheduling.book.reserved import Reservation, moment
from shared_pathways_service.scheduling.book.states import SliceMark

__all__ = ["ReservedSlices", "most_reserved"]

#: Reservations of a type that a queue message names at most.
_NAMED = 3


class ReservedSlices:
    """The reservations of a pool.

    Each slice that an owner holds counts for only one reservation: a user's before a team's, and
    the tenant that came first before others.

    Args:
      pool: The pool of the instance type.
      clock: Returns the time.

    Attributes:
      in_force: Names of the reservations that have begun.
      entries: The reservations of users before those of teams, then by start time.
    """

    __slots__ = ("_clock", "_held_at", "_pool", "_sheltered", "_short", "entries", "in_force")

    def __init__(self, pool: Pool, clock: Callable[[], float]) -> None:
        self.entries: list[Reservation] = []
        self.in_force: dict[str, None] = {}
        self._pool = pool
        self._clock = clock
        # Cached until something changes: it may be needed for every tenant in line.
        self._sheltered: set[Tenant] | None = None
        self._short: dict[float | None, dict[str, int]] = {}
        self._held_at: dict[float, int] = {}

    def add(self, new: Reservation) -> None:
        """Adds a reservation."""
        self.entries.append(new)
        self.entries.sort(key=lambda one: (not one.user, one.starts, one.name))

    def room_for(self, tenant: Tenant) -> int:
        """Returns how many free slices a tenant may take beside others' reservations.

        Others' reservations that are in force come first. One that begins while the tenant may
        still run must find enough slices then: slices without a holder, and slices whose holders
        stated a lifetime that is over before.
        """
        room = self._pool.grantable
        others = self._others(tenant)
        if not others or not room:
            return room
        room -= _sum_of(self._shortages(), others)
        for start in self._starts_to_come(tenant, others):
            room = min(room, self._left_at(start, others))
        return max(0, room)

    def short_until(self, tenant: Tenant) -> float:
        """Returns until when coming reservations of others keep a tenant from one more slice.

        Returns:
          The latest start of such a reservation; minus infinity without any.
        """
        return max(self._short_at(tenant), default=-math.inf)

    def room_beside(self, tenant: Tenant, running: Tenant) -> int:
        """Returns how many free slices a tenant may take before an elastic slice of `running`.

        The elastic slice goes first, unless a reservation to come keeps it waiting. It waits no
        longer for slices that are let go before that reservation begins, nor for those that the
        tenant is due then anyway, by a reservation of its own.
        """
        room = self.room_for(tenant)
        if not room or self.room_for(running):
            return 0
        ends_at = math.inf if tenant.ends_at is None else tenant.ends_at
        mine = {one.name: one for one in self.entries if one.is_for(tenant.request)}
        due = (
            room if ends_at <= start else _sum_of(self._shortages(start), mine)
            for start in self._short_at(running)
        )
        return min(room, max(due, default=0))

    def _short_at(self, tenant: Tenant) -> list[float]:
        """Returns the starts of others' reservations that keep a tenant from one more slice."""
        others = self._others(tenant)
        starts = self._starts_to_come(tenant, others)
        return [start for start in starts if self._left_at(start, others) <= 0]

    def own_room(self, tenant: Tenant) -> int:
        """Returns how many free slices are reserved for a tenant, whatever its place in line."""
        mine = [one.name for one in self._now() if one.is_for(tenant.request)]
        if not mine:
            return 0
        shortages = self._shortages()
        return min(self.room_for(tenant), sum(shortages[name] for name in mine))

    def most_for(self, tenant: Tenant) -> int:
        """Returns how many slices a tenant may have if all other holders left."""
        others = [one for one in self.entries if not one.is_for(tenant.request)]
        ends_at = math.inf if tenant.ends_at is None else tenant.ends_at
        return max(0, self._pool.usable - most_reserved(others, self._clock(), ends_at))

    def moments(self, tenant: Tenant) -> Iterator[float]:
        """Yields now, and when others' reservations end within a tenant's stated lifetime."""
        yield self._clock()
        ends_at = math.inf if tenant.ends_at is None else tenant.ends_at
        yield from (one.ends for one in self._others(tenant).values() if one.ends < ends_at)

    def room_of(self, in_service: int, tenant: Tenant, when: float) -> int:
        """Returns how many of the slices in service a tenant may have if no other holds any.

        Owners of reservations may still hold cordoned slices then, which count for those.

        Args:
          in_service: How many are in service at that time, as `Pool.in_service`.
          tenant: The tenant.
          when: The time.
        """
        ends_at = math.inf if tenant.ends_at is None else tenant.ends_at
        others = self._others(tenant).values()
        there = [one for one in others if one.holds_at(when)]
        room = in_service - sum(one.count for one in there) + self._had_beside(there, when)
        for start in {one.starts for one in others if when < one.starts < ends_at}:
            due = sum(one.count for one in others if one.holds_at(start))
            room = min(room, self._pool.usable - due)
        return max(0, room)

    def _had_beside(self, there: Sequence[Reservation], when: float) -> int:
        """Returns how many of some reservations' slices their owners have on cordoned slices.

        That is at most: as long as they stay, and end all others.
        """
        held = {
            tenant: sum(
                one.pool is self._pool and one.mark is SliceMark.CORDONED
                for one in tenant.placed.values()
            )
            for tenant in self._pool.holders
            if _holds_on(tenant, when)
        }
        had = 0
        for one in there:
            short = one.count
            for tenant in [tenant for tenant in held if one.is_for(tenant.request)]:
                in_service = self._pool.holders[tenant] - held[tenant]
                count = min(held[tenant], max(0, short - in_service))
                held[tenant] -= count
                short -= count
                had += count
        return had

    def barred_until(self, tenant: Tenant, wanted: int) -> float:
        """Returns the time before which a tenant cannot have `wanted` slices; -inf: it can now."""
        if wanted <= self.most_for(tenant):
            return -math.inf
        others = (one.ends for one in self.entries if not one.is_for(tenant.request))
        return min(others, default=math.inf)

    def shelters(self, tenant: Tenant) -> bool:
        """Whether a tenant's slices count for a reservation that is in force."""
        if self._sheltered is None:
            self._sheltered = {who for _, who, _ in self._counted(self._now())}
        return tenant in self._sheltered

    def holders_changed(self) -> None:
        """Clears results that depend on the holders of slices and on the time."""
        self._sheltered = None
        self._short.clear()
        self._held_at.clear()

    def held(self, of: Reservation) -> int:
        """Returns how many slices of a reservation its owner holds now."""
        return of.count - self._shortages().get(of.name, of.count)

    def words(self) -> str:
        """Describes present and coming reservations for waiting tenants; empty: none."""
        shortages = self._shortages()
        kept = [
            f"; {_are(shortages[one.name])} reserved for {one.owner} until {moment(one.ends)}"
            for one in self._now()
            if shortages[one.name]
        ]
        to_come = [
            f"; {_are(one.count)} reserved {one.said}"
            for one in sorted(self.entries, key=lambda one: one.starts)
            if one.name not in self.in_force
        ]
        return "".join([*kept[:_NAMED], *to_come[:_NAMED]])

    def _others(self, tenant: Tenant) -> dict[str, Reservation]:
        """Returns the reservations that are not for a tenant, by name."""
        return {one.name: one for one in self.entries if not one.is_for(tenant.request)}

    def _starts_to_come(self, tenant: Tenant, others: dict[str, Reservation]) -> set[float]:
        """Returns the starts of others' reservations within a tenant's stated lifetime."""
        ends_at = math.inf if tenant.ends_at is None else tenant.ends_at
        to_come = (one.starts for name, one in others.items() if name not in self.in_force)
        return {starts for starts in to_come if starts < ends_at}

    def _left_at(self, start: float, others: dict[str, Reservation]) -> int:
        """Returns how many usable slices are neither held nor due at a time; may be negative."""
        return self._pool.usable - self._taken_at(start) - _sum_of(self._shortages(start), others)

    def _now(self) -> list[Reservation]:
        return [one for one in self.entries if one.name in self.in_force]

    def _shortages(self, when: float | None = None) -> dict[str, int]:
        """Returns by how many slices each reservation is short at a time; None: now.

        For a later time, slices held now count if their holders will still be running.
        """
        known = self._short.get(when)
        if known is not None:
            return known
        there = self._now()
        if when is not None:
            there = [one for one in self.entries if one.holds_at(when)]
        shortages = self._short[when] = {one.name: one.count for one in there}
        for one, _, count in self._counted(there, when):
            shortages[one.name] -= count
        return shortages

    def _counted(
        self, there: list[Reservation], when: float | None = None
    ) -> Iterator[tuple[Reservation, Tenant, int]]:
        """Yields the slices that tenants hold by each of some reservations."""
        left = {
            tenant: count
            for tenant, count in sorted(self._pool.holders.items(), key=lambda item: item[0].order)
            if when is None or _holds_on(tenant, when)
        }
        for one in there:
            short = one.count
            for tenant, has in list(left.items()):
                count = min(short, has) if one.is_for(tenant.request) else 0
                if count:
                    left[tenant] = has - count
                    short -= count
                    yield one, tenant, count

    def _taken_at(self, when: float) -> int:
        """Returns how many slices the present holders and promised tenants have at a time."""
        pool = self._pool
        held = self._held_at.get(when)
        if held is None:
            held = sum(count for tenant, count in pool.holders.items() if _holds_on(tenant, when))
            self._held_at[when] = held
        promised = (entry[-1].promised.get(pool, ()) for entry in pool.planned.entries)
        return held + sum(map(len, promised))


def _are(count: int) -> str:
    return f"{count} is" if count == 1 else f"{count} are"


def _holds_on(tenant: Tenant, when: float) -> bool:
    return tenant.ends_at is None or tenant.ends_at > when


def _sum_of(shortages: dict[str, int], others: dict[str, Reservation]) -> int:
    """Returns by how many slices some of the reservations are short together."""
    return sum(count for name, count in shortages.items() if name in others)


def most_reserved(entries: Sequence[Reservation], since: float, until: float) -> int:
    """Returns the most slices that are reserved at any one time within a window."""
    there = [one for one in entries if one.starts < until and one.ends > since]
    moments = {since, *(one.starts for one in there if one.starts > since)}
    return max(sum(one.count for one in there if one.holds_at(when)) for when in moments)
