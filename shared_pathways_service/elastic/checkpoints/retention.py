"""Decides which checkpoints are kept."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["expendable"]


def expendable(steps: Iterable[int], *, keep: int, keep_period: int | None) -> tuple[int, ...]:
    """Returns the steps whose checkpoints are no longer needed, oldest first.

    Args:
      steps: Steps of committed checkpoints.
      keep: The number of newest checkpoints to keep, 1 or more, so that one always remains.
      keep_period: Steps that it divides are kept forever; None: none.
    """
    in_order = sorted(set(steps))
    return tuple(
        step
        for step in in_order[: max(0, len(in_order) - keep)]
        if keep_period is None or step % keep_period != 0
    )
