"""Locks a local directory of checkpoints, so that only one program saves there."""

from __future__ import annotations

import fcntl
import logging
import os
import weakref
from pathlib import Path
from typing import Final

from shared_pathways_service.constants import NO_LOCKS
from shared_pathways_service.elastic.checkpoints.errors import CheckpointsBusy

__all__ = ["DirectoryLock"]

_log = logging.getLogger(__name__)

_LOCK: Final = ".lock"


class DirectoryLock:
    """Locks a directory against a second program that saves; raises CheckpointsBusy."""

    def __init__(self, directory: str) -> None:
        self._path = Path(directory) / _LOCK
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = os.pread(self._descriptor, 32, 0).decode(errors="replace").strip()
            self.close()
            pid = int(text) if text.isdecimal() else None
            who = "this program itself" if pid == os.getpid() else f"process {pid or '?'}"
            raise CheckpointsBusy(
                f"{who} saves checkpoints into {directory}",
                pid=pid,
                hint="give each run a separate directory, or end the other program first",
            ) from None
        except OSError as error:
            if error.errno not in NO_LOCKS:
                self.close()
                raise
            # (Such as Lustre without its mount option `flock`. Checkpoints must be there.)
            _log.warning(
                "%s cannot be locked (%s): make sure that no other program saves checkpoints there",
                directory,
                error.strerror,
            )
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)
        _HELD.add(self)

    def is_lost(self) -> bool:
        """Whether its file was removed or replaced, so that it keeps no other program away."""
        try:
            return not os.path.samestat(os.fstat(self._descriptor), self._path.stat())
        except FileNotFoundError:
            return True

    def close(self) -> None:
        """Unlocks the directory."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


_HELD: weakref.WeakSet[DirectoryLock] = weakref.WeakSet()


def _let_go() -> None:
    for lock in list(_HELD):
        lock.close()


# A child that is forked without exec would keep them locked after our end.
os.register_at_fork(after_in_child=_let_go)
