"""The times of programs on a proxy's executors: entered by runs, reported to the resource manager.

`run_comparison` compares them.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from shared_pathways_service.events.proxy import ExecutorSlow, ExecutorSlowEnded, ProxyReport
from shared_pathways_service.protocol import proxy_status_pb2 as pb
from shared_pathways_service.servers.proxy.executors.executor_link import ExecutorLink
from shared_pathways_service.servers.proxy.executors.run_comparison import (
    Change,
    ExecutorId,
    Program,
    RunComparison,
    SlowLimits,
)

__all__ = ["ExecutorTimes", "digest_of"]

#: The programs of an executor in a report, and those of all executors together.
_PROGRAMS_OF_ONE, _PROGRAMS_OF_ALL = 8, 2048


def digest_of(text: bytes) -> bytes:
    """Returns what stands for the text of a program."""
    return hashlib.sha256(text).digest()[:16]


class ExecutorTimes:
    """Enters runs of programs, and reports verdicts. Thread-safe.

    Args:
      limits: When an executor counts as slow.
      clock: Monotonic seconds.

    Attributes:
      on_change: Called with the event of each verdict, without a lock, on the thread that entered
        the run; or on that which removed the executor.
    """

    def __init__(self, limits: SlowLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self.on_change: Callable[[ProxyReport], object] = lambda _event: None
        self._comparison = RunComparison(limits)
        self._clock = clock
        self._lock = threading.Lock()
        #: Each executor, with the type of its slice.
        self._executors: dict[ExecutorLink, tuple[ExecutorId, str]] = {}

    def add(self, link: ExecutorLink, executor: ExecutorId, instance_type: str) -> None:
        """Enters an executor, whose runs count from now on."""
        with self._lock:
            self._executors[link] = (executor, instance_type)

    def remove(self, links: Iterable[ExecutorLink]) -> None:
        """Forgets executors that have ended, and what they have run."""
        with self._lock:
            ended = [self._executors.pop(one)[0] for one in links if one in self._executors]
            changes = self._comparison.forget(ended)
        self._report(changes)

    def ran(
        self,
        name: str,
        digest: bytes,
        devices: Mapping[ExecutorLink, int],
        times_ns: Sequence[int],
    ) -> None:
        """Enters one run of a program.

        Args:
          name: The program's name.
          digest: That of its text.
          devices: The number of its devices on each executor that ran it.
          times_ns: The nanoseconds on each.
        """
        if len(self._executors) <= 1:
            return  # an executor without peers
        runs: dict[Program, dict[ExecutorId, float]] = {}
        with self._lock:
            for (link, count), time_ns in zip(devices.items(), times_ns, strict=True):
                found = self._executors.get(link)
                if found is not None:
                    program = Program(name, digest, found[1], count)
                    runs.setdefault(program, {})[found[0]] = time_ns / 1e9
            now = self._clock()
            changes = [
                change
                for program, times in runs.items()
                for change in self._comparison.ran(program, times, now)
            ]
        self._report(changes)

    def message(self) -> pb.ExecutorTimes:
        """Returns the report for the resource manager."""
        with self._lock:
            most = _PROGRAMS_OF_ALL // max(1, len(self._executors))
            facts = self._comparison.facts(max(1, min(_PROGRAMS_OF_ONE, most)))
        message = pb.ExecutorTimes()
        indices: dict[str, int] = {}
        for one in facts:
            message.executors.add(
                generation=one.executor.generation,
                host_index=one.executor.host_index,
                is_slow=one.is_slow,
                ratio=one.ratio,
                programs=[
                    pb.ProgramTime(
                        program=indices.setdefault(program.name, len(indices)),
                        calls=program.calls,
                        median_s=program.median_s,
                        p90_s=program.p90_s,
                        ratio=program.ratio,
                        is_slow=program.is_slow,
                    )
                    for program in one.programs
                ],
            )
        message.programs.extend(indices)
        return message

    def _report(self, changes: Iterable[Change]) -> None:
        for change in changes:
            self.on_change(_event_of(change))


def _event_of(change: Change) -> ProxyReport:
    executor = change.executor
    where = f"host {executor.host_index} of {executor.slice_id}"
    if not change.is_slow:
        return ExecutorSlowEnded(
            reason=f"{where}: {change.reason}",
            slice=executor.slice_id,
            virtual_index=executor.virtual_index,
            slice_id=executor.slice_id,
            generation=executor.generation,
            host=executor.host_index,
        )
    return ExecutorSlow(
        reason=f"{where}: {change.reason}",
        slice=executor.slice_id,
        virtual_index=executor.virtual_index,
        slice_id=executor.slice_id,
        generation=executor.generation,
        host=executor.host_index,
        program=change.program,
        ratio=change.ratio,
    )
