"""Errors of checkpoints that the user has to fix.

CheckpointError
├── CheckpointNotFound    there is none of that step, or it cannot be used
├── CheckpointMismatch    it is of another model
└── CheckpointsBusy       another program saves into the directory
"""

from __future__ import annotations

from collections.abc import Sequence

from shared_pathways_service.errors import SharedPathwaysError

__all__ = ["CheckpointError", "CheckpointMismatch", "CheckpointNotFound", "CheckpointsBusy"]


class CheckpointError(SharedPathwaysError):
    """Checkpoints cannot be used as requested."""


class CheckpointNotFound(CheckpointError):  # noqa: N818 - reads as what happened, as errors.py does
    """The requested checkpoint does not exist, or cannot be used.

    Attributes:
      step: The requested step.
      steps: The existing steps.
    """

    fields = ("step", "steps")

    def __init__(
        self, message: str, *, step: int | None = None, steps: Sequence[int] = (), hint: str = ""
    ) -> None:
        super().__init__(message, hint=hint)
        self.step = step
        self.steps = tuple(steps)


class CheckpointMismatch(CheckpointError):  # noqa: N818
    """A checkpoint is intact, but contains another state than the program expects.

    Attributes:
      step: The step of the checkpoint.
      differences: The differences, one line per array.
    """

    fields = ("step", "differences")

    def __init__(
        self,
        message: str,
        *,
        step: int | None = None,
        differences: Sequence[str] = (),
        hint: str = "",
    ) -> None:
        super().__init__(message, hint=hint)
        self.step = step
        self.differences = tuple(differences)


class CheckpointsBusy(CheckpointError):  # noqa: N818
    """Another program saves into the directory.

    Attributes:
      pid: Its process, if known.
    """

    fields = ("pid",)

    def __init__(self, message: str, *, pid: int | None = None, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.pid = pid
