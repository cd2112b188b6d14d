"""What the supervisor says to the resource manager, which may be away for a moment."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import grpc
import grpc.aio

from shared_pathways_service.api.validation import TEXT_LIMIT
from shared_pathways_service.constants import PROTOCOL_MAX, PROTOCOL_MIN
from shared_pathways_service.events import Event
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.protocol import resource_manager_pb2_grpc as pb_grpc
from shared_pathways_service.protocol.auth import bearer
from shared_pathways_service.protocol.event_messages import event_of
from shared_pathways_service.runtime.glog import glog

__all__ = ["ManagerLink"]

#: A restarted resource manager is found again soon.
_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.enable_retries", 0),
)
_CALL_S = 5.0
_PAUSE_S = 0.1


class ManagerLink:
    """A channel to the resource manager; every call waits until it is there."""

    def __init__(self, address: str, token: str) -> None:
        self._channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
        self._stub: pb_grpc.ResourceManagerAsyncStub = pb_grpc.ResourceManagerStub(self._channel)
        self._metadata = bearer(token)
        self._closed = False

    async def close(self) -> None:
        """Ends the channel; calls in flight end with it, and none is tried again."""
        self._closed = True
        await self._channel.close()

    async def release(self, tenant: str, reason: str) -> None:
        """Gives a tenant's slices back; goes on until it is answered, or this is closed."""
        # (One that is too long, or of several lines, would be refused, and the slices kept.)
        told = "".join(c if c.isprintable() else " " for c in reason)[:TEXT_LIMIT]
        request = pb.ReleaseTenantRequest(tenant=tenant, reason=told)
        while not self._closed:
            try:
                await self._stub.ReleaseTenant(
                    request, metadata=self._metadata, timeout=_CALL_S, wait_for_ready=True
                )
                return
            except grpc.aio.AioRpcError as error:
                if error.code() not in _PASSING:
                    # Its TTL is what is left to it.
                    glog("E", f"cannot release {tenant}: {error.code().name}: {error.details()}")
                    return
            await asyncio.sleep(_PAUSE_S)

    async def status(self) -> pb.GetStatusResponse | None:
        """Returns who holds what; None when nobody answers."""
        with contextlib.suppress(grpc.aio.AioRpcError):
            return await self._stub.GetStatus(
                pb.GetStatusRequest(), metadata=self._metadata, timeout=_CALL_S
            )
        return None

    async def events(self) -> AsyncIterator[Event]:
        """Yields how things stand, then what happens, over restarts of the resource manager."""
        request = pb.WatchRequest(versions=pb.VersionRange(min=PROTOCOL_MIN, max=PROTOCOL_MAX))
        # What another watch begins with was told before.
        told = False
        while not self._closed:
            with contextlib.suppress(grpc.aio.AioRpcError):
                call = self._stub.Watch(request, metadata=self._metadata, wait_for_ready=True)
                async for message in call:
                    if not message.snapshot or not told:
                        yield event_of(message)
            told = True
            await asyncio.sleep(_PAUSE_S)


_PASSING = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNKNOWN,
}
