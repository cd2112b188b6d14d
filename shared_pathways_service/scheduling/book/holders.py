"""Who holds slices of one type, in the order in which they would be preempted."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

__all__ = ["Holders", "Victim"]


class Victim(Protocol):
    """Whoever may be preempted: a tenant."""

    @property
    def priority(self) -> int:
        """The lowest goes first."""

    @property
    def order(self) -> int:
        """Of equal priority, the highest goes first."""


T = TypeVar("T", bound=Victim)

#: Changes that are noted at most before they are worked in.
_MANY = 4096


class Holders(Generic[T]):
    """Running tenants that may be preempted: lowest priority first, of equal ones the youngest.

    Most events need no order: a change is only noted, and worked in when the order is asked for.
    """

    __slots__ = ("_changed", "_entries", "_sums", "_yields", "lowest")

    def __init__(self) -> None:
        self._changed: dict[T, None] = {}
        self._entries: list[tuple[int, int, T]] = []
        self._yields: dict[T, int] = {}
        self._sums: dict[int, int] = {}
        #: No holder has a lower priority than this.
        self.lowest = float("inf")

    def changed(self, tenant: T, count_of: Callable[[T], int]) -> None:
        """Notes that a tenant holds more or less than before.

        Args:
          tenant: Which one.
          count_of: How many slices of this type would come free with a tenant.
        """
        self._changed[tenant] = None
        if tenant.priority < self.lowest:  # noqa: PLR1730 - at every event; min() is slower
            self.lowest = tenant.priority
        if len(self._changed) > _MANY:
            self.refresh(count_of)

    def refresh(self, count_of: Callable[[T], int]) -> None:
        """Works all changes in."""
        for tenant in self._changed:
            self._set(tenant, count_of(tenant))
        self._changed.clear()
        self.lowest = self._entries[0][0] if self._entries else float("inf")

    def below(self, priority: int) -> int:
        """Returns how many slices those of lower priority would yield together."""
        return sum(count for of, count in self._sums.items() if of < priority)

    def in_order(self, priority: int) -> Iterator[tuple[int, int, T]]:
        """Yields those of lower priority: priority, how young, and who; first who goes first."""
        for entry in self._entries:
            if entry[0] >= priority:
                return
            yield entry

    def yield_of(self, tenant: T) -> int:
        """Returns how many slices one would yield."""
        return self._yields.get(tenant, 0)

    def _set(self, tenant: T, count: int) -> None:
        before = self._yields.get(tenant, 0)
        if count == before:
            return
        key = (tenant.priority, -tenant.order)
        total = self._sums.get(tenant.priority, 0) + count - before
        if total:
            self._sums[tenant.priority] = total
        else:
            del self._sums[tenant.priority]
        if not before:
            bisect.insort(self._entries, (*key, tenant))
        elif not count:
            del self._entries[bisect.bisect_left(self._entries, key)]
        if count:
            self._yields[tenant] = count
        else:
            del self._yields[tenant]
