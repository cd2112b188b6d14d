"""Who is connected: the streams of workers and tenants, and what each is told."""

from __future__ import annotations

import dataclasses
from typing import Generic, TypeVar

import grpc

from shared_pathways_service.core.rm import messages
from shared_pathways_service.errors import SharedPathwaysError
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.servers.resource_manager import wire
from shared_pathways_service.servers.resource_manager.outbox import Outbox, StreamEnded

__all__ = ["TenantStreams", "WorkerStreams"]

# Messages that may wait on one stream.
_WORKER_LIMIT = 10
_TENANT_LIMIT = 10_000

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
        # A peer that dials again may be ahead of the news that its old stream broke.
        self._end(key, "a newer stream of the same process took over", grpc.StatusCode.ABORTED)
        stream = _Stream(Outbox[M](self._limit), version)
        self._streams[key] = stream
        return stream.outbox

    def _close(self, key: K, outbox: Outbox[M]) -> bool:
        """Forgets a stream that ended; False when it was not the newest of its peer."""
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

    def __init__(self, beat_interval_s: float) -> None:
        """Starts with none; `beat_interval_s` is what workers are told."""
        super().__init__(_WORKER_LIMIT)
        self._beat_interval_s = beat_interval_s

    def open(self, joined: messages.WorkerJoined, version: int) -> Outbox[pb.WorkerInstruction]:
        """Takes a worker's stream; an older one of the same process is ended."""
        return self._open(_worker_key(joined), version)

    def close(self, joined: messages.WorkerJoined, outbox: Outbox[pb.WorkerInstruction]) -> bool:
        """Forgets a stream that ended; False when the RM ended it, or there is a newer one."""
        return self._close(_worker_key(joined), outbox)

    def tell(self, told: messages.WelcomeWorker | messages.RefuseWorker) -> None:
        """Sends a worker what the core says."""
        key = _worker_key(told)
        if isinstance(told, messages.RefuseWorker):
            self._end(key, told.reason, grpc.StatusCode.FAILED_PRECONDITION)
        elif stream := self._streams.get(key):
            welcome = pb.WorkerWelcome(
                version=stream.version,
                beat_interval_s=self._beat_interval_s,
                last_generation=told.last_generation,
            )
            stream.outbox.put(pb.WorkerInstruction(welcome=welcome))


class TenantStreams(_Streams[tuple[str, str], pb.TenantUpdate]):
    """The streams of the tenants' proxies."""

    def __init__(self, ttl_s: float, memory_limit_bytes: int = 0, activity_s: float = 0.0) -> None:
        """Starts with none.

        Args:
          ttl_s: What tenants are told of their slices' time to live.
          memory_limit_bytes: And of what they may hold on a device; 0: no limit.
          activity_s: How often they look whether they work, in seconds; 0: they need not tell.
        """
        super().__init__(_TENANT_LIMIT)
        self._memory_limit_bytes = memory_limit_bytes
        self._activity_s = activity_s
        self._ttl_s = ttl_s
        #: The incarnation that each connected tenant has.
        self._incarnations: dict[str, str] = {}

    def open(self, asked: messages.TenantAsked, version: int) -> Outbox[pb.TenantUpdate]:
        """Takes a proxy's stream; an older one of the same process is ended."""
        return self._open((asked.tenant, asked.incarnation), version)

    def close(self, asked: messages.TenantAsked, outbox: Outbox[pb.TenantUpdate]) -> bool:
        """Forgets a stream that ended; False when the RM ended it, or there is a newer one."""
        closed = self._close((asked.tenant, asked.incarnation), outbox)
        if closed:
            self._forget(asked.tenant, asked.incarnation)
        return closed

    def welcome(self, told: messages.WelcomeTenant) -> None:
        """Greets a proxy; what its tenant is told goes to it from here on."""
        if stream := self._streams.get((told.tenant, told.incarnation)):
            self._incarnations[told.tenant] = told.incarnation
            welcome = pb.TenantWelcome(
                version=stream.version,
                ttl_s=self._ttl_s,
                recovering=told.recovering,
                memory_limit_bytes=self._memory_limit_bytes,
                activity_s=self._activity_s,
            )
            stream.outbox.put(pb.TenantUpdate(welcome=welcome))

    def end(self, told: messages.EndTenantStream) -> None:
        """Ends the stream of a proxy whose tenant's name is another's."""
        self._end((told.tenant, told.incarnation), told.reason, grpc.StatusCode.ALREADY_EXISTS)

    def refuse(self, told: messages.RefuseTenant) -> None:
        """Tells a proxy why its tenant gets nothing (any more), and ends its stream."""
        self._forget(told.tenant, told.incarnation)
        if stream := self._streams.pop((told.tenant, told.incarnation), None):
            update = wire.tenant_update(told, stream.version)
            if update is not None:
                stream.outbox.put(update)
            stream.outbox.end()

    def tell(self, told: wire.TenantTold) -> None:
        """Sends a tenant news; one that is not connected hears it all when it is back."""
        key = (told.tenant, self._incarnations.get(told.tenant, ""))
        stream = self._streams.get(key)
        update = None if stream is None else wire.tenant_update(told, stream.version)
        if stream is not None and update is not None:
            stream.outbox.put(update)

    def _forget(self, tenant: str, incarnation: str) -> None:
        if self._incarnations.get(tenant) == incarnation:
            del self._incarnations[tenant]


def _worker_key(
    who: messages.WorkerJoined | messages.WelcomeWorker | messages.RefuseWorker,
) -> tuple[str, int, str]:
    return who.slice_id, who.host_index, who.incarnation
