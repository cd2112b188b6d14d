"""The open streams of workers and tenants, and the messages that are sent on them.

One change in a queue may concern many tenants, and their notification is not urgent. So that no
placement waits for all of them, these messages are sent a few at a time, with other work in
between; of several messages on one stream only the last is sent.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from typing import Generic, TypeVar

import grpc

from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.errors import SharedPathwaysError
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.scheduling.book import messages
from shared_pathways_service.servers.resource_manager import wire
from shared_pathways_service.servers.resource_manager.executor_directory import ExecutorDirectory
from shared_pathways_service.servers.resource_manager.outbox import Outbox, StreamEnded

__all__ = ["TenantStreams", "WorkerStreams"]

# Messages that may be queued on one stream.
_WORKER_LIMIT = 100
_TENANT_LIMIT = 10_000
#: The memory of an executor besides the arrays on its devices: code, threads, what is on its way.
_EXECUTOR_BYTES = 8 << 30
#: Places in the queue that are sent in one iteration of the event loop: 1 ms.
_PLACES_AT_ONCE = 8

K = TypeVar("K")
M = TypeVar("M")


@dataclasses.dataclass(frozen=True, eq=False)
class _Stream(Generic[M]):
    outbox: Outbox[M]
    version: int


class _Streams(Generic[K, M]):
    """The newest stream of each peer."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._streams: dict[K, _Stream[M]] = {}

    def __len__(self) -> int:
        return len(self._streams)

    def _open(self, key: K, version: int) -> Outbox[M]:
        # A peer may reconnect before the end of its old stream is noticed.
        self._end(key, "a newer stream of the same process took over", grpc.StatusCode.ABORTED)
        stream = _Stream(Outbox[M](self._limit), version)
        self._streams[key] = stream
        return stream.outbox

    def _close(self, key: K, outbox: Outbox[M]) -> bool:
        """Removes a stream that ended; returns False if it was not the newest of its peer."""
        stream = self._streams.get(key)
        if stream is None or stream.outbox is not outbox:
            return False
        del self._streams[key]
        return True

    def _end(self, key: K, reason: str, code: grpc.StatusCode) -> None:
        if stream := self._streams.pop(key, None):
            stream.outbox.end(StreamEnded(SharedPathwaysError(reason), code))


class WorkerStreams(_Streams[tuple[str, int, str], pb.WorkerInstruction]):
    """The streams of the workers."""

    def __init__(
        self,
        beat_interval_s: float,
        executors: ExecutorDirectory | None = None,
        *,
        device_memory_bytes: int = 0,
    ) -> None:
        """Starts without streams; workers are sent the interval.

        `executors` gets their reports; None: they run no executors. `device_memory_bytes` is the
        limit of a device's memory, from which that of an executor follows; 0: none.
        """
        super().__init__(_WORKER_LIMIT)
        self.executors = executors or ExecutorDirectory(enabled=False)
        self._beat_interval_s = beat_interval_s
        self._device_memory_bytes = device_memory_bytes

    def open(self, joined: messages.WorkerJoined, version: int) -> Outbox[pb.WorkerInstruction]:
        """Adds a worker's stream; ends an older one of the same process."""
        return self._open(_worker_key(joined), version)

    def close(self, joined: messages.WorkerJoined, outbox: Outbox[pb.WorkerInstruction]) -> bool:
        """Removes an ended stream; returns False if the RM ended it, or there is a newer one."""
        closed = self._close(_worker_key(joined), outbox)
        if closed or _worker_key(joined) not in self._streams:
            self.executors.forget(joined)
        return closed

    def send(self, instruction: messages.WelcomeWorker | messages.RefuseWorker) -> None:
        """Sends the core's answer to a worker."""
        key = _worker_key(instruction)
        if isinstance(instruction, messages.RefuseWorker):
            self._end(key, instruction.reason, grpc.StatusCode.FAILED_PRECONDITION)
        elif stream := self._streams.get(key):
            welcome = pb.WorkerWelcome(
                version=stream.version,
                beat_interval_s=self._beat_interval_s,
                last_generation=instruction.last_generation,
                takes_executors=self.executors.enabled,
            )
            stream.outbox.put(pb.WorkerInstruction(welcome=welcome))

    def assign(self, instruction: messages.AssignWorker) -> None:
        """Sends a worker the placement that it is to run an executor for."""
        self.executors.assigned(instruction)
        if stream := self._streams.get(_worker_key(instruction)):
            assignment = pb.WorkerAssignment(
                generation=instruction.generation,
                tenant=instruction.tenant,
                instance_type=str(instruction.instance_type),
                memory_limit_bytes=self._memory_limit(instruction.instance_type),
            )
            stream.outbox.put(pb.WorkerInstruction(assignment=assignment))

    def _memory_limit(self, kind: InstanceType) -> int:
        of_device = self._device_memory_bytes
        return of_device * kind.chips_per_host + _EXECUTOR_BYTES if of_device else 0


class TenantStreams(_Streams[tuple[str, str], pb.TenantUpdate]):
    """The streams of the tenants' proxies."""

    def __init__(
        self,
        ttl_s: float,
        memory_limit_bytes: int = 0,
        activity_s: float = 0.0,
        counters_s: float = 0.0,
        *,
        takes_losses: bool = False,
    ) -> None:
        """Starts without streams; tenants are sent these values (limit or interval 0: none)."""
        super().__init__(_TENANT_LIMIT)
        self._memory_limit_bytes = memory_limit_bytes
        self._activity_s = activity_s
        self._counters_s = counters_s
        self._takes_losses = takes_losses
        self._ttl_s = ttl_s
        #: The incarnation that each connected tenant has.
        self._incarnations: dict[str, str] = {}
        #: Places in the queue that are still to be sent, in the order of the core's instructions.
        self._places: dict[tuple[str, str], messages.NotifyQueued] = {}
        self._is_sending = False

    def open(self, asked: messages.TenantAsked, version: int) -> Outbox[pb.TenantUpdate]:
        """Adds a proxy's stream; ends an older one of the same process."""
        key = (asked.request.name, asked.incarnation)
        self._places.pop(key, None)
        return self._open(key, version)

    def close(self, asked: messages.TenantAsked, outbox: Outbox[pb.TenantUpdate]) -> bool:
        """Removes an ended stream; returns False if the RM ended it, or there is a newer one."""
        closed = self._close((asked.request.name, asked.incarnation), outbox)
        if closed:
            self._places.pop((asked.request.name, asked.incarnation), None)
            self._forget(asked.request.name, asked.incarnation)
        return closed

    def welcome(self, instruction: messages.WelcomeTenant) -> None:
        """Welcomes a proxy; its tenant's messages are sent to it from here on."""
        if stream := self._streams.get((instruction.tenant, instruction.incarnation)):
            self._incarnations[instruction.tenant] = instruction.incarnation
            welcome = pb.TenantWelcome(
                version=stream.version,
                ttl_s=self._ttl_s,
                recovering=instruction.recovering,
                memory_limit_bytes=self._memory_limit_bytes,
                activity_s=self._activity_s,
                takes_events=True,
                counters_s=self._counters_s,
                takes_losses=self._takes_losses,
            )
            stream.outbox.put(pb.TenantUpdate(welcome=welcome))

    def end(self, instruction: messages.EndTenantStream) -> None:
        """Ends the stream of a proxy whose tenant's name was taken over by another proxy."""
        self._end(
            (instruction.tenant, instruction.incarnation),
            instruction.reason,
            grpc.StatusCode.ALREADY_EXISTS,
        )

    def refuse(self, instruction: messages.RefuseTenant) -> None:
        """Sends a proxy the reason why its tenant is refused or ended, and ends its stream."""
        key = (instruction.tenant, instruction.incarnation)
        self._forget(*key)
        self._send_place(key)
        if stream := self._streams.pop(key, None):
            _put(stream, instruction)
            stream.outbox.end()

    def put(self, tenant: str, update: pb.TenantUpdate) -> None:
        """Sends a connected tenant a message."""
        key = (tenant, self._incarnations.get(tenant, ""))
        if stream := self._streams.get(key):
            self._send_place(key)
            stream.outbox.put(update)

    def send(self, instruction: wire.TenantInstruction) -> None:
        """Sends a tenant an update; a disconnected tenant gets its state when it reconnects."""
        key = (instruction.tenant, self._incarnations.get(instruction.tenant, ""))
        stream = self._streams.get(key)
        if stream is None:
            return
        if not isinstance(instruction, messages.NotifyQueued):
            self._send_place(key)
            _put(stream, instruction)
            return
        self._places[key] = instruction
        self._send_places_soon()

    def _send_places_soon(self) -> None:
        if self._places and not self._is_sending:
            self._is_sending = True
            asyncio.get_running_loop().call_soon(self._send_places)

    def _send_places(self) -> None:
        """Sends a few tenants their new place in the queue, and schedules the others."""
        self._is_sending = False
        for key in list(itertools.islice(self._places, _PLACES_AT_ONCE)):
            self._send_place(key)
        self._send_places_soon()

    def _send_place(self, key: tuple[str, str]) -> None:
        """Sends one tenant its place, before any later message."""
        instruction, stream = self._places.pop(key, None), self._streams.get(key)
        if instruction is not None and stream is not None:
            _put(stream, instruction)

    def _forget(self, tenant: str, incarnation: str) -> None:
        if self._incarnations.get(tenant) == incarnation:
            del self._incarnations[tenant]


def _put(stream: _Stream[pb.TenantUpdate], instruction: wire.TenantInstruction) -> None:
    update = wire.tenant_update(instruction, stream.version)
    if update is not None:
        stream.outbox.put(update)


def _worker_key(
    who: messages.WorkerJoined
    | messages.WelcomeWorker
    | messages.RefuseWorker
    | messages.AssignWorker,
) -> tuple[str, int, str]:
    return who.slice_id, who.host_index, who.incarnation
