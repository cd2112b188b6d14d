"""Threads for callbacks: each call has one, as a callback may wait for another one.

Like the plug-in the file needs the standard library only: it is copied with it.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

__all__ = ["Workers"]

#: Seconds after which a thread without work ends.
_IDLE_S = 10.0
#: Seconds that `close` waits for a function to return.
_LAST_S = 1.0


class Workers:
    """Runs each function at once, on a thread that is kept a while for the next one.

    The proxy bounds how many there are: each call holds one of its threads.
    """

    def __init__(self) -> None:
        """Begins no thread yet."""
        self._lock = threading.Lock()
        self._work: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._idle = 0
        self._threads: set[threading.Thread] = set()
        self._is_closed = False

    def submit(self, function: Callable[[], object]) -> None:
        """Runs a function, which must not raise."""
        with self._lock:
            if self._is_closed:
                return
            if self._idle:
                self._idle -= 1
                self._work.put(function)
                return
            thread = threading.Thread(
                target=self._run, args=(function,), name="sps-callback", daemon=True
            )
            self._threads.add(thread)
        thread.start()

    def close(self) -> None:
        """Ends the threads; one that is in a function ends with it."""
        with self._lock:
            self._is_closed = True
            threads, idle = list(self._threads), self._idle
            self._idle = 0
        for _ in range(idle):
            self._work.put(None)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(_LAST_S)

    def _run(self, function: Callable[[], object] | None) -> None:
        while function is not None:
            function()
            function = self._next()
        with self._lock:
            self._threads.discard(threading.current_thread())

    def _next(self) -> Callable[[], object] | None:
        with self._lock:
            if self._is_closed:
                return None
            self._idle += 1
        try:
            return self._work.get(timeout=_IDLE_S)
        except queue.Empty:
            pass
        with self._lock:
            if self._idle:
                self._idle -= 1
                return None
        # One was given out in this very moment.
        return self._work.get()
