"""Describes the holders of slices in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["holdings"]


def holdings(holders: Sequence[str], wanted: Iterable[str] = ()) -> str:
    """Returns what each holder holds, in words; empty if there are no holders.

    Holders are like ``NAME: COUNT x TYPE``; a user with several tenants is there several times. If
    only one type is wanted, the words do not repeat it.
    """
    types = tuple(wanted)
    held: dict[str, list[str]] = {}
    for holder in holders:
        name, _, slices = holder.rpartition(": ")
        if len(types) == 1:
            slices = slices.removesuffix(f" x {types[0]}").removesuffix(f" of {types[0]}")
        held.setdefault(name, []).append(slices)
    return ", ".join(
        f"{name} holds {_total(slices)}" if name else _total(slices)
        for name, slices in held.items()
    )


def _total(slices: Sequence[str]) -> str:
    if all(count.isdecimal() for count in slices):
        return str(sum(map(int, slices)))
    return " + ".join(slices)
