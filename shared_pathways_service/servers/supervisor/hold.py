"""Disturbs the workers of a slice on request: kills them and keeps them down, or stops them."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Iterable

from shared_pathways_service.servers.supervisor.child import Child

__all__ = ["Disturbance", "Hold"]


class Disturbance(enum.Enum):
    """The kind of a disturbance."""

    KILL = "kill"
    HANG = "hang"
    LET_GO = "let go"


class Hold:
    """Controls whether the workers of one slice may run.

    For the resource manager a killed worker looks like one that died, and a stopped worker like one
    that hangs: it gets no other information.

    One end of a disturbed worker is not counted by the `RestartPolicy`, whether it was our signal
    or a dismissal by the resource manager: the limit of a slice's restarts is to detect a broken
    slice, which this is not.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        #: Set while there is no disturbance.
        self.ended = asyncio.Event()
        self.ended.set()
        self._until = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._kind = Disturbance.LET_GO
        self._disturbed: set[Child] = set()
        self._stopped: set[Child] = set()

    def begin(self, kind: Disturbance, hold_s: float, workers: Iterable[Child]) -> int:
        """Disturbs the slice, or restores it; returns the number of affected workers.

        Overlapping disturbances last until the later end. Workers that are kept down cannot be
        stopped: then a hang only keeps them down longer.
        """
        if kind is Disturbance.LET_GO:
            going_on = len(self._stopped)
            self.end()
            return going_on
        if self.ended.is_set() or self._kind is not Disturbance.KILL:
            self._kind = kind
        self.ended.clear()
        self._until = max(self._until, self._loop.time() + hold_s)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._until, self.end)
        return sum(self.apply_to(worker) for worker in workers)

    def apply_to(self, worker: Child) -> bool:
        """Applies the slice's disturbance to a worker, if there is one; returns whether it did."""
        if self.ended.is_set() or worker.exit_code is not None:
            return False
        self._disturbed.add(worker)
        if self._kind is Disturbance.KILL:
            worker.kill()
        else:
            worker.pause()
            self._stopped.add(worker)
        return True

    def excuses(self, worker: Child) -> bool:
        """Whether the end of a worker was caused by a disturbance; call it once, at its end."""
        self._stopped.discard(worker)
        excused = worker in self._disturbed
        self._disturbed.discard(worker)
        return excused

    def end(self) -> None:
        """Lets the workers run, or be restarted."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for worker in self._stopped:
            worker.resume()
        self._stopped.clear()
        self._until = 0.0
        self.ended.set()
