"""Describes the slices of one instance type in words, for waiting and refused tenants."""

from __future__ import annotations

import dataclasses

__all__ = ["PoolText"]


@dataclasses.dataclass(frozen=True, slots=True)
class PoolText:
    """The description of a pool.

    Attributes:
      free: How many of its slices are free.
      details: More, to follow the number that a tenant wants; empty or begins with ``;``.
      holders: The holders of its slices.
    """

    free: str
    details: str
    holders: tuple[str, ...]

    def reason(self, wanted: int) -> str:
        """Returns why a tenant that wants so many slices waits."""
        return f"{self.free} ({wanted} wanted{self.details})"
