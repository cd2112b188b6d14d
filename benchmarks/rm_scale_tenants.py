"""The tenants of `benchmarks.rm_scale`: streams to the resource manager, and when news came."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from typing import Any

import grpc.aio

from benchmarks.rm_scale_workers import OPTIONS, again
from shared_pathways_service.constants import PROTOCOL_MAX, PROTOCOL_MIN
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.protocol import resource_manager_pb2_grpc as pb_grpc
from shared_pathways_service.protocol.tenant_pb2 import TenantRequest

#: Seconds that any news may take.
LIMIT_S = 60.0


class Tenant:
    """One proxy's stream.

    Attributes:
      name: The tenant's.
      asked_at: When it said hello, on the monotonic clock.
      running: When it received the placement of its gang.
      queued: Done once it was notified that it waits.
      slices: The slices that it holds, by virtual index.
    """

    def __init__(self, stub: Any, name: str, kind: str, slices: int) -> None:
        loop = asyncio.get_running_loop()
        self.name = name
        self.running: asyncio.Future[float] = loop.create_future()
        self.queued: asyncio.Future[None] = loop.create_future()
        self.slices: dict[int, str] = {}
        self._generations: dict[int, int] = {}
        self._moved: dict[int, asyncio.Future[float]] = {}
        self._leaves = False
        self.asked_at = time.monotonic()
        self._stub = stub
        self._call = stub.TenantSession()
        self._hello = pb.TenantHello(
            versions=pb.VersionRange(min=PROTOCOL_MIN, max=PROTOCOL_MAX),
            tenant=TenantRequest(
                name=name,
                virtual_slices=[kind] * slices,
                queue_timeout_s=float("inf"),
                user=name,
                host="laptop",
            ),
            incarnation=f"{name}-1",
            pid=1,
        )
        self._task = asyncio.create_task(self._run())

    def moved(self, index: int) -> asyncio.Future[float]:
        """Returns when a virtual slice is placed the next time."""
        return self._moved.setdefault(index, asyncio.get_running_loop().create_future())

    async def leave(self) -> float:
        """Gives its slices back; returns when it said so."""
        at = time.monotonic()
        self._leaves = True
        await self._call.write(pb.TenantMessage(bye=pb.TenantBye(reason="done")))
        return at

    async def close(self) -> None:
        """Ends the stream from this side."""
        self._leaves = True
        self._task.cancel()
        self._call.cancel()
        with contextlib.suppress(asyncio.CancelledError, grpc.aio.AioRpcError):
            await self._task

    async def _run(self) -> None:
        """Keeps a stream, and dials again when the manager breaks it."""
        with contextlib.suppress(grpc.aio.AioRpcError):
            await self._converse(self._hello)
        while not self._leaves:
            await again(self._return)

    async def _return(self) -> None:
        self._call = self._stub.TenantSession()
        hello = pb.TenantHello(running=self.running.done())
        hello.MergeFrom(self._hello)
        for index, slice_id in self.slices.items():
            generation = self._generations[index]
            hello.claims.add(virtual_index=index, slice_id=slice_id, generation=generation)
        await self._converse(hello)

    async def _converse(self, hello: pb.TenantHello) -> None:
        await self._call.write(pb.TenantMessage(hello=hello))
        while (update := await self._call.read()) is not grpc.aio.EOF:
            now = time.monotonic()
            what = update.WhichOneof("update")
            if what == "running":
                if not self.running.done():
                    self.running.set_result(now)
            elif what == "queued":
                if not self.queued.done():
                    self.queued.set_result(None)
            elif what == "placement" and update.placement.state == pb.Placement.PLACED:
                index = update.placement.virtual_index
                self.slices[index] = update.placement.slice_id
                self._generations[index] = update.placement.generation
                if future := self._moved.pop(index, None):
                    future.set_result(now)


class Tenants:
    """All of them, some a connection.

    Args:
      address: The resource manager's.
      connections: How many they share.
    """

    def __init__(self, address: str, connections: int) -> None:
        self._channels = [
            grpc.aio.insecure_channel(address, options=OPTIONS) for _ in range(connections)
        ]
        stubs = [pb_grpc.ResourceManagerStub(channel) for channel in self._channels]
        self._stubs = itertools.cycle(stubs)
        self._numbers = itertools.count(1)
        self.there: dict[str, Tenant] = {}

    def enter(self, kind: str, slices: int) -> Tenant:
        """Has one say hello."""
        tenant = Tenant(next(self._stubs), f"tenant-{next(self._numbers)}", kind, slices)
        self.there[tenant.name] = tenant
        return tenant

    async def leave(self, tenant: Tenant) -> float:
        """Has one give its slices back; returns when it said so."""
        del self.there[tenant.name]
        return await tenant.leave()

    async def close(self) -> None:
        """Ends them all."""
        for tenant in self.there.values():
            await tenant.close()
        for channel in self._channels:
            await channel.close()
