"""Counts the requests of a session and the host buffers that clients send and receive.

Counting a request costs a few additions in slots that the thread which handles it has to itself:
no lock, and one look-up in a small dictionary.
"""

from __future__ import annotations

import threading
from collections.abc import Container, Iterator
from time import perf_counter_ns

__all__ = ["RequestCounts", "Transferred"]


class RequestCounts:
    """Requests of one session; written by the thread that handles them.

    Attributes:
      answer_bytes: Written by the thread that writes answers.
    """

    __slots__ = ("_kinds", "answer_bytes")

    def __init__(self) -> None:
        # Requests, those refused, nanoseconds in their handlers, bytes.
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
        """Counts that a request of this kind was answered with an error at once."""
        self._kinds.setdefault(kind, [0, 0, 0, 0])[1] += 1

    def all_but(self, kinds: Container[str]) -> int:
        """Returns how many requests there were that are of none of these kinds."""
        return sum(count[0] for kind, count in list(self._kinds.items()) if kind not in kinds)

    def merge(self, other: RequestCounts) -> None:
        """Adds another session's."""
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
    """Host buffers that went one way. Thread-safe: each comes on a thread of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.buffers = 0
        self.bytes = 0

    def add(self, nbytes: int) -> None:
        """Counts a buffer."""
        with self._lock:
            self.buffers += 1
            self.bytes += nbytes
