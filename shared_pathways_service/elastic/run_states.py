"""Makes the checkpoints and snapshots of a run from its options."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from shared_pathways_service.elastic.checkpoints.checkpoints import Checkpoints
from shared_pathways_service.elastic.policy.options import Options
from shared_pathways_service.elastic.snapshots.slots import Snapshots, SnapshotStore
from shared_pathways_service.elastic.training.restoring import States
from shared_pathways_service.events import Event
from shared_pathways_service.patience import timeouts

__all__ = ["make_states"]

_CHECKPOINTS: Final = "checkpoints"


def make_states(
    options: Options,
    stack: contextlib.ExitStack,
    *,
    directory: Path | None,
    checkpoint_directory: str | os.PathLike[str] | None,
    make_store: Callable[[], SnapshotStore],
    emit: Callable[[Event], None],
) -> States:
    """Returns the checkpoints and snapshots that a run's options request; `stack` closes them.

    Without `checkpoint_directory`, checkpoints are in the run's directory, if it has one.
    """
    where = checkpoint_directory
    if where is None and directory is not None:
        where = directory / _CHECKPOINTS
    checkpoints = None
    if where is not None:
        checkpoints = stack.enter_context(
            Checkpoints(
                where,
                keep=options.checkpoint_keep,
                keep_period=options.checkpoint_keep_period,
                on_event=emit,
            )
        )
    snapshots = None
    if options.snapshot_period:
        snapshots = Snapshots(make_store, emit)
        stack.callback(snapshots.close, timeouts.SNAPSHOT_AT_END.s)
    return States(checkpoints, snapshots, options.resume_from, emit)
