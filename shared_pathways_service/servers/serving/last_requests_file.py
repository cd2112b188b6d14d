"""Records what a process does in a memory-mapped file, which survives a crash.

XLA's own faults end the process (SIGSEGV, SIGABRT), so it cannot write a report. Data in a mapped
file belongs to the system at once: it survives the process, but not the machine. A write copies a
few bytes, without a system call.

The file consists of lines of `_LINE` bytes (`runtime.last_requests` reads them): the first is a
header, the last `_RING` are a ring buffer of the last requests, each with its number, and those in
between are running operations, one per place (a slice's executor, the compiler).
"""

from __future__ import annotations

import functools
import itertools
import mmap
import os
import struct
from pathlib import Path

from shared_pathways_service.runtime.glog import glog
from shared_pathways_service.runtime.last_requests import (
    HEADER,
    Unfinished,
    parse_unfinished,
    printable,
)

__all__ = ["LAST_REQUESTS_BYTES", "LastRequests", "Place", "read_unfinished"]

#: The usual size of the file.
LAST_REQUESTS_BYTES = 8192
_LINE = 128
_RING = 24
#: Bytes of a request's number and a blank, enough for years.
_NUMBER = 13
_BLANK = b" " * (_LINE - 1) + b"\n"
_WRITE_LINE = struct.Struct(f"{_LINE}s").pack_into
#: Writes number and text at once, without building a bytes object first.
_WRITE_REQUEST = struct.Struct(f"{_NUMBER}s{_LINE - _NUMBER}s").pack_into
_MOST_READ = 64 << 10


class LastRequests:
    """Writes the file; thread-safe.

    Args:
      path: The file, which is overwritten. If it is empty, or the file cannot be created (which is
        logged), memory of the process is used.
      size: The size of the file in bytes, at least 4096.
    """

    def __init__(self, path: str = "", size: int = LAST_REQUESTS_BYTES) -> None:
        lines = size // _LINE
        data = _line(HEADER) + _BLANK * (lines - 1)
        self._path = path
        self._map = _mapped(path, data) if path else _in_memory(data)
        self._next = itertools.count(1).__next__
        self._places = itertools.count()
        self._most_places = lines - 1 - _RING
        self._ring = (lines - _RING) * _LINE

    def add(self, kind: str, about: str = "") -> None:
        """Adds a request to the ring buffer: its kind, and its subject."""
        number = self._next()
        start = self._ring + number % _RING * _LINE
        _WRITE_REQUEST(self._map, start, b"%12d " % number, _request(kind, about))

    def place(self, name: str) -> Place:
        """Returns a place for one operation at a time."""
        return Place(self._map, (1 + next(self._places) % self._most_places) * _LINE, name)

    def take_back(self) -> None:
        """Empties the file permanently: the process ends normally, and reports the reason itself.

        Later writes raise TypeError, which is better than truncating the file under a map, which
        ends the process.
        """
        self._map.close()
        if self._path:
            try:
                os.truncate(self._path, 0)
            except OSError as error:
                glog("W", f"Cannot empty {self._path}: {error}")


def _mapped(path: str, data: bytes) -> mmap.mmap:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            # Written, not only extended: the first access to a page for which the disk has no room
            # ends the process (SIGBUS).
            file.write(data)
            file.flush()
            return mmap.mmap(fd, len(data))
    except OSError as error:
        glog("W", f"The last requests are not recorded in {path}: {error}")
        return _in_memory(data)


def _in_memory(data: bytes) -> mmap.mmap:
    made = mmap.mmap(-1, len(data))
    made[:] = data
    return made


class Place:
    """The current operation of one thread."""

    __slots__ = ("_map", "_name", "_start")

    def __init__(self, memory: mmap.mmap, start: int, name: str) -> None:
        self._map = memory
        self._start = start
        self._name = name

    def begin(self, what: str) -> None:
        """Records the start of an operation."""
        _WRITE_LINE(self._map, self._start, _doing(what, self._name))

    def end(self) -> None:
        """Records the end of the operation."""
        _WRITE_LINE(self._map, self._start, _BLANK)


@functools.lru_cache(1024)
def _request(kind: str, about: str) -> bytes:
    return _line(f"{kind} {about}" if about else kind, _LINE - _NUMBER)


@functools.lru_cache(1024)
def _doing(what: str, where: str) -> bytes:
    return _line(f"at {what} {where}" if where else f"at {what}")


def _line(text: str, length: int = _LINE) -> bytes:
    """Returns a line of a fixed number of bytes, cut between two characters."""
    cut = printable(text).encode(errors="replace")[: length - 1].decode(errors="ignore").encode()
    return cut.ljust(length - 1) + b"\n"


def read_unfinished(path: Path) -> Unfinished:
    """Reads the file of a process that has ended; returns None without one."""
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_READ).decode(errors="replace")
    except OSError:
        text = ""
    return parse_unfinished(text) or Unfinished(running=(), requests=())
