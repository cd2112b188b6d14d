"""Writes and reads a checkpoint's files with Orbax, on disk or in an object store.

Orbax writes to file systems and to ``gs://``. For other stores (``s3://``) it writes to a temporary
directory, and the files are copied, the commit file last.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, Final, Self

import jax
import orbax.checkpoint as ocp
from etils import epath
from etils.epath import backend

from shared_pathways_service.elastic.checkpoints import reading
from shared_pathways_service.elastic.checkpoints.file_store import Store, copy_tree
from shared_pathways_service.elastic.checkpoints.files import (
    COMMIT_FILE,
    PROGRESS_ITEM,
    STATE_ITEM,
    Folder,
)
from shared_pathways_service.elastic.checkpoints.item import ProgressArgs, saving_handler
from shared_pathways_service.elastic.checkpoints.manifest import Manifest
from shared_pathways_service.elastic.progress import Progress
from shared_pathways_service.elastic.trees import Tree

__all__ = ["Arrays", "DamagedError", "OpenedCheckpoint"]

_log = logging.getLogger(__name__)

_GCS: Final = "gs://"
#: More than the files that Orbax writes beside the arrays of a checkpoint.
_MOST_ERRORS: Final = 20


class DamagedError(Exception):
    """A checkpoint cannot be used by any program."""


class Arrays:
    """Writes and reads checkpoints.

    Args:
      store: The directory of the checkpoints.
      checksums: Whether to store and compare checksums; not for files that Orbax writes to an
        object store, which has its own checksums, and from which they would have to be read.
    """

    def __init__(self, store: Store, *, checksums: bool) -> None:
        self._store = store
        self._wanted = checksums
        self._is_staged = not store.is_local and not store.url.startswith(_GCS)
        self._checksums = checksums and (store.is_local or self._is_staged)
        self._saver = saving_handler(checksums=self._checksums)

    def anew(self) -> Self:
        """Makes another one for the same store, after this one hung."""
        return type(self)(self._store, checksums=self._wanted)

    def write(
        self,
        step: int,
        state: Tree,
        progress: Progress,
        *,
        fetched: Callable[[], None],
        before_commit: Callable[[], None],
    ) -> int:
        """Writes and commits a checkpoint; returns the bytes of the arrays' files.

        Args:
          step: The checkpoint's name, which must not exist.
          state: The arrays.
          progress: The progress of training.
          fetched: Called when the arrays are in this process, and no device is needed any more.
          before_commit: Called when everything else is written; its errors are raised.
        """
        with self._place_to_write() as place:
            items = {
                STATE_ITEM: ocp.args.StandardSave(state),
                PROGRESS_ITEM: ProgressArgs(progress=progress, before_commit=before_commit),
            }
            try:
                self._saver.save(_orbax_path(place, str(step)), args=ocp.args.Composite(**items))
                del items, state  # training may need the memory of the copies on devices
                fetched()
                self._saver.wait_until_finished()
            except Exception:
                _past_errors(self._saver.wait_until_finished)
                raise
            manifest = Folder(place.url).manifest(step)
            assert manifest is not None, "it was just written"
            if place is not self._store:
                copy_tree(
                    place, self._store, str(step), last=COMMIT_FILE, before_last=before_commit
                )
        return manifest.nbytes

    @contextlib.contextmanager
    def opened(self, folder: Folder, step: int) -> Iterator[OpenedCheckpoint]:
        """Opens a committed checkpoint after checking its files; raises DamagedError."""
        _raise_damage(folder, step, checksums=self._checksums and not self._is_staged)
        with contextlib.ExitStack() as undo:
            place = folder
            if self._is_staged:
                directory = undo.enter_context(tempfile.TemporaryDirectory(prefix="sps-restore-"))
                place = Folder(directory)
                copy_tree(self._store, place.store, str(step))
                _raise_damage(place, step, checksums=self._checksums)
            manifest = place.manifest(step)
            sure = self._checksums and manifest is not None and manifest.has_checksums
            path = _orbax_path(place.store, f"{step}/{STATE_ITEM}")
            yield OpenedCheckpoint(path, step, manifest, is_sure=sure)

    def close(self) -> None:
        """Ends idle threads; nothing must be in progress."""
        _past_errors(self._saver.close)

    @contextlib.contextmanager
    def _place_to_write(self) -> Iterator[Store]:
        if not self._is_staged:
            yield self._store
            return
        with tempfile.TemporaryDirectory(prefix="sps-save-") as directory:
            yield Store(directory)


def _past_errors(finish: Callable[[], None]) -> None:
    """Calls this until it raises nothing: all that fails is of a save that has failed already.

    (Orbax raises one error of a save, and keeps the others for the next one, and for its end.)
    """
    for _ in range(_MOST_ERRORS):
        try:
            finish()
        except Exception as error:  # noqa: BLE001 - the first one was reported
            _log.debug("Of a save that failed: %s", error)
        else:
            return


class OpenedCheckpoint:
    """An opened checkpoint, with the progress of training."""

    def __init__(
        self, path: epath.Path, step: int, manifest: Manifest | None, *, is_sure: bool
    ) -> None:
        self._path = path
        self._is_sure = is_sure
        self.progress = (
            Progress(step=step) if manifest is None else Progress.from_json(manifest.progress)
        )

    def differences(self, like: Tree) -> list[str]:
        """Returns how its arrays differ from the wanted ones, one line per array."""
        with self._blamed():
            return reading.differences(self._path, like)

    def read(self, like: Tree) -> Tree:
        """Reads its arrays onto the wanted devices."""
        with self._blamed():
            return jax.block_until_ready(reading.read(self._path, like))

    @contextlib.contextmanager
    def _blamed(self) -> Iterator[None]:
        """Determines whether the files are the cause, or a lost slice, or a network."""
        try:
            yield
        except Exception as error:
            if self._is_sure or reading.is_readable(self._path):
                raise
            line = str(error).strip().split("\n", 1)[0]
            raise DamagedError(f"its arrays cannot be read: {line}") from error


def _raise_damage(folder: Folder, step: int, *, checksums: bool) -> None:
    damage = folder.damage(step, checksums=checksums)
    if damage is not None:
        raise DamagedError(damage)


def _orbax_path(store: Store, within: str) -> Any:
    path = store.path(within)
    if not store.is_local:
        # Its cached listing would miss files that others wrote or removed.
        backend.fsspec_backend.fs(path).invalidate_cache()
    return epath.Path(path)
