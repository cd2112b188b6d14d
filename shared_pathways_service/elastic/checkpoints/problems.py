"""Errors of checkpoints, with what a person needs to know of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from shared_pathways_service.elastic.checkpoints.errors import (
    CheckpointMismatch,
    CheckpointNotFound,
)
from shared_pathways_service.elastic.checkpoints.files import (
    CheckpointInfo,
)

__all__ = ["mismatch_of", "not_found"]

#: Differences that a message lists.
_TOLD: Final = 8


def mismatch_of(step: int, differences: Sequence[str]) -> CheckpointMismatch:
    """Returns the error that a checkpoint is of another model."""
    told = "; ".join(differences[:_TOLD])
    more = len(differences) - _TOLD
    return CheckpointMismatch(
        f"the checkpoint of step {step} belongs to another model: {told}"
        + (f"; and {more} more" if more > 0 else ""),
        step=step,
        differences=tuple(differences),
        hint="continue with the program that saved it, or begin in another directory",
    )


def not_found(
    step: int, steps: Collection[int], held: Sequence[CheckpointInfo], url: str
) -> CheckpointNotFound:
    """Returns the error that there is no good checkpoint of a step."""
    damaged = [one for one in held if (one.step, one.state) == (step, "quarantined")]
    why = f"it was moved to {damaged[-1].path}: {damaged[-1].reason}" if damaged else ""
    there = ", ".join(map(str, sorted(steps))) or "none"
    return CheckpointNotFound(
        f"there is no usable checkpoint of step {step} in {url}" + (f" ({why})" if why else ""),
        step=step,
        steps=tuple(sorted(steps)),
        hint=f"existing steps: {there}",
    )
