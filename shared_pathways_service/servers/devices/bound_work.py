"""The placements that a thread works for.

A placement can be lost, and its slice placed again, while work is under way. A `DeviceClient` whose
devices come with placements must not do such work on those of a later placement: it asks here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

__all__ = ["bound_generation", "run_bound"]

T = TypeVar("T")


class _Placement(Protocol):
    index: int
    generation: int | None


class _Bound(threading.local):
    """The placements of a thread's present work; empty: it is for any placement."""

    placements: Sequence[_Placement] = ()


_bound = _Bound()


def run_bound(work: Callable[[], T], placements: Sequence[_Placement]) -> T:
    """Does work that is for these placements; for any if there are none."""
    before, _bound.placements = _bound.placements, placements
    try:
        return work()
    finally:
        _bound.placements = before


def bound_generation(index: int) -> int | None:
    """Returns the generation of a slice's placement that this thread works for; None: for any."""
    for placement in _bound.placements:
        if placement.index == index:
            return placement.generation
    return None
