"""Describes the slices of one instance type in words, for waiting and refused tenants."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

__all__ = ["PoolText", "describe"]


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


def describe(
    name: str,
    *,
    free: int,
    spares: int,
    reserved: str,
    ready: int,
    count: int,
    holders: Iterable[tuple[str, int]],
    others: int,
) -> PoolText:
    """Describes a pool.

    Args:
      name: The instance type.
      free: Slices that a tenant can be granted now.
      spares: Slices that are free too, but kept as spares.
      reserved: The reservations, as `Reserved.words` has them.
      ready: Slices that are ready.
      count: All slices.
      holders: Tenants with the number of slices that they hold.
      others: Further holders, which are not named.
    """
    details = ""
    if spares:
        verb, noun = ("is", "a spare") if spares == 1 else ("are", "spares")
        details = f"; {spares} more {verb} reserved as {noun}"
    details += reserved
    if ready < count:
        details += f"; {ready} of {count} ready"
    texts = [f"{holder}: {held} x {name}" for holder, held in holders]
    if others > 0:
        texts.append(f"and {others} more of {name}")
    return PoolText(_free_text(name, free), details, tuple(texts))


def _free_text(name: str, count: int) -> str:
    if count == 0:
        return f"no {name} slice is free"
    return f"1 {name} slice is free" if count == 1 else f"{count} {name} slices are free"
