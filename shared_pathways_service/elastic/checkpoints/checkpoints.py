"""Saves and restores checkpoints: a state and its progress, with Orbax.

A save copies the arrays on their devices, which takes a dispatch and no wait; the rest runs on a
thread. One checkpoint is saved at a time.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self

import jax

from shared_pathways_service.api.validation import check_bool, check_int
from shared_pathways_service.elastic.checkpoints.arrays import Arrays, DamagedError
from shared_pathways_service.elastic.checkpoints.errors import (
    CheckpointError,
    mismatch_of,
    not_found,
)
from shared_pathways_service.elastic.checkpoints.files import (
    CheckpointInfo,
    Folder,
    list_checkpoints,
)
from shared_pathways_service.elastic.checkpoints.lock import DirectoryLock
from shared_pathways_service.elastic.checkpoints.retention import expendable
from shared_pathways_service.elastic.checkpoints.saves import Save, check_state
from shared_pathways_service.elastic.errors import failure_of_files, first_line, is_full
from shared_pathways_service.elastic.progress import Progress
from shared_pathways_service.elastic.trees import Tree, copy_on_devices
from shared_pathways_service.events import Event, rfc3339
from shared_pathways_service.events.training import (
    CheckpointFailed,
    CheckpointKept,
    CheckpointQuarantined,
    CheckpointRestoring,
    CheckpointSaved,
)
from shared_pathways_service.patience import timeouts
from shared_pathways_service.runtime.file_failures import explained

__all__ = ["Checkpoints"]

_log = logging.getLogger(__name__)

#: The arguments, of this class and of the manager, that set the directory.
_SETTING: Final = "directory= or checkpoint_directory="
#: Characters of a reason: TensorStore's are pages long.
_LINE: Final = 300


class Checkpoints:
    """Saves checkpoints, and restores the newest usable one.

    Opening locks the directory for this program (if it is local), completes interrupted deletions,
    and moves the results of interrupted saves aside.

    Args:
      directory: The directory, local or ``gs://…`` or ``s3://…``; created if it is missing.
      keep: The number of newest checkpoints to keep.
      keep_period: Checkpoints of steps that it divides are kept forever; None: none.
      asynchronous: Whether `save` returns before the checkpoint is committed.
      checksums: Whether files are read again after writing, and before use. In an object store,
        which checks its own content, only sizes are compared.
      on_event: Called with events, on any thread.

    Raises:
      CheckpointsBusy: Another program saves there.
      PreflightError: The directory cannot be written, as on a full disk.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        keep: int = 3,
        keep_period: int | None = None,
        asynchronous: bool = True,
        checksums: bool = True,
        on_event: Callable[[Event], object] | None = None,
    ) -> None:
        self._keep = check_int("keep", keep, low=1)
        if keep_period is not None:
            keep_period = check_int("keep_period", keep_period, low=1)
        self._keep_period = keep_period
        self._asynchronous = check_bool("asynchronous", asynchronous)
        self._folder = Folder(directory)
        store = self._folder.store
        check_bool("checksums", checksums)
        self._on_event = on_event
        self._lock = None
        if store.is_local:
            with explained(Path(store.url), _SETTING):
                store.make()
                self._lock = DirectoryLock(store.url)
        self._arrays = Arrays(store, checksums=checksums)
        #: Steps of committed checkpoints, as far as this program knows.
        self._steps: set[int] = set()
        self._saving: Save | None = None
        #: Abandoned saves: a hung save may continue to write for some time.
        self._left: list[Save] = []
        #: The step to which training was rewound; later checkpoints are not part of its history.
        self._went_back_to: int | None = None
        try:
            self._look()
        except BaseException:
            self.close()
            raise

    @property
    def latest_step(self) -> int | None:
        """The step of the newest committed checkpoint in training's own history; None: none."""
        return max(self._history(), default=None)

    def list(self) -> tuple[CheckpointInfo, ...]:
        """Returns the content of the directory, as `list_checkpoints` does."""
        return list_checkpoints(self._folder.store.url)

    def save(self, state: Tree, progress: Progress) -> None:
        """Starts a save; returns when `state` may be donated.

        A failed save is an event, not an error: training continues, and the next save tries again.
        A step that is already saved is not saved again.

        Args:
          state: A pytree of arrays and numbers, after `progress.step` steps.
          progress: The progress of training.

        Raises:
          InvalidRequestError: The state contains something other than arrays and numbers.
        """
        check_state(state)
        began = time.monotonic()
        if not self.wait(timeouts.CHECKPOINT.s):
            self.give_up("the next one is due")
        if progress.step in self._history():
            return
        save = Save(progress=progress, began=began)
        if progress.step in self._left_steps():
            self._failed(save, CheckpointError("an earlier save of this step hangs, and may go on"))
            return
        try:
            save.copies = copy_on_devices(state)
        except jax.errors.JaxRuntimeError as error:
            self._failed(save, error)
            return
        save.blocked_s = time.monotonic() - began
        self._saving = save
        save.thread = threading.Thread(
            target=self._finish,
            args=(save, self._arrays),
            name="sps-elastic-checkpoint",
            daemon=True,
        )
        save.thread.start()
        if not self._asynchronous:
            save.thread.join()

    def restore(self, like: Tree, *, step: int | None = None) -> tuple[Tree, Progress] | None:
        """Returns the newest usable checkpoint, placed as requested.

        A damaged one is moved aside, and the one before it is used.

        Args:
          like: A pytree of `jax.ShapeDtypeStruct` with shardings, or of arrays. The mesh may differ
            from the saved one.
          step: The step to use; later ones are moved aside at the next save, because training then
            leaves their history. None: the newest.

        Returns:
          The state and its progress; None: there is no usable checkpoint.

        Raises:
          CheckpointMismatch: The checkpoint is intact, but belongs to another model.
          CheckpointNotFound: There is no checkpoint of that step, or it is damaged.
        """
        self._look()
        if step is not None:
            # First, because a caller that stopped waiting may have continued meanwhile.
            before, self._went_back_to = self._went_back_to, step
            found = self._restore(step, like) if step in self._steps else None
            if found is None:
                self._went_back_to = before
                raise not_found(step, self._steps, self.list(), self._folder.store.url)
            return found
        while (newest := self.latest_step) is not None:
            found = self._restore(newest, like)
            if found is not None:
                return found
        return None

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until no save is in progress; returns whether that is so.

        Args:
          timeout: Seconds; None: no limit.
        """
        save = self._saving
        if save is None or save.thread is None:
            return True
        save.thread.join(timeout)
        return not save.thread.is_alive()

    def wait_for_copies(self, timeout: float) -> bool:
        """Waits until the arrays of a save were fetched from the devices, or cannot be.

        Args:
          timeout: Seconds, after which it returns False.
        """
        save = self._saving
        return save is None or save.fetched.wait(timeout)

    def give_up(self, reason: str) -> None:
        """Abandons the save that is in progress and hangs: it will not be committed."""
        save, self._saving = self._saving, None
        assert save is not None, "there is one that hangs"
        save.given_up = reason
        self._left.append(save)
        self._arrays = self._arrays.anew()
        self._emit(CheckpointFailed(step=save.progress.step, reason=f"it hangs, and {reason}"))

    def close(self, timeout: float | None = None) -> None:
        """Waits until no save is in progress, and unlocks the directory.

        Args:
          timeout: Seconds; a save that takes longer is abandoned. None:
            20 minutes, and longer on a busy machine.
        """
        if not self.wait(timeouts.CHECKPOINT.s if timeout is None else timeout):
            self.give_up("training ends")
        self._arrays.close()
        if self._lock is not None:
            self._lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def _look(self) -> None:
        """Finds committed checkpoints, and cleans up the rest."""
        writing = self._left_steps()
        if self._saving and self._saving.is_alive:
            writing.add(self._saving.progress.step)
        found = self._folder.survey()
        if not writing:  # otherwise our own thread may be deleting
            for step in found.half_deleted:
                self._delete(step)
        self._steps &= set(found.steps)
        for step, files in found.steps.items():
            if step in writing or step in self._steps:
                continue
            info = self._folder.info(step, files)
            if info.state == "committed":
                self._steps.add(step)
                self._emit(CheckpointKept(step=step, path=info.path))
            else:
                self._quarantine_if_possible(info)

    def _restore(self, step: int, like: Tree) -> tuple[Tree, Progress] | None:
        """Reads a committed checkpoint; None: it is damaged, and was moved aside."""
        try:
            with self._arrays.opened(self._folder, step) as opened:
                unlike = opened.differences(like)
                if unlike:
                    raise mismatch_of(step, unlike)
                path = self._folder.store.path(str(step))
                self._emit(CheckpointRestoring(step=step, path=path))
                return opened.read(like), opened.progress
        except DamagedError as error:
            info = self._folder.info(step)
            info = dataclasses.replace(info, state="damaged", reason=str(error))
            self._quarantine_if_possible(info)
            return None

    def _quarantine(self, info: CheckpointInfo) -> None:
        target = self._folder.quarantine(info, now=rfc3339(time.time()))
        self._steps.discard(info.step)
        self._emit(
            CheckpointQuarantined(
                step=info.step, reason=info.reason, path=info.path, moved_to=target
            )
        )

    def _quarantine_if_possible(self, info: CheckpointInfo) -> None:
        """Moves a checkpoint aside; on a full disk it stays, but is not used."""
        try:
            self._quarantine(info)
        except OSError as error:
            self._steps.discard(info.step)
            why = self._file_failure(error) or error
            _log.warning("%s (%s) cannot be moved aside: %s", info.path, info.reason, why)

    def _finish(self, save: Save, arrays: Arrays) -> None:
        step = save.progress.step
        try:
            self._keep_locked()
            self._leave_history()
            if self._folder.store.exists(str(step)):
                # Left by a failed or abandoned save of the same step, which Orbax would refuse.
                self._quarantine(self._folder.info(step))
            nbytes = arrays.write(
                step,
                save.take_copies(),
                save.progress,
                fetched=save.fetched.set,
                before_commit=save.raise_if_given_up,
            )
            self._steps.add(step)
        except Exception as error:  # noqa: BLE001 - whatever it is, training goes on
            self._failed(save, error)
            if is_full(error) and save.given_up is None:
                # What there is of it would take the room of the next one.
                self._delete(step)
            return
        finally:
            save.fetched.set()
            if save.given_up is not None:
                arrays.close()
        self._emit(
            CheckpointSaved(
                step=step,
                duration_s=time.monotonic() - save.began,
                blocked_s=save.blocked_s,
                bytes=nbytes,
                path=self._folder.store.path(str(step)),
            )
        )
        self._delete_old()

    def _keep_locked(self) -> None:
        """Makes the directory again if it was removed, and locks it again."""
        if self._lock is None or not self._lock.is_lost():
            return
        store = self._folder.store
        store.make()
        lost, self._lock = self._lock, DirectoryLock(store.url)
        lost.close()
        self._steps.intersection_update(self._folder.survey().steps)
        _log.warning("%s was removed or replaced, with the checkpoints in it", store.url)

    def _left_steps(self) -> set[int]:
        self._left = [save for save in self._left if save.is_alive]
        return {save.progress.step for save in self._left}

    def _history(self) -> set[int]:
        """Returns the steps of training's current history."""
        back = self._went_back_to
        # (An atomic copy: the saving thread adds to them.)
        return {step for step in tuple(self._steps) if back is None or step <= back}

    def _leave_history(self) -> None:
        """Moves aside checkpoints newer than the step to which training was rewound."""
        for newer in sorted(self._steps - self._history()):
            reason = f"training was rewound to step {self._went_back_to}, and continues from there"
            self._quarantine(dataclasses.replace(self._folder.info(newer), reason=reason))
        self._went_back_to = None

    def _delete_old(self) -> None:
        for step in expendable(self._steps, keep=self._keep, keep_period=self._keep_period):
            self._steps.discard(step)
            self._delete(step)

    def _delete(self, step: int) -> None:
        try:
            self._folder.delete(step)
        except Exception as error:  # noqa: BLE001 - a bad or absent disk; what was saved is saved
            why = self._file_failure(error) or first_line(error)
            _log.warning("checkpoint %d cannot be deleted: %s", step, why)

    def _file_failure(self, error: BaseException) -> str:
        """Returns what an error of files of the directory says; empty: it is another error."""
        store = self._folder.store
        return failure_of_files(error, Path(store.url), _SETTING) if store.is_local else ""

    def _failed(self, save: Save, error: BaseException) -> None:
        if save.given_up is None:
            reason = self._file_failure(error) or first_line(error)[:_LINE]
            self._emit(CheckpointFailed(step=save.progress.step, reason=reason))

    def _emit(self, event: Event) -> None:
        if self._on_event is not None:
            self._on_event(event)
