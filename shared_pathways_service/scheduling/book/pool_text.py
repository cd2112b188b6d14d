"""Describes the slices of one instance type in words, for waiting and refused tenants."""

from __future__ import annotations

import dataclasses

__all__ = ["PoolText", "free_slices"]


@dataclasses.dataclass(slots=True)
class PoolText:
    """The description of a pool, and sentences that were made of it for several tenants.

    Attributes:
      name: The instance type.
      details: More, to follow the number that a tenant wants; empty or begins with ``;``.
      holders: The holders of its slices.
      short: The reasons of tenants for which too few slices are free, by how many are free, how
        many they want, with how many they would start, and their priority.
      before: The first in line as last described: its state, and the words.
    """

    name: str
    details: str
    holders: tuple[str, ...]
    short: dict[tuple[int, int, int, int], str] = dataclasses.field(default_factory=dict)
    before: tuple[object, str] = (None, "")

    def reason(self, free: int, wanted: int) -> str:
        """Returns how many slices are free for a tenant, how many it wants, and the details."""
        return f"{free_slices(free, self.name)} ({wanted} wanted{self.details})"


def free_slices(count: int, name: str) -> str:
    """Returns in words how many slices are free."""
    if count == 0:
        return f"no {name} slice is free"
    return f"1 {name} slice is free" if count == 1 else f"{count} {name} slices are free"
