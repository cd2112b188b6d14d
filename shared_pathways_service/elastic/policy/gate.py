"""Decides when and on which slices an attempt begins, and when to restart on more slices."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from shared_pathways_service.elastic.policy.options import Options, SliceRange

__all__ = ["Gate", "Go", "Late", "Wait", "may_grow"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Go:
    """Begin on these slices."""

    slices: tuple[int, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wait:
    """Check again after at most so many seconds."""

    at_most_s: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Late:
    """The slices did not come back in time."""

    have: int
    want: int


class Gate:
    """Decides when the next attempt begins. The caller passes the time, in seconds."""

    def __init__(self, allowed: SliceRange, options: Options, now: float) -> None:
        self._allowed = allowed
        self._poll_s = options.poll_interval
        self._settled = now + options.settle_seconds
        self._late = now + options.elastic_timeout_seconds

    def look(self, usable: Sequence[int], now: float) -> Go | Wait | Late:
        """Decides from the slices that answer and are not excluded."""
        enough = len(usable) >= self._allowed.least
        settled = now >= min(self._settled, self._late)
        if len(usable) >= self._allowed.most or (enough and settled):
            return Go(slices=tuple(sorted(usable))[: self._allowed.most])
        if now >= self._late and not enough:
            return Late(have=len(usable), want=self._allowed.least)
        # After a loss, check often until the state has settled: a spare may replace the slice soon.
        pause = self._poll_s if now >= self._settled else min(self._poll_s, 0.05)
        until = self._settled if enough else self._late
        return Wait(at_most_s=max(0.0, min(pause, until - now)))


def may_grow(current: Sequence[int], usable: Sequence[int], allowed: SliceRange) -> bool:
    """Whether more slices are available than training uses."""
    return min(len(usable), allowed.most) > len(current)
