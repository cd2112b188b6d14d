"""Which checkpoints stay."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["expendable"]


def expendable(steps: Iterable[int], *, keep: int, keep_period: int | None) -> tuple[int, ...]:
    """Returns the steps whose checkpoints are no longer wanted, the oldest first.

    Args:
      steps: Of the committed checkpoints.
      keep: How many of the newest stay, 1 or more: so one is always left.
      keep_period: Steps that it divides stay for good; None: none do.
    """
    in_order = sorted(set(steps))
    return tuple(
        step
        for step in in_order[: max(0, len(in_order) - keep)]
        if keep_period is None or step % keep_period != 0
    )
