"""Steps of training whose end has not been waited for, and their losses."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np

from shared_pathways_service.elastic.trees import Tree

__all__ = ["Loss", "PendingStep", "Waitable", "wait_for_arrays"]


@runtime_checkable
class Waitable(Protocol):
    """A number that is still being computed, such as a `jax.Array`."""

    def copy_to_host_async(self) -> None:
        """Starts a copy to this process."""

    def __array__(self) -> np.ndarray[Any, Any]: ...


#: Types of a step's loss.
Loss = jax.Array | Waitable | np.ndarray[Any, Any] | np.floating[Any] | float


@dataclasses.dataclass(kw_only=True)
class PendingStep:
    """A step whose end was not awaited yet.

    Attributes:
      seconds: From the end of the previous `step_done` to that of its own; None: not yet.
    """

    step: int
    loss: Loss | None
    seconds: float | None = None


def wait_for_arrays(state: Tree) -> None:
    """Waits for arrays, and keeps no reference to them."""
    jax.block_until_ready(state)
