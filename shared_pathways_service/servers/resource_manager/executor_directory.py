"""Where the executors of workers serve, their tokens, and what they use: all outside of the core.

The core's events are recorded, and only count which executors serve.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TypeAlias

from shared_pathways_service.api.validation import check_int, check_seconds, check_text
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.scheduling.book import messages
from shared_pathways_service.scheduling.book.holdings import WorkerStatus

__all__ = ["ExecutorDirectory"]

_Event: TypeAlias = messages.ExecutorServing | messages.ExecutorEnded


@dataclasses.dataclass(frozen=True)
class _Entry:
    incarnation: str
    generation: int
    message: pb.Executor
    pid: int


class ExecutorDirectory:
    """The executors that serve, by slice and host, as their workers report them.

    Args:
      enabled: Whether workers are assigned executors at all.
    """

    def __init__(self, *, enabled: bool) -> None:
        self.enabled = enabled
        self._entries: dict[tuple[str, int], _Entry] = {}
        self._assigned: dict[tuple[str, int], messages.AssignWorker] = {}
        self._usages: dict[tuple[str, int], tuple[str, pb.ExecutorUsage]] = {}

    def check(self, hello: pb.WorkerHello) -> None:
        """Refuses a worker that could not run executors where they are needed.

        Raises:
          InvalidRequestError: It is one of an older release.
        """
        if self.enabled and not hello.runs_executors:
            raise InvalidRequestError(
                "runs_executors", False, "a worker that runs executors; this one is older"
            )

    def read(self, joined: messages.WorkerJoined, report: pb.WorkerExecutor) -> _Event:
        """Enters a worker's report; returns the core's event of it.

        Raises:
          InvalidRequestError: Naming the field.
        """
        if not self.enabled:
            raise InvalidRequestError("message", "executor", "beat or bye after the hello")
        generation = check_int("executor.generation", report.generation, low=1)
        who = joined.slice_id, joined.host_index, joined.incarnation
        if not report.address:
            return messages.ExecutorEnded(
                slice_id=who[0],
                host_index=who[1],
                incarnation=who[2],
                generation=generation,
                reason=check_text("executor.reason", report.reason),
                exit_code=report.exit_code if report.HasField("exit_code") else None,
            )
        address = check_text("executor.address", report.address)
        token = check_text("executor.token", report.token)
        if report.HasField("usage"):
            self.measured(joined, report.usage)
        self._entries[who[:2]] = _Entry(
            joined.incarnation,
            generation,
            pb.Executor(host_index=joined.host_index, address=address, token=token),
            report.pid,
        )
        return messages.ExecutorServing(
            slice_id=who[0], host_index=who[1], incarnation=who[2], generation=generation
        )

    def assigned(self, instruction: messages.AssignWorker) -> None:
        """Notes the placement that a worker runs an executor for."""
        self._assigned[instruction.slice_id, instruction.host_index] = instruction

    def measured(self, joined: messages.WorkerJoined, usage: pb.ExecutorUsage) -> None:
        """Notes what a worker's executor uses.

        Raises:
          InvalidRequestError: Naming the field.
        """
        check_seconds("usage.cpu_seconds", usage.cpu_seconds)
        self._usages[joined.slice_id, joined.host_index] = joined.incarnation, usage

    def usages(self) -> Iterator[tuple[messages.AssignWorker, pb.ExecutorUsage]]:
        """Returns the executors that workers are assigned, and have measured."""
        for key, assigned in sorted(self._assigned.items()):
            usage = self._usage(key, assigned.incarnation, assigned.generation)
            if usage is not None:
                yield assigned, usage

    def assignments(self) -> list[messages.AssignWorker]:
        """Returns the placements that workers run executors for."""
        return [assigned for _, assigned in sorted(self._assigned.items())]

    def forget(self, joined: messages.WorkerJoined) -> None:
        """Removes what a worker reported whose stream has ended."""
        key = joined.slice_id, joined.host_index
        entry = self._entries.get(key)
        if entry is not None and entry.incarnation == joined.incarnation:
            del self._entries[key]
        assigned = self._assigned.get(key)
        if assigned is not None and assigned.incarnation == joined.incarnation:
            del self._assigned[key]
        if self._usages.get(key, ("",))[0] == joined.incarnation:
            del self._usages[key]

    def status(self, slice_id: str, worker: WorkerStatus) -> pb.ExecutorStatus | None:
        """Describes the executor that a worker is assigned; None: it is assigned none."""
        generation = worker.executor_generation
        if not self.enabled or not generation:
            return None
        key = slice_id, worker.host_index
        entry = self._entries.get(key)
        usage = self._usage(key, worker.incarnation, generation)
        if entry is None or (entry.incarnation, entry.generation) != (
            worker.incarnation,
            generation,
        ):
            return pb.ExecutorStatus(generation=generation, state="starting", usage=usage)
        return pb.ExecutorStatus(
            generation=generation,
            state="serving",
            address=entry.message.address,
            pid=entry.pid,
            usage=usage,
        )

    def update(self, instruction: messages.NotifyExecutors) -> pb.TenantUpdate:
        """Returns the message that names the executors of a placement."""
        executors = pb.PlacementExecutors(
            virtual_index=instruction.virtual_index, generation=instruction.generation
        )
        for (slice_id, _), entry in sorted(self._entries.items()):
            if slice_id == instruction.slice_id and entry.generation == instruction.generation:
                executors.executors.append(entry.message)
        return pb.TenantUpdate(executors=executors)

    def _usage(
        self, key: tuple[str, int], incarnation: str, generation: int
    ) -> pb.ExecutorUsage | None:
        """Returns what the executor of a generation uses; None: it was not reported."""
        found = self._usages.get(key)
        if found is None or (found[0], found[1].generation) != (incarnation, generation):
            return None
        return found[1]
