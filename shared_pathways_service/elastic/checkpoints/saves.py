"""One save of a checkpoint, and the check of its state."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shared_pathways_service.elastic.checkpoints.errors import CheckpointError
from shared_pathways_service.elastic.progress import Progress
from shared_pathways_service.elastic.trees import Tree
from shared_pathways_service.errors import InvalidRequestError

__all__ = ["Save", "check_state"]


@dataclasses.dataclass(kw_only=True)
class Save:
    """A save in progress, or a completed one.

    Attributes:
      began: The start, in monotonic seconds.
      copies: Copies of the arrays on their devices.
      fetched: They were fetched, or cannot be.
      given_up: Why the save was abandoned; None: it was not.
    """

    progress: Progress
    began: float
    blocked_s: float = 0.0
    copies: Tree = None
    fetched: threading.Event = dataclasses.field(default_factory=threading.Event)
    thread: threading.Thread | None = None
    given_up: str | None = None

    @property
    def is_alive(self) -> bool:
        """Whether its thread still runs."""
        return self.thread is not None and self.thread.is_alive()

    def take_copies(self) -> Tree:
        """Returns the copies, and keeps no reference to them."""
        copies, self.copies = self.copies, None
        return copies

    def raise_if_given_up(self) -> None:
        """Raises CheckpointError once it was given up."""
        if self.given_up is not None:
            raise CheckpointError(f"the save of step {self.progress.step} was given up")


def check_state(state: Tree) -> None:
    """Raises InvalidRequestError if a state contains something other than arrays and numbers."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        dtype = getattr(leaf, "dtype", None) or np.asarray(leaf).dtype
        if not isinstance(leaf, jax.Array) and not _is_number(np.dtype(dtype)):
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            raise InvalidRequestError(
                "state",
                f"{name}: {type(leaf).__name__}",
                "a pytree of arrays and numbers",
                hint="put other values into Progress.data, as JSON",
            )


def _is_number(dtype: np.dtype[Any]) -> bool:
    # JAX's small types, such as bfloat16, have numpy's kind for unknown types.
    return dtype.kind in "biufc" or bool(jnp.issubdtype(dtype, np.number))
