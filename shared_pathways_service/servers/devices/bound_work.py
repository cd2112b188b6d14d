"""The placements that a thread works for.

A placement can be lost, and its slice placed again, while work is under way. A `DeviceClient` whose
devices come with placements must not do such work on those of a later placement: it asks here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

__all__ = ["Placement", "bound_generation", "bound_placements", "run_bound"]

T = TypeVar("T")


class Placement(Protocol):
    """One placement of a slice; without a generation: the time without one."""

    index: int
    generation: int | None


class _Bound(threading.local):
    """The placements of a thread's present work; empty: it is for any placement."""

    placements: Sequence[Placement] = ()


_bound = _Bound()


def run_bound(work: Callable[[], T], placements: Sequence[Placement]) -> T:
    """Does work that is for these placements; for any if there are none."""
    before, _bound.placements = _bound.placements, placements
    try:
        return work()
    finally:
        _bound.placements = before


def bound_placements() -> Sequence[Placement]:
    """Returns the placements that this thread works for; empty: it is for any placement."""
    return _bound.placements


def bound_generation(index: int) -> int | None:
    """Returns the generation of a slice's placement that this thread works for; None: for any."""
    for placement in _bound.placements:
        if placement.index == index:
            return placement.generation
    return None
