"""A thread that runs the programs of one client in their order."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

__all__ = ["RunQueue"]


class RunQueue:
    """Calls functions one after the other on a thread of its own, which no exit waits for.

    (It costs a fraction of what a pool of one thread does, and programs are short.)

    Args:
      name: The thread's name.
    """

    def __init__(self, name: str) -> None:
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._is_cancelled = False
        # How many were put, and have ended.
        self._put = 0
        self._ended = 0
        threading.Thread(target=self._loop, name=name, daemon=True).start()

    @property
    def is_empty(self) -> bool:
        """Whether no function waits."""
        return self._queue.empty()

    @property
    def is_idle(self) -> bool:
        """Whether no function waits or runs; to be asked on the thread that puts them."""
        return self._ended == self._put

    def put(self, function: Callable[[], None]) -> None:
        """Calls a function, which raises nothing, after those before it; on one thread."""
        self._put += 1
        self._queue.put(function)

    def end(self, *, cancel: bool = False) -> None:
        """Ends the thread after the functions so far, or after the present one."""
        self._is_cancelled = cancel
        self._queue.put(None)

    def _loop(self) -> None:
        while True:
            function = self._queue.get()
            if function is None or self._is_cancelled:
                return
            function()
            self._ended += 1
            # Keep nothing of it while waiting for the next.
            del function
