"""Decides which checkpoints are kept."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["expendable"]


def expendable(steps: Iterable[int], *, keep: int, keep_period: int | None) -> tuple[int, ...]:
    """Returns the steps whose checkpoints are no longer needed, oldest first.

    The newest `keep` (1 or more) and those of steps that `keep_period` divides are needed.
    """
    in_order = sorted(set(steps))
    return tuple(
        step
        for step in in_order[: max(0, len(in_order) - keep)]
        if keep_period is None or step % keep_period != 0
    )
