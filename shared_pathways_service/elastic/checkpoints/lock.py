"""Locks a local directory of checkpoints, so that only one program saves there."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import platform
import weakref
from pathlib import Path
from typing import Final

from shared_pathways_service.constants import NO_LOCKS
from shared_pathways_service.elastic.checkpoints.errors import CheckpointsBusy

__all__ = ["DirectoryLock"]

_log = logging.getLogger(__name__)

_LOCK: Final = ".lock"
#: More than a process id and the name of a machine have.
_HOLDER_BYTES: Final = 512


class DirectoryLock:
    """Locks a directory against a second program that saves.

    Raises:
      CheckpointsBusy: Another program saves there, on this machine or another.
      OSError: The lock cannot be written, as on a full disk.
    """

    def __init__(self, directory: str) -> None:
        self._path = Path(directory) / _LOCK
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            self._lock(directory)
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{os.getpid()} {platform.node()}\n".encode(), 0)
            undo.pop_all()
        _HELD.add(self)

    def close(self) -> None:
        """Unlocks the directory."""
        _HELD.discard(self)
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            # (What a network's file system reports late is of the holder's name only.)
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def _lock(self, directory: str) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise self._busy(directory) from None
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            # (Such as Lustre without its mount option `flock`. Checkpoints must be there.)
            _log.warning(
                "%s cannot be locked (%s): make sure that no other program saves checkpoints there",
                directory,
                error.strerror,
            )

    def _busy(self, directory: str) -> CheckpointsBusy:
        # (The holder's name is empty in files of earlier releases.)
        text = os.pread(self._descriptor, _HOLDER_BYTES, 0).decode(errors="replace")
        pid, _, host = text.strip().partition(" ")
        who = f"process {pid if pid.isdecimal() else '?'}" + (f" on {host}" if host else "")
        # (A process elsewhere may have the same id.)
        if any(os.path.sameopenfile(self._descriptor, held.fileno()) for held in list(_HELD)):
            who = "this program itself"
        return CheckpointsBusy(
            f"{who} saves checkpoints into {directory}",
            pid=int(pid) if pid.isdecimal() else None,
            host=host or None,
            hint="give each run a separate directory, or end the other program first",
        )

    def fileno(self) -> int:
        """Returns the descriptor of the lock's file."""
        return self._descriptor

    def is_lost(self) -> bool:
        """Whether its file was removed or replaced, so that it keeps no other program away."""
        try:
            return not os.path.samestat(os.fstat(self._descriptor), self._path.stat())
        except FileNotFoundError:
            return True


_HELD: weakref.WeakSet[DirectoryLock] = weakref.WeakSet()


def _let_go() -> None:
    for lock in list(_HELD):
        lock.close()


# A child that is forked without exec would keep them locked after our end.
os.register_at_fork(after_in_child=_let_go)
