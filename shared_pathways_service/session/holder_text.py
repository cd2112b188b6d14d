"""Describes the holders of slices in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["holdings"]


def holdings(holders: Sequence[str], wanted: Iterable[str] = ()) -> str:
    """Returns what each holder holds, in words; empty if there are no holders.

    Args:
      holders: Each as ``NAME: COUNT x TYPE``.
      wanted: The wanted instance types; if there is only one, the words do not repeat it.
    """
    types = tuple(wanted)
    parts = []
    for holder in holders:
        name, _, slices = holder.rpartition(": ")
        if len(types) == 1:
            slices = slices.removesuffix(f" x {types[0]}").removesuffix(f" of {types[0]}")
        parts.append(f"{name} holds {slices}" if name else slices)
    return ", ".join(parts)
