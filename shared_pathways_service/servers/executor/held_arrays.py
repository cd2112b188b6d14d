"""Arrays by number, also before they are there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from shared_pathways_service.servers.devices.interface import ArraySpec
from shared_pathways_service.servers.devices.status_errors import StatusError

__all__ = ["HeldArray", "when_settled"]


class HeldArray:
    """An array, or the error for which there is none; settles once. Thread-safe."""

    __slots__ = ("_array", "_callbacks", "_error", "_lock", "_settled", "spec")

    def __init__(self) -> None:
        self.spec: ArraySpec | None = None
        self._array: Any = None
        self._error: StatusError | None = None
        self._settled = False
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []

    def fill(self, spec: ArraySpec, array: Any) -> None:
        """Settles with an array."""
        self.spec, self._array = spec, array
        self._settle()

    def fail(self, error: StatusError) -> None:
        """Settles with an error, unless it is settled."""
        if not self._settled:
            self._error = error.copy()
            self._settle()

    def get(self) -> Any:
        """Returns the array; raises the error. Only once it is settled."""
        if self._error is not None:
            raise self._error.copy()
        return self._array

    def call_when_settled(self, callback: Callable[[], None]) -> None:
        """Calls back once, on the thread that settles it, or now."""
        with self._lock:
            if not self._settled:
                self._callbacks.append(callback)
                return
        callback()

    def _settle(self) -> None:
        with self._lock:
            self._settled = True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()


def when_settled(arrays: Sequence[HeldArray], then: Callable[[], None]) -> None:
    """Calls `then` once, when all are settled."""
    left = len(arrays) + 1
    lock = threading.Lock()

    def one() -> None:
        nonlocal left
        with lock:
            left -= 1
            if left:
                return
        then()

    for array in arrays:
        array.call_when_settled(one)
    one()
