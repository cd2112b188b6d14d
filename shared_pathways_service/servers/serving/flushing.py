"""Sends what is not worth a message of its own, unless another one takes it along in time."""

from __future__ import annotations

import queue
import threading
from typing import Protocol

from shared_pathways_service.patience import timeouts
from shared_pathways_service.runtime.glog import glog

__all__ = ["Flusher"]


class _Link(Protocol):
    def flush(self) -> None:
        """Sends what waits."""


class Flusher:
    """A thread that flushes links soon after they have asked for it.

    Args:
      wait_s: The seconds for which what a link has to send waits for a message that it can go with.
    """

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s
        self._due: queue.SimpleQueue[_Link | None] = queue.SimpleQueue()
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="flusher", daemon=True)
        self._thread.start()

    def flush_soon(self, link: _Link) -> None:
        """Flushes a link soon. Finalizers call it: it does not block."""
        self._due.put(link)

    def close(self) -> None:
        """Ends the thread, after at most the flushes that it is at."""
        self._is_closed.set()
        self._due.put(None)
        self._thread.join(timeouts.THREAD_END.s)

    def _loop(self) -> None:
        while (link := self._due.get()) is not None:
            # (Those that ask meanwhile have waited long enough, nearly.)
            if self._is_closed.wait(self._wait_s):
                return
            _flush(link)
            while not self._due.empty():
                link = self._due.get()
                if link is None:
                    return
                _flush(link)
            del link


def _flush(link: _Link) -> None:
    try:
        link.flush()
    except Exception as error:  # noqa: BLE001 - the other links are flushed all the same
        glog("E", f"what has waited cannot be sent: {type(error).__name__}: {error}")
