"""Errors of checkpoints that the user has to fix.

CheckpointError
├── CheckpointNotFound    there is none of that step, or it cannot be used
├── CheckpointMismatch    it is of another model
└── CheckpointsBusy       another program saves into the directory
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from shared_pathways_service.errors import SharedPathwaysError

__all__ = ["CheckpointError", "CheckpointMismatch", "CheckpointNotFound", "CheckpointsBusy"]


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
    """

    pid: int | None = None
