"""A hold on a slice's workers: killed and kept down, or stopped, because somebody asked for it."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Iterable

from shared_pathways_service.servers.supervisor.child import Child

__all__ = ["Disturbance", "Hold"]


class Disturbance(enum.Enum):
    """What is done to a slice's workers."""

    KILL = "kill"
    HANG = "hang"
    LET_GO = "let go"


class Hold:
    """Whether the workers of one slice may run.

    To the resource manager a worker that is killed is a worker that died, and one that is stopped a
    worker that hangs: it is told nothing else.

    A worker that was disturbed may end once without its end being counted by the `RestartPolicy`,
    be it by our signal or because the resource manager dismissed it while it stood still: the limit
    of a slice's restarts is there to find a slice that is broken, and this one is not.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._free = asyncio.Event()
        self._free.set()
        self._until = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._kind = Disturbance.LET_GO
        self._disturbed: set[Child] = set()
        self._stopped: set[Child] = set()

    def begin(self, kind: Disturbance, hold_s: float, workers: Iterable[Child]) -> int:
        """Disturbs the slice, or lets it go.

        One that is held already is held until the later of the two ends. While its workers are
        kept down there is nothing to stop: a hang then only keeps them down for longer.

        Args:
          kind: What is done.
          hold_s: Seconds from now until it is over.
          workers: All of the slice that were started.

        Returns:
          How many workers it was done to.
        """
        if kind is Disturbance.LET_GO:
            going_on = len(self._stopped)
            self.end()
            return going_on
        if self._free.is_set() or self._kind is not Disturbance.KILL:
            self._kind = kind
        self._free.clear()
        self._until = max(self._until, self._loop.time() + hold_s)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._until, self.end)
        return sum(self.meet(worker) for worker in workers)

    def meet(self, worker: Child) -> bool:
        """Does to a worker what is done to the slice, if anything; returns whether it was."""
        if self._free.is_set() or worker.exit_code is not None:
            return False
        self._disturbed.add(worker)
        if self._kind is Disturbance.KILL:
            worker.kill()
        else:
            worker.pause()
            self._stopped.add(worker)
        return True

    def excuses(self, worker: Child) -> bool:
        """Whether the end of a worker is not the slice's fault; asked once, when it has ended."""
        self._stopped.discard(worker)
        excused = worker in self._disturbed
        self._disturbed.discard(worker)
        return excused

    async def over(self) -> None:
        """Returns when the slice is held no longer."""
        await self._free.wait()

    def end(self) -> None:
        """Lets the workers run, or be started again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for worker in self._stopped:
            worker.resume()
        self._stopped.clear()
        self._until = 0.0
        self._free.set()
