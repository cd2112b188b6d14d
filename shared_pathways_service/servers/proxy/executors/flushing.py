"""Sends what finalizers have freed, for which no message is sent at once."""

from __future__ import annotations

import queue
import threading
from typing import Protocol

__all__ = ["Flusher"]

#: Seconds for which what was freed waits for a command that it can go with.
_WAIT_S = 0.005


class _Link(Protocol):
    def flush(self) -> None:
        """Sends what waits."""


class Flusher:
    """A thread that flushes links some milliseconds after they have asked for it."""

    def __init__(self) -> None:
        self._due: queue.SimpleQueue[_Link | None] = queue.SimpleQueue()
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="flusher", daemon=True)
        self._thread.start()

    def flush_soon(self, link: _Link) -> None:
        """Flushes a link soon. Finalizers call it: it does not block."""
        self._due.put(link)

    def close(self) -> None:
        """Ends the thread, without a flush."""
        self._is_closed.set()
        self._due.put(None)
        self._thread.join()

    def _loop(self) -> None:
        while (link := self._due.get()) is not None:
            if self._is_closed.wait(_WAIT_S):
                return
            link.flush()
            # (Those that have asked meanwhile have waited long enough, nearly.)
            while not self._due.empty() and (link := self._due.get()) is not None:
                link.flush()
            del link
