"""The item of a checkpoint that is no array: progress, and what the files must be."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Final

import orbax.checkpoint as ocp
from etils import epath

from shared_pathways_service.elastic.checkpoints.files import (
    PROGRESS_ITEM,
    STATE_ITEM,
    write_manifest,
)
from shared_pathways_service.elastic.progress import Progress

__all__ = ["ProgressArgs", "saving_handler"]

_COMMIT_FILE: Final = ocp.options.AtomicityOptions(mode=ocp.options.AtomicityMode.COMMIT_FILE)


class _ProgressHandler(ocp.CheckpointHandler):  # type: ignore[misc]  # orbax is not typed
    """Writes the item when all others are written and none is committed yet."""

    def __init__(self, *, checksums: bool) -> None:
        self._checksums = checksums
        self._args: ProgressArgs | None = None

    def save(self, directory: epath.Path, args: ProgressArgs) -> None:  # noqa: ARG002 - Orbax's
        """Notes what is to be written."""
        self._args = args

    def finalize(self, directory: epath.Path) -> None:
        """Writes it."""
        assert self._args is not None, "Orbax finalizes what it saved"
        args, self._args = self._args, None
        write_manifest(directory.parent, args.progress, checksums=self._checksums)
        args.before_commit()

    def restore(self, directory: epath.Path, args: Any = None) -> Any:
        """Is read without Orbax, as commands do."""
        raise NotImplementedError


@ocp.args.register_with_handler(_ProgressHandler, for_save=True, for_restore=True)
@dataclasses.dataclass
class ProgressArgs(ocp.args.CheckpointArgs):  # type: ignore[misc]
    """How far training was.

    Attributes:
      progress: That.
      before_commit: Is called when everything is written; what it raises keeps the checkpoint from
        being committed.
    """

    progress: Progress
    before_commit: Callable[[], None]


def saving_handler(*, checksums: bool) -> ocp.AsyncCheckpointer:
    """Makes Orbax's checkpointer for both items, which commits by a file.

    Args:
      checksums: Whether to keep the files' checksums.
    """
    registry = ocp.handlers.DefaultCheckpointHandlerRegistry()
    # In this order they are finalized: the files of the first are looked at by the second.
    registry.add(STATE_ITEM, ocp.args.StandardSave, ocp.StandardCheckpointHandler())
    registry.add(PROGRESS_ITEM, ProgressArgs, _ProgressHandler(checksums=checksums))
    return ocp.AsyncCheckpointer(
        ocp.CompositeCheckpointHandler(
            handler_registry=registry,
            composite_options=ocp.CompositeOptions(atomicity_options=_COMMIT_FILE),
        ),
        atomicity_options=_COMMIT_FILE,
    )
