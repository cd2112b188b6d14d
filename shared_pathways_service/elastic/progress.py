"""How far training is: what belongs to a state and is no array."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

__all__ = ["Progress"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Progress:
    """A point in training.

    Attributes:
      step: Steps completed.
      epoch: The epoch that the next example belongs to, from 0.
      loss: Of the last step completed; None before the first, or where none was told.
      data: State of the data iterator, as JSON knows it: the next example is the first that no
        completed step has used.
    """

    step: int = 0
    epoch: int = 0
    loss: float | None = None
    data: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Returns it as plain data."""
        return {
            "step": self.step,
            "epoch": self.epoch,
            "loss": self.loss,
            "data": dict(self.data),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Progress:
        """Makes what `to_json` described."""
        return cls(step=data["step"], epoch=data["epoch"], loss=data["loss"], data=data["data"])
