"""The time from the placement of a slice until what computes for it is there."""

from __future__ import annotations

import threading
from collections.abc import Callable

from shared_pathways_service.servers.proxy.execution.settling import call_in_turn

__all__ = ["Opening"]


class Opening:
    """Whether a placement can compute yet, or is lost. Thread-safe.

    Attributes:
      done: Whether work may begin; it fails by itself if the placement is lost.
    """

    def __init__(self) -> None:
        self.done = False
        self._lock = threading.Lock()
        self._settled = threading.Event()
        self._callbacks: list[Callable[[], None]] = []

    def add_callback(self, callback: Callable[[], None]) -> bool:
        """Calls back once, on the thread that settles this; False if it is settled already."""
        with self._lock:
            if self.done:
                return False
            self._callbacks.append(callback)
            return True

    def settle(self) -> None:
        """Lets work begin, in the order in which it came; only the first call counts."""
        with self._lock:
            if self.done:
                return
            self.done = True
            callbacks, self._callbacks = self._callbacks, []
        self._settled.set()
        call_in_turn(callbacks)

    def wait(self, timeout_s: float) -> bool:
        """Waits until work may begin; returns False if that takes longer."""
        return self._settled.wait(timeout_s)
