"""Ends the proxy if an abandoned program does not end: XLA cannot cancel it."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from shared_pathways_service.runtime.glog import glog
from shared_pathways_service.servers.proxy.execution.virtual_slices import SliceChange, Work
from shared_pathways_service.servers.proxy.exits import EXIT_LOST_PROGRAM, Ending

__all__ = ["Watchdog"]


class Watchdog:
    """Checks, some time after a loss of a slice or end of a session, whether its programs ended."""

    def __init__(self, ending: Ending, grace_s: float) -> None:
        self._ending = ending
        self._grace_s = grace_s
        self._lock = threading.Lock()
        self._timers: set[threading.Timer] = set()

    def on_change(self, change: SliceChange) -> None:
        """Records a slice that was lost with programs running on it."""
        index = change.old.index
        self._watch(change.running, f"the loss of slice {index}", kind="lost_program", slice=index)

    def on_session_end(self, running: Sequence[Work]) -> None:
        """Records programs that still run; they delay other programs over several devices."""
        self._watch(running, "the end of its session", kind="abandoned_program")

    def close(self) -> None:
        """Stops checking."""
        with self._lock:
            timers = list(self._timers)
        for timer in timers:
            timer.cancel()

    def _watch(self, running: Sequence[Work], since: str, **details: object) -> None:
        if not running:
            return
        names = ", ".join(operation.name for operation in running)
        glog("W", f"{names} still runs after {since}: waiting {self._grace_s:g} s for its end")

        def look() -> None:
            with self._lock:
                self._timers.discard(timer)
            stuck = next((o.name for o in running if o.running), None)
            if stuck is not None:
                self._ending.decide(
                    EXIT_LOST_PROGRAM,
                    f"program {stuck} was still running {self._grace_s:g} s after {since}, and "
                    "cannot be stopped",
                    program=stuck,
                    **details,
                )

        timer = threading.Timer(self._grace_s, look)
        timer.daemon = True
        with self._lock:
            self._timers.add(timer)
        timer.start()
