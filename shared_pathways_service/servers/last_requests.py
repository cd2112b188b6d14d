"""What a process did last, where its end cannot take it away: a small file, mapped into memory.

XLA's own faults end the process (SIGSEGV, SIGABRT), and nothing runs any more that could write a
report. What is written into a mapped file is the system's from then on: it outlives the process,
though not the machine. One write is one copy of a few bytes, without a system call.

The file is a row of slots of `_SLOT` bytes. The first `_PLACES` are what is done now, one a place
(a slice's executor, the compiler); the others a ring of the last requests, each with its number.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import mmap
import os
import struct
from pathlib import Path

from shared_pathways_service.servers.glog import glog

__all__ = ["LastRequests", "Place", "Unfinished", "read_unfinished"]

_SLOT = 128
_NUMBER = 8
_PLACES = 32
_RING = 32
_SIZE = (_PLACES + _RING) * _SLOT
#: Bytes of the text in a slot.
_TEXT = _SLOT - _NUMBER
#: Writes number and text in one go: no bytes are put together first.
_WRITE = struct.Struct(f"<Q{_TEXT}s").pack_into


class LastRequests:
    """Writes the file; many threads may.

    Args:
      path: The file, made anew; empty, or where none can be made, which is logged: memory that goes
        with the process.
    """

    def __init__(self, path: str = "") -> None:
        self._map = _mapped(path) if path else mmap.mmap(-1, _SIZE)
        self._next = itertools.count(1).__next__
        self._places = itertools.count()

    def add(self, kind: str, about: str = "") -> None:
        """Adds a request to the ring: its kind, and what it concerns."""
        number = self._next()
        start = (_PLACES + number % _RING) * _SLOT
        _WRITE(self._map, start, number, _encoded(kind, about))

    def place(self, name: str) -> Place:
        """Returns a place where one thing at a time is done."""
        return Place(self._map, next(self._places) % _PLACES * _SLOT, name)


def _mapped(path: str) -> mmap.mmap:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            # Written, not only made so long: of a page that the disk has no room for, the first
            # use ends the process (SIGBUS).
            file.write(bytes(_SIZE))
            file.flush()
            return mmap.mmap(fd, _SIZE)
    except OSError as error:
        glog("W", f"What this process does last is not kept in {path}: {error}")
        return mmap.mmap(-1, _SIZE)


class Place:
    """What one thread does now."""

    __slots__ = ("_map", "_name", "_start")

    def __init__(self, memory: mmap.mmap, start: int, name: str) -> None:
        self._map = memory
        self._start = start
        self._name = name

    def begin(self, what: str) -> None:
        """Takes note of what is begun."""
        _WRITE(self._map, self._start, 1, _encoded(what, self._name))

    def end(self) -> None:
        """Takes note that nothing is done."""
        # Its first byte tells.
        self._map[self._start] = 0


@functools.lru_cache(1024)
def _encoded(what: str, about: str) -> bytes:
    text = f"{what} {about}" if about else what
    return text.encode(errors="replace")[:_TEXT]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unfinished:
    """What a process left when it ended.

    Attributes:
      running: What was being done, e.g. ``jit_step on slice 0``.
      requests: The last requests, oldest first.
    """

    running: tuple[str, ...]
    requests: tuple[str, ...]


def read_unfinished(path: Path) -> Unfinished:
    """Reads the file of a process that has ended; nothing where there is none."""
    try:
        with path.open("rb") as file:
            data = file.read(_SIZE)
    except OSError:
        data = b""
    slots = [data[i : i + _SLOT].ljust(_SLOT, b"\0") for i in range(0, len(data), _SLOT)]
    found = [(int.from_bytes(slot[:_NUMBER], "little"), _text_of(slot)) for slot in slots]
    return Unfinished(
        running=tuple(text for number, text in found[:_PLACES] if number and text),
        requests=tuple(text for number, text in sorted(found[_PLACES:]) if number),
    )


def _text_of(slot: bytes) -> str:
    text = slot[_NUMBER:].rstrip(b"\0").decode(errors="replace")
    return "".join(c if c.isprintable() else "?" for c in text)
