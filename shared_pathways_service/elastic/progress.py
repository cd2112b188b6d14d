"""The progress of training: the part of a state that is not arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

__all__ = ["Progress"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Progress:
    """A point in training.

    Attributes:
      step: Completed steps.
      epoch: The epoch of the next example, from 0.
      loss: The loss of the last completed step; None before the first, or if unknown.
      data: The state of the data iterator, for JSON: the next example is the first one that no
        completed step has used.
    """

    step: int = 0
    epoch: int = 0
    loss: float | None = None
    data: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Returns the progress as plain data."""
        return {
            "step": self.step,
            "epoch": self.epoch,
            "loss": self.loss,
            "data": dict(self.data),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Progress:
        """Makes the progress from plain data of `to_json`."""
        return cls(step=data["step"], epoch=data["epoch"], loss=data["loss"], data=data["data"])
