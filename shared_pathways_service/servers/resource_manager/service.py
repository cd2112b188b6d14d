"""The gRPC service of the resource manager: calls become events for the authority."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import grpc.aio

from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.api.validation import check_dns_label
from shared_pathways_service.errors import InvalidRequestError, SharedPathwaysError
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.protocol.versions import negotiate, spoken
from shared_pathways_service.scheduling.book import messages
from shared_pathways_service.servers.resource_manager import inquiries, wire
from shared_pathways_service.servers.resource_manager.authority import Authority
from shared_pathways_service.servers.resource_manager.call_errors import Context, refusing
from shared_pathways_service.servers.resource_manager.cordon_calls import CordonCalls
from shared_pathways_service.servers.resource_manager.history_wire import follow_filter_of
from shared_pathways_service.servers.resource_manager.outbox import StreamEnded
from shared_pathways_service.servers.resource_manager.reservation_calls import ReservationCalls
from shared_pathways_service.servers.serving import turns

__all__ = ["ResourceManagerService"]

#: Seconds that a new stream may stay silent.
_HELLO_S = 10.0


class ResourceManagerService(CordonCalls, ReservationCalls):
    """Refuses bad input with a status that names the field; decides nothing.

    The streams' methods write to their context instead of yielding, which can be given up while the
    other side does not read; the generated base class has no type for that.
    """

    def __init__(
        self, authority: Authority, types: tuple[InstanceType, ...], *, hello_s: float = _HELLO_S
    ) -> None:
        """Serves `authority`, whose service has slices of these types.

        Args:
          authority: Decides.
          types: Of its slices.
          hello_s: Seconds that a new stream may stay silent.
        """
        super().__init__(authority)
        self._hello_s = hello_s
        self._types = types

    @refusing
    async def WorkerSession(self, _requests: object, context: Context) -> None:  # noqa: N802
        """One worker, from its hello to its end."""
        hello = await _hello(context, self._hello_s)
        version = negotiate(hello.versions.min, hello.versions.max)
        joined = wire.worker_joined(hello, self._types)
        outbox = self._authority.join_worker(joined, version)
        reasons: list[str] = []
        try:
            await _converse(outbox.send(context.write), self._hear_worker(joined, context, reasons))
        finally:
            self._authority.leave_worker(joined, outbox, "".join(reasons))

    @refusing
    async def TenantSession(self, _requests: object, context: Context) -> None:  # noqa: N802
        """One proxy, from its hello to its end."""
        hello = await _hello(context, self._hello_s)
        version = negotiate(hello.versions.min, hello.versions.max)
        asked = wire.tenant_asked(hello)
        outbox = self._authority.join_tenant(asked, version)
        try:
            await _converse(outbox.send(context.write), self._hear_tenant(asked, context))
        finally:
            self._authority.leave_tenant(asked, outbox)

    @refusing
    async def Watch(self, request: pb.WatchRequest, context: Context) -> None:  # noqa: N802
        """One watcher, until it goes or does not read."""
        version = negotiate(request.versions.min, request.versions.max)
        if request.tenant:
            check_dns_label("tenant", request.tenant)
        if request.HasField("after"):
            await self._follow(request, context, version)
            return
        outbox = self._authority.watch(request.tenant)
        try:
            # What it waits for may be long in coming: it is told at once that it is heard.
            await context.send_initial_metadata(spoken(version))
            await outbox.send(context.write)
        finally:
            self._authority.unwatch(outbox)

    async def GetStatus(  # noqa: N802
        self, _request: pb.GetStatusRequest, _context: Context
    ) -> pb.GetStatusResponse:
        """Who holds what, and who waits for what."""
        return await self._authority.status()

    @refusing
    async def ReleaseTenant(  # noqa: N802
        self, request: pb.ReleaseTenantRequest, _context: Context
    ) -> pb.ReleaseTenantResponse:
        """Gives a tenant's slices back at once."""
        return pb.ReleaseTenantResponse(
            released=self._authority.operators.release(wire.release(request))
        )

    @refusing
    async def GetHistory(  # noqa: N802
        self, request: pb.GetHistoryRequest, context: Context
    ) -> None:
        """What was decided."""
        async for page in inquiries.pages(self._authority, request):
            await context.write(page)

    @refusing
    async def Explain(  # noqa: N802
        self, request: pb.ExplainRequest, _context: Context
    ) -> pb.ExplainResponse:
        """Why a tenant waits, was moved, was refused or ended."""
        return inquiries.explained(self._authority, request)

    @refusing
    async def GetUsage(  # noqa: N802
        self, request: pb.GetUsageRequest, _context: Context
    ) -> pb.GetUsageResponse:
        """Who used how much."""
        return await inquiries.usage(self._authority, request)

    @refusing
    async def ExportLog(  # noqa: N802
        self, _request: pb.ExportLogRequest, context: Context
    ) -> None:
        """All that went into the core."""
        async for text in self._authority.recording.export():
            await context.write(pb.ExportLogPage(text=text))

    async def _follow(self, request: pb.WatchRequest, context: Context, version: int) -> None:
        """One who follows the decisions, from one of the history on."""
        wanted = follow_filter_of(request)
        # There may be none for hours: it is told at once that it is heard.
        await context.send_initial_metadata(spoken(version))
        async for message in inquiries.followed(self._authority, wanted, request.after):
            await context.write(message)
        outbox = self._authority.follow(wanted)
        try:
            await outbox.send(context.write)
        finally:
            self._authority.unfollow(outbox)

    async def _hear_worker(
        self, joined: messages.WorkerJoined, context: Context, reasons: list[str]
    ) -> None:
        """Reads what a worker says; why it left comes to `reasons`."""
        beat = messages.WorkerBeat(
            slice_id=joined.slice_id,
            host_index=joined.host_index,
            incarnation=joined.incarnation,
        )
        while (message := await context.read()) is not grpc.aio.EOF:
            match message.WhichOneof("message"):
                case "beat":
                    self._authority.handle(beat)
                case "bye":
                    reasons.append(wire.reason(message.bye.reason))
                    return
                case other:
                    raise InvalidRequestError("message", other, "beat or bye after the hello")

    async def _hear_tenant(self, asked: messages.TenantAsked, context: Context) -> None:
        """Reads what a proxy says."""
        while (message := await context.read()) is not grpc.aio.EOF:
            other = message.WhichOneof("message")
            if other == "activity":
                self._authority.handle(wire.activity(asked, message.activity))
                continue
            if other != "bye":
                raise InvalidRequestError("message", other, "activity or bye after the hello")
            reason = wire.reason(message.bye.reason)
            self._authority.operators.release(
                messages.TenantReleased(
                    tenant=asked.tenant, incarnation=asked.incarnation, reason=reason
                )
            )
            return


async def _hello(context: Context, within_s: float) -> Any:
    """Reads the first message of a stream, which must be a hello."""
    try:
        message = await turns.wait_for(context.read(), within_s)
    except TimeoutError:
        # Not the client's fault for certain: its machine may be short of processor time. So this
        # is no refusal, after which a proxy or a worker would end.
        silent = SharedPathwaysError(f"no hello came within {within_s:g} s (--request_timeout_s)")
        raise StreamEnded(silent, grpc.StatusCode.DEADLINE_EXCEEDED) from None
    first = None if message is grpc.aio.EOF else message.WhichOneof("message")
    if first != "hello":
        raise InvalidRequestError("message", first, "hello first")
    return message.hello


async def _converse(send: Coroutine[Any, Any, None], hear: Coroutine[Any, Any, None]) -> None:
    """Sends and hears side by side until either ends, with its error if it had one."""
    tasks = [asyncio.create_task(send), asyncio.create_task(hear)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in tasks:
        if task in done:
            task.result()
