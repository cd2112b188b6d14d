"""The messages that a client sends on one stream, given to gRPC as an iterator."""

from __future__ import annotations

import dataclasses
import enum
import queue
import time
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

__all__ = ["Outgoing"]

T = TypeVar("T")


class _Signal(enum.Enum):
    END = enum.auto()
    BEATS = enum.auto()


@dataclasses.dataclass(frozen=True)
class _Beats(Generic[T]):
    interval_s: float
    make: Callable[[float], T]


class Outgoing(Generic[T]):
    """Messages of one stream, in order, and heartbeats once `beat_every` was called.

    Args:
      first: The first message.
    """

    def __init__(self, first: T) -> None:
        self._queue: queue.SimpleQueue[T | _Signal] = queue.SimpleQueue()
        self._beats: _Beats[T] | None = None
        self._queue.put(first)

    def put(self, message: T) -> None:
        """Sends a message after those before it."""
        self._queue.put(message)

    def end(self) -> None:
        """Ends the iteration after the messages before it; may be called again."""
        self._queue.put(_Signal.END)

    def beat_every(self, interval_s: float, make: Callable[[float], T]) -> None:
        """Sends a heartbeat whenever nothing else was sent for so many seconds.

        `make` makes it, on gRPC's thread, from the seconds by which it is late.
        """
        self._beats = _Beats(interval_s, make)
        self._queue.put(_Signal.BEATS)

    def __iter__(self) -> Iterator[T]:
        """Yields the messages; runs on a thread of gRPC's."""
        while True:
            beats = self._beats
            began = time.monotonic()
            try:
                item = self._queue.get(timeout=beats.interval_s if beats is not None else None)
            except queue.Empty:
                assert beats is not None, "there is no timeout without heartbeats"
                yield beats.make(time.monotonic() - began - beats.interval_s)
                continue
            if item is _Signal.END:
                return
            if not isinstance(item, _Signal):
                yield item
