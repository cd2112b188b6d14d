"""Clients, arrays, programs and runners of a proxy, also before they are there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from shared_pathways_service.servers.devices.status_errors import StatusError

__all__ = ["Held", "when_settled"]


class Held:
    """A client, array, program or runner, or the error for which there is none. Thread-safe.

    It settles once.
    """

    __slots__ = ("_callbacks", "_error", "_lock", "_settled", "_value")

    def __init__(self) -> None:
        self._value: Any = None
        self._error: StatusError | None = None
        self._settled = False
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []

    @property
    def is_settled(self) -> bool:
        """Whether there is a value or an error."""
        return self._settled

    @property
    def value(self) -> Any:
        """The value; None if there is none (yet)."""
        return self._value

    def fill(self, value: Any) -> None:
        """Settles with a value."""
        self._value = value
        self._settle()

    def fail(self, error: StatusError) -> None:
        """Settles with an error, unless it is settled."""
        if not self._settled:
            self._error = error.copy()
            self._settle()

    def get(self) -> Any:
        """Returns the value; raises the error. Only once it is settled."""
        if self._error is not None:
            raise self._error.copy()
        return self._value

    def call_when_settled(self, callback: Callable[[], None]) -> None:
        """Calls back once, on the thread that settles it, or now; the callback raises nothing."""
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


def when_settled(held: Sequence[Held], then: Callable[[], None]) -> None:
    """Calls `then` once, when all are settled."""
    left = len(held) + 1
    lock = threading.Lock()

    def one() -> None:
        nonlocal left
        with lock:
            left -= 1
            if left:
                return
        then()

    for each in held:
        each.call_when_settled(one)
    one()
