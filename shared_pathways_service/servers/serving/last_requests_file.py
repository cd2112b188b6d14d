"""What a process did last, where its end cannot take it away: a small file, mapped into memory.

XLA's own faults end the process (SIGSEGV, SIGABRT), and nothing runs any more that could write a
report. What is written into a mapped file is the system's from then on: it outlives the process,
though not the machine. One write is one copy of a few bytes, without a system call.

The file is a row of lines of `_LINE` bytes (`runtime.last_requests` reads them): the first says
what it is, the last `_RING` are a ring of the last requests, each with its number, and those
between are what is done now, one a place (a slice's executor, the compiler).
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

#: Of the file, usually.
LAST_REQUESTS_BYTES = 8192
_LINE = 128
_RING = 24
#: Bytes of a request's number, with a blank: a proxy of many years has it.
_NUMBER = 13
_BLANK = b" " * (_LINE - 1) + b"\n"
_WRITE_LINE = struct.Struct(f"{_LINE}s").pack_into
#: Writes number and text in one go: no bytes are put together first.
_WRITE_REQUEST = struct.Struct(f"{_NUMBER}s{_LINE - _NUMBER}s").pack_into
_MOST_READ = 64 << 10


class LastRequests:
    """Writes the file; many threads may.

    Args:
      path: The file, made anew; empty, or where none can be made, which is logged: memory that goes
        with the process.
      size: Of the file, in bytes; 4096 at least.
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
        """Adds a request to the ring: its kind, and what it concerns."""
        number = self._next()
        start = self._ring + number % _RING * _LINE
        _WRITE_REQUEST(self._map, start, b"%12d " % number, _request(kind, about))

    def place(self, name: str) -> Place:
        """Returns a place where one thing at a time is done."""
        return Place(self._map, (1 + next(self._places) % self._most_places) * _LINE, name)

    def take_back(self) -> None:
        """Empties the file, for good: this process ends in order, and says itself why.

        Whoever writes all the same gets TypeError: better than a file that is cut short below a
        map, which ends the process.
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
            # Written, not only made so long: of a page that the disk has no room for, the first
            # use ends the process (SIGBUS).
            file.write(data)
            file.flush()
            return mmap.mmap(fd, len(data))
    except OSError as error:
        glog("W", f"What this process does last is not kept in {path}: {error}")
        return _in_memory(data)


def _in_memory(data: bytes) -> mmap.mmap:
    made = mmap.mmap(-1, len(data))
    made[:] = data
    return made


class Place:
    """What one thread does now."""

    __slots__ = ("_map", "_name", "_start")

    def __init__(self, memory: mmap.mmap, start: int, name: str) -> None:
        self._map = memory
        self._start = start
        self._name = name

    def begin(self, what: str) -> None:
        """Takes note of what is begun."""
        _WRITE_LINE(self._map, self._start, _doing(what, self._name))

    def end(self) -> None:
        """Takes note that nothing is done."""
        _WRITE_LINE(self._map, self._start, _BLANK)


@functools.lru_cache(1024)
def _request(kind: str, about: str) -> bytes:
    return _line(f"{kind} {about}" if about else kind, _LINE - _NUMBER)


@functools.lru_cache(1024)
def _doing(what: str, where: str) -> bytes:
    return _line(f"at {what} {where}" if where else f"at {what}")


def _line(text: str, length: int = _LINE) -> bytes:
    """Returns a line of so many bytes, cut between two characters."""
    cut = printable(text).encode(errors="replace")[: length - 1].decode(errors="ignore").encode()
    return cut.ljust(length - 1) + b"\n"


def read_unfinished(path: Path) -> Unfinished:
    """Reads the file of a process that has ended; nothing where there is none."""
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_READ).decode(errors="replace")
    except OSError:
        text = ""
    return parse_unfinished(text) or Unfinished(running=(), requests=())
