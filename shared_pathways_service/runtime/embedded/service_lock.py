"""The lock of a runtime directory, which one embedded service holds while it runs.

It is a file in the directory. A directory may be removed below a service, e.g. by a cleaner of
temporary files, and created anew by another one; so on Linux the service has a name as well, which
no file system can lose: an abstract socket's.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Final

from filelock import FileLock, Timeout

from shared_pathways_service.runtime.embedded.file_names import RuntimePaths
from shared_pathways_service.runtime.file_failures import explained

__all__ = ["ServiceLock"]

_LOOK_S: Final = 0.05
#: struct ucred: process, user and group.
_CREDENTIALS: Final = struct.Struct("3i")


class ServiceLock:
    """The lock of one runtime directory; the system releases it when this process ends."""

    def __init__(self, paths: RuntimePaths) -> None:
        self._paths = paths
        self._file = FileLock(paths.service_lock, mode=0o600)
        self._name: socket.socket | None = None
        #: Device and inode of the locked file, which stays open: no other one can have them.
        self._locked: tuple[int, int] | None = None

    def acquire(self, timeout_s: float) -> None:
        """Takes the lock.

        Raises:
          Timeout: Another process has it.
          PreflightError: The directory has no locks, or cannot be written.
        """
        deadline = time.monotonic() + timeout_s
        with explained(self._paths.directory, "SPS_RUNTIME_DIR"):
            self._file.acquire(timeout=timeout_s)
            try:
                while not self._take_name():
                    if time.monotonic() >= deadline:
                        raise Timeout(str(self._paths.service_lock))
                    time.sleep(_LOOK_S)
            except BaseException:
                self._file.release()
                raise
        self._locked = self._look()

    def release(self) -> None:
        """Gives the lock back."""
        if self._name is not None:
            self._name.close()
            self._name = None
        self._file.release()

    def is_lost(self) -> bool:
        """Whether the lock's file is gone, or is another one: its directory was removed."""
        return self._look() != self._locked

    def _look(self) -> tuple[int, int] | None:
        try:
            status = self._paths.service_lock.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def _take_name(self) -> bool:
        """Takes the name; returns whether no other service of this user has it."""
        if sys.platform != "linux":
            return True
        name = _name_of(self._paths.directory)
        with contextlib.ExitStack() as undo:
            taken = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            try:
                taken.bind(name)
                # (Whoever connects can then ask whose it is.)
                taken.listen(1)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                # Another user cannot keep us from starting a service by taking the name.
                return _user_of(name) not in (os.geteuid(), None)
            undo.pop_all()
        self._name = taken
        return True


def _name_of(directory: Path) -> str:
    key = f"{os.geteuid()} {directory}"
    return f"\0shared-pathways-service-{hashlib.sha256(key.encode()).hexdigest()[:32]}"


def _user_of(name: str) -> int | None:
    """Returns the user who listens on an abstract socket; None: nobody does any more."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.setblocking(False)
        try:
            asking.connect(name)
            found = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        except BlockingIOError:
            return os.geteuid()  # a queue that is full: the other service is asked by many
        except OSError:
            return None
    _process, user, _group = _CREDENTIALS.unpack(found)
    return int(user)
