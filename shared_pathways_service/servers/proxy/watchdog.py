"""Ends the proxy when a program does not end on a lost slice: XLA cannot be cancelled."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from shared_pathways_service.servers.glog import glog
from shared_pathways_service.servers.proxy.exits import EXIT_LOST_PROGRAM, Ending
from shared_pathways_service.servers.proxy.operations import Operation
from shared_pathways_service.servers.proxy.slices import SliceChange

__all__ = ["Watchdog"]


class Watchdog:
    """Looks, a grace after each loss, whether what was running there has ended.

    Args:
      ending: Told when it has not.
      grace_s: Seconds.
    """

    def __init__(self, ending: Ending, grace_s: float) -> None:
        self._ending = ending
        self._grace_s = grace_s
        self._timers: set[threading.Timer] = set()

    def on_change(self, change: SliceChange) -> None:
        """Takes note of a slice that was lost with programs running on it."""
        if not change.running:
            return
        names = ", ".join(operation.name for operation in change.running)
        glog(
            "W",
            f"Slice {change.old.index} is lost while {names} runs on it: waiting "
            f"{self._grace_s:g} s for its end",
        )
        timer = threading.Timer(self._grace_s, self._look, (change.old.index, change.running))
        timer.daemon = True
        self._timers.add(timer)
        timer.start()

    def close(self) -> None:
        """Stops looking."""
        for timer in self._timers:
            timer.cancel()

    def _look(self, index: int, operations: Sequence[Operation]) -> None:
        stuck = [operation.name for operation in operations if operation.running]
        if not stuck:
            return
        reason = (
            f"program {stuck[0]} was still running on the lost slice {index} after "
            f"{self._grace_s:g} s, and cannot be stopped"
        )
        self._ending.decide(
            EXIT_LOST_PROGRAM, reason, kind="lost_program", program=stuck[0], slice=index
        )
