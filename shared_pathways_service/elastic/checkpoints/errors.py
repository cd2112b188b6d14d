"""Errors of checkpoints that the user has to fix.

CheckpointError
├── CheckpointNotFound    there is none of that step, or it cannot be used
├── CheckpointMismatch    it is of another model
└── CheckpointsBusy       another program saves into the directory
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import Final

from shared_pathways_service.elastic.checkpoints.files import CheckpointInfo
from shared_pathways_service.errors import SharedPathwaysError

__all__ = [
    "CheckpointError",
    "CheckpointMismatch",
    "CheckpointNotFound",
    "CheckpointsBusy",
    "mismatch_of",
    "not_found",
]

#: Differences that a message lists.
_LISTED: Final = 8


class CheckpointError(SharedPathwaysError):
    """Checkpoints cannot be used as requested."""


@dataclasses.dataclass(eq=False, repr=False, kw_only=True)
class CheckpointNotFound(CheckpointError):  # noqa: N818 - reads as what happened, as errors.py does
    """The requested checkpoint does not exist, or cannot be used.

    Attributes:
      step: The requested step.
      steps: The existing steps.
    """

    step: int | None = None
    steps: Sequence[int] = ()


@dataclasses.dataclass(eq=False, repr=False, kw_only=True)
class CheckpointMismatch(CheckpointError):  # noqa: N818
    """A checkpoint is intact, but contains another state than the program expects.

    Attributes:
      step: The step of the checkpoint.
      differences: The differences, one line per array.
    """

    step: int | None = None
    differences: Sequence[str] = ()


@dataclasses.dataclass(eq=False, repr=False, kw_only=True)
class CheckpointsBusy(CheckpointError):  # noqa: N818
    """Another program saves into the directory.

    Attributes:
      pid: Its process, if known.
      host: The machine of that process, if known.
    """

    pid: int | None = None
    host: str | None = None


def mismatch_of(step: int, differences: Sequence[str]) -> CheckpointMismatch:
    """Returns the error that a checkpoint is of another model."""
    listed = "; ".join(differences[:_LISTED])
    more = len(differences) - _LISTED
    return CheckpointMismatch(
        f"the checkpoint of step {step} belongs to another model: {listed}"
        + (f"; and {more} more" if more > 0 else ""),
        step=step,
        differences=differences,
        hint="continue with the program that saved it, or begin in another directory",
    )


def not_found(
    step: int, steps: Collection[int], held: Sequence[CheckpointInfo], url: str
) -> CheckpointNotFound:
    """Returns the error that a directory, which holds these, has no usable checkpoint of a step."""
    damaged = [one for one in held if (one.step, one.state) == (step, "quarantined")]
    why = f" (it was moved to {damaged[-1].path}: {damaged[-1].reason})" if damaged else ""
    there = ", ".join(map(str, sorted(steps))) or "none"
    return CheckpointNotFound(
        f"there is no usable checkpoint of step {step} in {url}{why}",
        step=step,
        steps=sorted(steps),
        hint=f"existing steps: {there}",
    )
