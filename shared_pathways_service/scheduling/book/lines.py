"""Sorted queues, in the order in which their entries are served."""

from __future__ import annotations

import bisect
from typing import Generic, Protocol, TypeAlias, TypeVar

__all__ = ["Entry", "Line", "Ranked"]


class Ranked(Protocol):
    """An object that has a place in a queue: a tenant."""

    @property
    def rank(self) -> tuple[float, int]:
        """Sorts the queue, the smallest first; no two have the same."""


T = TypeVar("T", bound=Ranked)

#: Rank of a tenant, a virtual index (-1: the whole gang), and the tenant.
Entry: TypeAlias = tuple[float, int, int, T]


class Line(Generic[T]):
    """Entries sorted by rank, then virtual index. No two share both, so tenants never compare."""

    __slots__ = ("entries",)

    def __init__(self) -> None:
        #: All entries, in the order in which they are served; read-only.
        self.entries: list[Entry[T]] = []

    def __len__(self) -> int:
        return len(self.entries)

    def first(self) -> Entry[T] | None:
        """Returns the entry that is served next."""
        return self.entries[0] if self.entries else None

    def add(self, tenant: T, index: int = -1) -> None:
        """Puts an entry in its place."""
        bisect.insort(self.entries, (*tenant.rank, index, tenant))

    def remove(self, tenant: T, index: int = -1) -> None:
        """Removes an entry."""
        del self.entries[self.ahead_of(tenant, index)]

    def ahead_of(self, tenant: T, index: int = -1) -> int:
        """Returns how many entries come before this one."""
        key = (*tenant.rank, index)
        # A shorter tuple sorts before a longer one that begins with it.
        return bisect.bisect_left(self.entries, key)
