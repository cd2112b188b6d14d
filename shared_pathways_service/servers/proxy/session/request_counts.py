"""Counts the requests of a session, and the host buffers that clients send and receive.

Counting a request costs a few additions in slots that belong to the thread which handles it: no
lock, and one look-up in a small dictionary.
"""

from __future__ import annotations

import threading
from collections.abc import Container, Iterator
from time import perf_counter_ns

__all__ = ["RequestCounts", "Transferred"]


class RequestCounts:
    """The requests of one session, written by the thread that handles them."""

    __slots__ = ("_kinds", "answer_bytes")

    def __init__(self) -> None:
        # Requests, refused requests, nanoseconds in their handlers, bytes.
        self._kinds: dict[str, list[int]] = {}
        self.answer_bytes = 0

    def add(self, kind: str, began_ns: int, nbytes: int) -> None:
        """Counts a request whose handler returns now."""
        count = self._kinds.get(kind)
        if count is None:
            count = self._kinds[kind] = [0, 0, 0, 0]
        count[0] += 1
        count[2] += perf_counter_ns() - began_ns
        count[3] += nbytes

    def refuse(self, kind: str) -> None:
        """Counts an immediate error as the answer to a request of this kind."""
        self._kinds.setdefault(kind, [0, 0, 0, 0])[1] += 1

    def all_but(self, kinds: Container[str]) -> int:
        """Returns the number of requests of other kinds."""
        return sum(count[0] for kind, count in list(self._kinds.items()) if kind not in kinds)

    def merge(self, other: RequestCounts) -> None:
        """Adds another session's counts."""
        self.answer_bytes += other.answer_bytes
        # (A copy: its thread may add a kind meanwhile.)
        for kind, count in list(other._kinds.items()):
            mine = self._kinds.setdefault(kind, [0, 0, 0, 0])
            for index, number in enumerate(count):
                mine[index] += number

    def items(self) -> Iterator[tuple[str, list[int]]]:
        """Yields kinds, each with requests, refusals, nanoseconds and bytes."""
        yield from sorted(self._kinds.items())


class Transferred:
    """Host buffers in one direction. Thread-safe: each arrives on a thread of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.buffers = 0
        self.bytes = 0

    def add(self, nbytes: int) -> None:
        """Counts a buffer."""
        with self._lock:
            self.buffers += 1
            self.bytes += nbytes
