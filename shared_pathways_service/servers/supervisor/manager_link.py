"""The supervisor's calls to the resource manager, which may be restarting."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import grpc.aio

from shared_pathways_service.api.validation import fitting_text
from shared_pathways_service.constants import PROTOCOL_MAX, PROTOCOL_MIN
from shared_pathways_service.events import Event
from shared_pathways_service.patience import timeouts
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.protocol import resource_manager_pb2_grpc as pb_grpc
from shared_pathways_service.protocol.auth import bearer
from shared_pathways_service.protocol.event_messages import event_of
from shared_pathways_service.rmclient.channels import LOCAL_CHANNEL
from shared_pathways_service.rmclient.event_stream import EventStream
from shared_pathways_service.rmclient.failures import is_final, reason_of
from shared_pathways_service.rmclient.unary_calls import ManagerCalls
from shared_pathways_service.runtime.backoff import Backoff
from shared_pathways_service.runtime.glog import glog

__all__ = ["ManagerLink"]

#: Seconds before events are requested again from a resource manager that refused.
_REFUSED_PAUSE_S = 2.0


class ManagerLink:
    """A channel to the resource manager; every call waits until it is available."""

    def __init__(self, address: str, token: str) -> None:
        self._channel = grpc.aio.insecure_channel(address, options=LOCAL_CHANNEL)
        self._calls = ManagerCalls(
            stub=pb_grpc.ResourceManagerStub(self._channel), metadata=bearer(token)
        )
        self._closed = False

    async def close(self) -> None:
        """Closes the channel; calls in flight end with it, and are not retried."""
        self._closed = True
        await self._channel.close()

    async def release(self, tenant: str, reason: str) -> None:
        """Releases a tenant's slices; retries until it is answered, or this is closed."""
        # (A reason that is too long or has several lines would be refused, and the slices kept.)
        fitting = fitting_text(reason)
        backoff = Backoff()
        while not self._closed:
            try:
                await self._calls.release(tenant, fitting, timeouts.SUPERVISOR_MANAGER_CALL.s)
                return
            except grpc.aio.AioRpcError as error:
                if is_final(error):
                    # The slices are freed when the tenant's TTL ends.
                    glog("E", f"cannot release {tenant}: {reason_of(error)}")
                    return
            await asyncio.sleep(backoff.next_pause_s())

    async def status(self) -> pb.GetStatusResponse | None:
        """Returns the status; None if the resource manager does not answer."""
        with contextlib.suppress(grpc.aio.AioRpcError):
            return await self._calls.status(timeouts.SUPERVISOR_MANAGER_CALL.s, wait=False)
        return None

    async def follow(self, report: Callable[[Event], object]) -> None:
        """Calls `report` with the current state, then with each event, until cancelled."""
        request = pb.WatchRequest(versions=pb.VersionRange(min=PROTOCOL_MIN, max=PROTOCOL_MAX))
        stream = EventStream(self._calls.stub, lambda: request, metadata=self._calls.metadata)

        def take(message: pb.EventMessage) -> None:
            # Each watch begins with a snapshot; later ones repeat known events.
            if not message.snapshot or not stream.reconnects:
                report(event_of(message))

        while True:
            try:
                await stream.follow(take)
            except grpc.aio.AioRpcError as error:
                # The service continues, and its next resource manager may be another release.
                glog("E", f"the resource manager refuses to report events: {reason_of(error)}")
                await asyncio.sleep(_REFUSED_PAUSE_S)
                stream.reconnects += 1
