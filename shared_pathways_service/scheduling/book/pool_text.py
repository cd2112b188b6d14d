"""Describes the slices of one instance type in words, for waiting and refused tenants."""

from __future__ import annotations

import dataclasses

__all__ = ["PoolText", "free_slices"]


@dataclasses.dataclass(frozen=True, slots=True)
class PoolText:
    """The description of a pool.

    Attributes:
      name: The instance type.
      details: More, to follow the number that a tenant wants; empty or begins with ``;``.
      holders: The holders of its slices.
    """

    name: str
    details: str
    holders: tuple[str, ...]
    _reasons: dict[tuple[int, int], str] = dataclasses.field(default_factory=dict)

    def reason(self, free: int, wanted: int) -> str:
        """Returns how many slices are free for a tenant, how many it wants, and the details.

        It is made once for all tenants that want as many and may have as many.
        """
        known = self._reasons.get((free, wanted))
        if known is None:
            known = f"{free_slices(free, self.name)} ({wanted} wanted{self.details})"
            self._reasons[free, wanted] = known
        return known


def free_slices(count: int, name: str) -> str:
    """Returns in words how many slices are free."""
    if count == 0:
        return f"no {name} slice is free"
    return f"1 {name} slice is free" if count == 1 else f"{count} {name} slices are free"
