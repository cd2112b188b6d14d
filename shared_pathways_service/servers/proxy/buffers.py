"""Host buffers on their way in or out: bytes under a handle that the client chose."""

from __future__ import annotations

import mmap
import os
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from shared_pathways_service.servers.proxy.status import Code, StatusError

__all__ = ["BufferStore", "aligned_buffer", "chunks", "take_file"]

#: XLA's CPU client takes memory as it is, without a copy, from this alignment on.
_ALIGNMENT = 64


def aligned_buffer(size: int) -> np.ndarray:
    """Returns `size` bytes, not initialised, where XLA can use them without a copy."""
    raw = np.empty(size + _ALIGNMENT, np.uint8)
    offset = -raw.ctypes.data % _ALIGNMENT
    return raw[offset : offset + size]


class BufferStore:
    """The host buffers of one session. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._buffers: dict[int, np.ndarray | StatusError] = {}
        self._waiting: dict[int, list[Callable[[np.ndarray | StatusError], None]]] = {}
        self._closed: StatusError | None = None

    def put(self, handle: int, buffer: np.ndarray | StatusError) -> None:
        """Stores a buffer, or why there is none, and calls whoever waits for it."""
        with self._lock:
            if self._closed is not None:
                return
            self._buffers[handle] = buffer
            waiting = self._waiting.pop(handle, ())
        for callback in waiting:
            callback(buffer)

    def when_there(self, handle: int, callback: Callable[[np.ndarray | StatusError], None]) -> None:
        """Calls back with a buffer once it is there; with an error when it never comes."""
        with self._lock:
            found = self._closed or self._buffers.get(handle)
            if found is None:
                self._waiting.setdefault(handle, []).append(callback)
                return
        callback(found)

    def take(self, handle: int) -> None:
        """Forgets a buffer; unknown ones are no error."""
        with self._lock:
            self._buffers.pop(handle, None)

    def close(self) -> None:
        """Lets go of everything; whoever waits is told so."""
        with self._lock:
            self._closed = StatusError(Code.CANCELLED, "the session has ended")
            self._buffers.clear()
            waiting, self._waiting = self._waiting, {}
        for callbacks in waiting.values():
            for callback in callbacks:
                callback(self._closed)


def chunks(buffer: np.ndarray, size: int) -> Iterator[memoryview]:
    """Cuts a buffer into pieces without copying; at least one, which may be empty."""
    view = buffer.data
    for start in range(0, max(len(view), 1), size):
        yield view[start : start + size]


def take_file(path: Path, size: int) -> np.ndarray:
    """Maps a file that a client left, and removes its name.

    Args:
      path: Where; the last part must be a plain file, not a link.
      size: Bytes it must have.

    Raises:
      StatusError: There is no such file, or it is not what it should be.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise StatusError(Code.NOT_FOUND, f"no file for the host buffer: {error}") from error
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_size != size:
            raise StatusError(Code.INVALID_ARGUMENT, f"not a file of {size} bytes")
        path.unlink(missing_ok=True)
        if size == 0:
            return aligned_buffer(0)
        return np.frombuffer(mmap.mmap(fd, size, prot=mmap.PROT_READ), np.uint8)
    finally:
        os.close(fd)
