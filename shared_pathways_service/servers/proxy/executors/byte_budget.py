"""Bounds the bytes that are under way between the proxy and an executor."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterator

from shared_pathways_service.servers.devices.status_errors import StatusError

__all__ = ["ByteBudget"]

#: The most bytes under way in one direction; one array alone may have more.
_MOST_BYTES = 256 << 20


class ByteBudget:
    """The bytes under way in one direction. Thread-safe.

    Those that wait get their turns in order, so that a large array is not overtaken for ever. All
    waits end with the executor. A thread that reads reports must not wait.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._taken = 0
        self._waiting: deque[object] = deque()
        self._lost: StatusError | None = None

    @property
    def waiting(self) -> int:
        """The number of those that wait."""
        return len(self._waiting)

    def take(self, nbytes: int) -> None:
        """Waits until so many bytes may be under way; raises why the executor is lost."""
        turn = object()
        with self._changed:
            self._waiting.append(turn)
            try:
                while not self._may_take(turn, nbytes):
                    self._changed.wait()
                self._taken += nbytes
            finally:
                self._waiting.remove(turn)
                self._changed.notify_all()

    def give_back(self, nbytes: int) -> None:
        """Notes that so many bytes have arrived, or are needed no more."""
        with self._changed:
            self._taken -= nbytes
            self._changed.notify_all()

    @contextlib.contextmanager
    def taken(self, nbytes: int) -> Iterator[None]:
        """Takes bytes for the time of a block."""
        self.take(nbytes)
        try:
            yield
        finally:
            self.give_back(nbytes)

    def end(self, lost: StatusError) -> None:
        """Ends all waits, now and later, with an error."""
        with self._changed:
            self._lost = lost
            self._changed.notify_all()

    def _may_take(self, turn: object, nbytes: int) -> bool:
        if self._lost is not None:
            raise self._lost.copy()
        is_first = self._waiting[0] is turn
        return is_first and (not self._taken or self._taken + nbytes <= _MOST_BYTES)
