"""Lines of those who wait, in the order in which they are served."""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from shared_pathways_service.scheduling.book.records import Tenant

__all__ = ["Entry", "Line"]

#: Rank of a tenant, a virtual index (-1: the whole gang), and the tenant.
Entry: TypeAlias = "tuple[float, int, int, Tenant]"


class Line:
    """Entries sorted by rank, then virtual index. No two share both, so tenants never compare."""

    __slots__ = ("entries",)

    def __init__(self) -> None:
        #: All of them, first served first; to be read only.
        self.entries: list[Entry] = []

    def __len__(self) -> int:
        return len(self.entries)

    def first(self) -> Entry | None:
        """Returns who is served next."""
        return self.entries[0] if self.entries else None

    def add(self, tenant: Tenant, index: int = -1) -> None:
        """Puts an entry in its place."""
        bisect.insort(self.entries, (*tenant.rank, index, tenant))

    def remove(self, tenant: Tenant, index: int = -1) -> None:
        """Takes out an entry that is there."""
        del self.entries[self.ahead_of(tenant, index)]

    def ahead_of(self, tenant: Tenant, index: int = -1) -> int:
        """Returns how many entries come before this one."""
        key = (*tenant.rank, index)
        # A shorter tuple sorts before a longer one that begins with it.
        return bisect.bisect_left(self.entries, key)
