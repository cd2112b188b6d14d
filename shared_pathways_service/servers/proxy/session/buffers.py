"""Host buffers on their way in or out: bytes under a handle that the client chose."""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from shared_pathways_service.runtime.transfer_directories import mark_ended
from shared_pathways_service.servers.devices.array_bytes import aligned_buffer
from shared_pathways_service.servers.devices.status_errors import (
    Code,
    StatusError,
    invalid_argument,
)
from shared_pathways_service.servers.proxy.memory import HostCharge, HostMemory

__all__ = [
    "BufferStore",
    "HostBuffer",
    "chunks",
    "count_files",
    "remove_directory",
    "take_file",
]

#: The free part of a file system in memory that is required to use its files' pages without a copy.
_ROOMY = 1 / 2
#: Bytes that a buffer counts in addition to its own.
_OVERHEAD = 512


class HostBuffer:
    """Bytes in one dimension; their charge on the host's memory lasts as long as this object."""

    __slots__ = ("_charge", "data")

    def __init__(self, data: np.ndarray, charge: HostCharge) -> None:
        self.data = data
        self._charge = charge


Arrived = HostBuffer | StatusError


class BufferStore:
    """The host buffers of one session: so many, with errors and waiting downloads. Thread-safe."""

    def __init__(self, memory: HostMemory, limit: int) -> None:
        self._memory = memory
        self._limit = limit
        self._lock = threading.Lock()
        self._buffers: dict[int, Arrived] = {}
        self._waiting: dict[int, list[Callable[[Arrived], None]]] = {}
        self._num_waiting = 0
        self._closed: StatusError | None = None

    def __len__(self) -> int:
        return len(self._buffers)

    def charge(self, nbytes: int) -> HostCharge:
        """Charges memory for a buffer; pass the charge to the `HostBuffer`."""
        # An empty one is not free.
        return self._memory.charge(nbytes + _OVERHEAD, "a host buffer")

    def put(self, handle: int, buffer: Arrived) -> None:
        """Stores a buffer, or its error, and calls back those that wait for it."""
        with self._lock:
            if self._closed is not None:
                return
            waiting = self._waiting.pop(handle, ())
            self._num_waiting -= len(waiting)
            # Beyond the limit an error is dropped: buffers are limited by their memory.
            if isinstance(buffer, HostBuffer):
                self._buffers[handle] = buffer
            elif len(self._buffers) < self._limit:
                self._buffers[handle] = buffer.copy()
        for callback in waiting:
            callback(buffer)

    def refuse(self, handle: int, error: StatusError) -> None:
        """Calls back those that wait with the error; the sender of the buffer has it."""
        with self._lock:
            waiting = self._waiting.pop(handle, ())
            self._num_waiting -= len(waiting)
        for callback in waiting:
            callback(error)

    def when_there(self, handle: int, callback: Callable[[Arrived], None]) -> None:
        """Calls back with a buffer once it is there; with an error if it never comes."""
        with self._lock:
            found = self._closed or self._buffers.get(handle)
            if found is None and self._num_waiting >= self._limit:
                found = StatusError(
                    Code.RESOURCE_EXHAUSTED,
                    "a place to wait for a host buffer is needed; the limit (--max_handles) is "
                    f"{self._limit} per session, of which {self._num_waiting} are held",
                )
            if found is None:
                self._waiting.setdefault(handle, []).append(callback)
                self._num_waiting += 1
                return
        callback(found)

    def forget(self, handle: int, callback: Callable[[Arrived], None]) -> None:
        """Removes `callback`, if it still waits."""
        with self._lock:
            waiting = self._waiting.get(handle, [])
            if callback in waiting:
                waiting.remove(callback)
                self._num_waiting -= 1
                if not waiting:
                    del self._waiting[handle]

    def take(self, handle: int) -> None:
        """Removes a buffer; unknown ones are no error."""
        with self._lock:
            self._buffers.pop(handle, None)

    def discard(self, handle: int) -> None:
        """Removes a buffer, now or when it arrives."""
        self.when_there(handle, lambda _buffer: self.take(handle))

    def close(self) -> None:
        """Drops all buffers; those that wait get an error."""
        with self._lock:
            self._closed = StatusError(Code.CANCELLED, "the session has ended")
            self._buffers.clear()
            waiting, self._waiting = self._waiting, {}
        for callbacks in waiting.values():
            for callback in callbacks:
                callback(self._closed)


def chunks(buffer: np.ndarray, size: int) -> Iterator[memoryview]:
    """Splits a buffer into pieces without copying; at least one, which may be empty."""
    view = buffer.data
    for start in range(0, max(len(view), 1), size):
        yield view[start : start + size]


def count_files(directory: Path) -> int:
    """Returns how many buffers a client has left in its directory that are not taken yet.

    A directory that is missing, or is removed meanwhile, has none.
    """
    # (Path.glob of Python 3.11 raises if the directory is removed at the wrong moment.)
    try:
        with os.scandir(directory) as entries:
            return sum(entry.name.startswith("lt_") for entry in entries)
    except OSError:
        return 0


def remove_directory(directory: Path) -> None:
    """Removes a session's directory, and the unused files in it."""
    mark_ended(directory)
    for path in directory.glob("lt_*"):
        with contextlib.suppress(OSError):
            path.unlink()
    # Its client made it for this session. (Not if it holds anything else.)
    with contextlib.suppress(OSError):
        directory.rmdir()


def take_file(path: Path, size: int) -> np.ndarray:
    """Returns a client's file, usually as the file's own pages, and removes its name.

    A link is refused, as is a file of another size.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as error:
        text = f"no file for the host buffer: {error}: it was removed before it was read"
        raise StatusError(Code.NOT_FOUND, text) from error
    except OSError as error:
        raise invalid_argument(f"not a file that can be read: {error}") from error
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_size != size:
            raise invalid_argument(f"not a file of {size} bytes")
        path.unlink(missing_ok=True)
        if size == 0:
            return aligned_buffer(0)
        try:
            mapped = mmap.mmap(fd, size, prot=mmap.PROT_READ)
        except OSError as error:
            raise StatusError(
                Code.RESOURCE_EXHAUSTED, f"no memory for a host buffer of {size} bytes: {error}"
            ) from error
        found_space = os.fstatvfs(fd)
        if found_space.f_bavail >= found_space.f_blocks * _ROOMY:
            return np.frombuffer(mapped, np.uint8)
        # An array may use these pages for long: clients that find no room lose their sessions.
        with mapped:
            buffer = aligned_buffer(size)
            buffer[:] = np.frombuffer(mapped, np.uint8)
            return buffer
    finally:
        os.close(fd)
