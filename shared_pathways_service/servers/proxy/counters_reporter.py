"""Reports the proxy's counters to the resource manager (RM), at the RM's interval."""

from __future__ import annotations

import threading
from collections.abc import Callable

from shared_pathways_service.protocol import proxy_status_pb2 as pb

__all__ = ["CountersReporter"]


class CountersReporter:
    """Reports counters on a thread of its own, which starts when the RM first asks.

    Args:
      read: Returns the counters.
    """

    def __init__(self, read: Callable[[], pb.GetCountersResponse]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closed = False
        self._send: Callable[[pb.GetCountersResponse], None] | None = None
        self._period_s = 0.0
        self._thread: threading.Thread | None = None

    def begin(self, period_s: float, send: Callable[[pb.GetCountersResponse], None]) -> None:
        """Reports at once, and then every `period_s` seconds."""
        with self._lock:
            self._send, self._period_s = send, period_s
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="rm-counters", daemon=True)
                self._thread.start()
        self._wake.set()

    def report_now(self) -> None:
        """Reports once before the interval is over, if the RM has asked for reports."""
        self._wake.set()

    def end(self) -> None:
        """Stops reporting until `begin`."""
        with self._lock:
            self._send = None

    def close(self) -> None:
        """Ends the thread."""
        with self._lock:
            self._closed = True
            thread = self._thread
        self._wake.set()
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while True:
            with self._lock:
                period_s = self._period_s if self._send is not None else None
            self._wake.wait(period_s)
            self._wake.clear()
            with self._lock:
                if self._closed:
                    return
                is_on = self._send is not None
            # Not with the lock: a busy proxy may take a while.
            found = self._read() if is_on else None
            with self._lock:
                if found is not None and self._send is not None:
                    self._send(found)
