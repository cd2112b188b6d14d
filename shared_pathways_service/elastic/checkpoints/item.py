"""The item of a checkpoint other than arrays: progress, and the manifest of its files."""

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

#: Otherwise a save whose directories cannot be made, as on a full disk, waits for them for minutes.
_ASYNC: Final = ocp.options.AsyncOptions(create_directories_asynchronously=False)


class _ProgressHandler(ocp.CheckpointHandler):  # type: ignore[misc]  # orbax is not typed
    """Writes the item after all others, and before the commit."""

    def __init__(self, *, checksums: bool) -> None:
        self._checksums = checksums
        self._args: ProgressArgs | None = None

    def save(self, directory: epath.Path, args: ProgressArgs) -> None:  # noqa: ARG002 - Orbax's
        """Stores the item to write."""
        self._args = args

    def finalize(self, directory: epath.Path) -> None:
        """Writes the item."""
        assert self._args is not None, "Orbax finalizes what it saved"
        args, self._args = self._args, None
        write_manifest(directory.parent, args.progress, checksums=self._checksums)
        args.before_commit()

    def restore(self, directory: epath.Path, args: Any = None) -> Any:
        """Not supported: commands read the item without Orbax."""
        raise NotImplementedError


@ocp.args.register_with_handler(_ProgressHandler, for_save=True, for_restore=True)
@dataclasses.dataclass
class ProgressArgs(ocp.args.CheckpointArgs):  # type: ignore[misc]
    """The arguments of the item; an error of `before_commit` prevents the commit."""

    progress: Progress
    before_commit: Callable[[], None]


def saving_handler(*, checksums: bool) -> ocp.AsyncCheckpointer:
    """Makes Orbax's checkpointer for both items, which commits with a file."""
    registry = ocp.handlers.DefaultCheckpointHandlerRegistry()
    # They are finalized in this order: the second one reads the files of the first.
    registry.add(STATE_ITEM, ocp.args.StandardSave, ocp.StandardCheckpointHandler())
    registry.add(PROGRESS_ITEM, ProgressArgs, _ProgressHandler(checksums=checksums))
    return ocp.AsyncCheckpointer(
        ocp.CompositeCheckpointHandler(
            handler_registry=registry,
            composite_options=ocp.CompositeOptions(
                atomicity_options=_COMMIT_FILE, async_options=_ASYNC
            ),
        ),
        atomicity_options=_COMMIT_FILE,
        async_options=_ASYNC,
    )
