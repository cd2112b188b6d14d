"""Measures what an executor uses: memory and processor time of all its processes."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable

import psutil

from shared_pathways_service.runtime.processes import Identity
from shared_pathways_service.servers.worker.orphans import adopts_orphans

__all__ = ["Usage", "UsageMeter"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Usage:
    """What an executor uses, with the processes that it has started.

    Attributes:
      resident_bytes: Resident memory; pages that several processes share count for each.
      cpu_seconds: Processor time since its start, that of processes that have ended included.
      cpu_percent: Processor time since the measurement before, or since its start, in percent of
        the time that passed: 100 is the time of one processor.
    """

    resident_bytes: int
    cpu_seconds: float
    cpu_percent: int


class UsageMeter:
    """Measures one executor, on any thread.

    Args:
      identity: The executor's, which has just been started.
      clock: Monotonic seconds.
    """

    def __init__(self, identity: Identity, clock: Callable[[], float] = time.monotonic) -> None:
        self._identity = identity
        self._clock = clock
        self._lock = threading.Lock()  # guards the three below
        self._measured_at = clock()
        self._seen_seconds = self._cpu_seconds = 0.0

    def read(self) -> Usage | None:
        """Measures it; None: it has ended, or the system refuses, e.g. more open files."""
        if not self._identity.is_alive():
            return None
        with self._lock:
            return self._read()

    def _read(self) -> Usage | None:
        resident, cpu = 0, 0.0
        # (An error here would end the worker's stream to the resource manager, or its supervisor.)
        try:
            for process in _processes_of(self._identity.pid):
                # (One that has just ended counts nothing.)
                with contextlib.suppress(psutil.Error), process.oneshot():
                    resident += process.memory_info().rss
                    cpu += sum(process.cpu_times()[:4])  # also of children that have ended
        except (psutil.Error, OSError):
            return None
        return self._usage(resident, cpu)

    def _usage(self, resident: int, cpu: float) -> Usage:
        now = self._clock()
        passed = now - self._measured_at
        # It is less than before if a process has ended that no other one of them waited for.
        used = max(0.0, cpu - self._seen_seconds)
        self._measured_at, self._seen_seconds = now, cpu
        self._cpu_seconds += used
        return Usage(
            resident_bytes=resident,
            cpu_seconds=self._cpu_seconds,
            cpu_percent=round(100 * used / passed) if passed > 0 else 0,
        )


def _processes_of(pid: int) -> list[psutil.Process]:
    """Returns the executor and all that descends from it."""
    if adopts_orphans():
        # Then all descendants of this worker are the executor's.
        return psutil.Process().children(recursive=True)
    executor = psutil.Process(pid)
    return [executor, *executor.children(recursive=True)]
