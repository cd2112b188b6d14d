"""The times of programs on executors, as proxies report them with their counters.

A proxy belongs to its tenant: what it reports is checked, and counts only for executors that run
for this tenant.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator

from shared_pathways_service.api.validation import fitting_text
from shared_pathways_service.protocol import proxy_status_pb2 as status_pb
from shared_pathways_service.protocol import resource_manager_pb2 as pb

__all__ = ["ExecutorTimes"]

#: The largest report in bytes, and the most characters of a program's name.
_LARGEST, _LONGEST_NAME = 256 << 10, 100


@dataclasses.dataclass(frozen=True)
class _Report:
    stream: object
    arrived: float
    message: status_pb.ExecutorTimes
    #: By the generation of the placement, and the host.
    executors: dict[tuple[int, int], status_pb.ExecutorTime]


class ExecutorTimes:
    """The last report of each connected proxy.

    Args:
      clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._reports: dict[str, _Report] = {}

    def put(self, tenant: str, stream: object, counters: status_pb.GetCountersResponse) -> None:
        """Takes the times out of a report of counters, in place of the proxy's last ones."""
        found = status_pb.ExecutorTimes()
        if counters.HasField("executor_times"):
            if counters.executor_times.ByteSize() <= _LARGEST:
                found = _valid(counters.executor_times)
            counters.ClearField("executor_times")
        executors = {(one.generation, one.host_index): one for one in found.executors}
        self._reports[tenant] = _Report(stream, self._clock(), found, executors)

    def forget(self, tenant: str, stream: object) -> None:
        """Removes the report that came by a stream that has ended, unless there is a newer one."""
        known = self._reports.get(tenant)
        if known is not None and known.stream is stream:
            del self._reports[tenant]

    def find(self, tenant: str, generation: int, host: int) -> status_pb.ExecutorTime | None:
        """Returns what is known of a tenant's executor; None: nothing was reported."""
        report = self._reports.get(tenant)
        return None if report is None else report.executors.get((generation, host))

    def mark(self, status: pb.GetStatusResponse) -> None:
        """Enters the times of executors in a status."""
        for found in status.slices:
            if found.tenant not in self._reports:
                continue
            for worker in found.workers:
                executor = worker.executor
                known = self.find(found.tenant, executor.generation, worker.host_index)
                if worker.HasField("executor") and known is not None:
                    executor.slow = known.is_slow
                    if known.HasField("ratio"):
                        executor.time_ratio = known.ratio

    def messages(self, tenant: str = "") -> Iterator[pb.TenantExecutorTimes]:
        """Returns the reports by the tenants' names; of one tenant if it is given."""
        now = self._clock()
        for name, report in sorted(self._reports.items()):
            if tenant in {"", name}:
                yield pb.TenantExecutorTimes(
                    tenant=name, times=report.message, age_s=now - report.arrived
                )


def _valid(found: status_pb.ExecutorTimes) -> status_pb.ExecutorTimes:
    """Returns a report without what is not valid in it."""
    names = [fitting_text(name[:_LONGEST_NAME]) for name in found.programs]
    valid = status_pb.ExecutorTimes(programs=names)
    for executor in found.executors:
        made = valid.executors.add(
            generation=executor.generation,
            host_index=executor.host_index,
            is_slow=executor.is_slow,
            programs=[one for one in executor.programs if _is_valid(one, len(names))],
        )
        if executor.HasField("ratio") and _is_number(executor.ratio):
            made.ratio = executor.ratio
    return valid


def _is_valid(one: status_pb.ProgramTime, names: int) -> bool:
    numbers = (one.median_s, one.p90_s, one.ratio)
    return one.program < names and all(map(_is_number, numbers))


def _is_number(value: float) -> bool:
    return math.isfinite(value) and value >= 0
