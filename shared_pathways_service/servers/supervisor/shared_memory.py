"""Manages a directory in memory, through which clients pass large buffers to their proxies.

This replaces a stream by one copy: JAX's client writes a file, and the proxy's XLA uses its pages
directly. The files count as memory, and a client that finds no room loses its session. So the
directory is used only if there is plenty of memory, and a proxy copies the data if the directory is
half full.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from shared_pathways_service.errors import SharedPathwaysError
from shared_pathways_service.runtime.glog import glog
from shared_pathways_service.runtime.machine_memory import usable_memory
from shared_pathways_service.runtime.settings import Settings, private_directory
from shared_pathways_service.runtime.transfer_directories import remove_tree

__all__ = ["SharedMemory"]

#: The part of the memory of this machine or container that the file system must be able to hold,
#: unlike the 64 MiB of a container; and the part of it that must be free for another proxy.
_LEAST_OF_MEMORY = 1 / 4
_LEAST_FREE = 1 / 2


class SharedMemory:
    """Directories of proxies, in one directory of the service."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._root: Path | None = None

    def create(self) -> None:
        """Creates the service's directory, if it is allowed and possible.

        The directory of a killed service is removed first: no other service has the same runtime
        directory.
        """
        within = self._settings.shared_memory_dir
        if within is None or not _is_large(within):
            return
        service = hashlib.sha256(os.fsencode(self._settings.runtime_dir)).hexdigest()[:12]
        root = within / f"sps-{os.geteuid()}-{service}"
        remove_tree(root)
        try:
            self._root = private_directory(root, "SPS_SHARED_MEMORY_DIR")
        except SharedPathwaysError as error:
            glog("W", f"Large buffers are sent on the stream: {error}")

    def close(self) -> None:
        """Removes the directory."""
        if self._root is not None:
            remove_tree(self._root)

    def make(self, uid: str) -> Path | None:
        """Creates a proxy's directory; returns None if there is no room."""
        if self._root is None:
            return None
        try:
            # A logout may have removed it.
            root = private_directory(self._root, "SPS_SHARED_MEMORY_DIR")
            if not _has_room(root):
                return None
            directory = root / uid
            directory.mkdir(mode=0o700)
        except (OSError, SharedPathwaysError) as error:
            glog("W", f"Large buffers are sent on the stream: {error}")
            return None
        return directory

    def remove(self, uid: str) -> None:
        """Removes a proxy's directory with its content, if it has one."""
        if self._root is not None:
            remove_tree(self._root / uid)


def _is_large(directory: Path) -> bool:
    blocks, _, size = _space(directory)
    return blocks * size >= usable_memory() * _LEAST_OF_MEMORY


def _has_room(directory: Path) -> bool:
    blocks, free, _ = _space(directory)
    return blocks > 0 and free >= blocks * _LEAST_FREE


def _space(directory: Path) -> tuple[int, int, int]:
    """Returns the number of blocks of a file system, of free blocks, and the bytes per block."""
    try:
        found = os.statvfs(directory)
    except OSError:
        return 0, 0, 0
    return found.f_blocks, found.f_bavail, found.f_frsize
