"""The gRPC service of the resource manager: calls become events for the authority."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeAlias

import grpc.aio

from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.api.validation import check_dns_label, check_text
from shared_pathways_service.errors import InvalidRequestError, SharedPathwaysError
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.protocol.versions import negotiate, version_metadata
from shared_pathways_service.scheduling.book import messages
from shared_pathways_service.scheduling.book.holdings import ReservationStatus
from shared_pathways_service.servers.resource_manager import inquiries, wire
from shared_pathways_service.servers.resource_manager.authority import Authority
from shared_pathways_service.servers.resource_manager.call_errors import Context, refusing
from shared_pathways_service.servers.resource_manager.history_wire import follow_filter_of
from shared_pathways_service.servers.resource_manager.outbox import Outbox, StreamEnded
from shared_pathways_service.servers.resource_manager.proxy_counters import ProxyCounters
from shared_pathways_service.servers.resource_manager.proxy_reports import ProxyReports
from shared_pathways_service.servers.resource_manager.reported_times import ExecutorTimes
from shared_pathways_service.servers.resource_manager.status_report import reservation_message
from shared_pathways_service.servers.serving import turns

__all__ = ["ResourceManagerService", "Verify"]


Verify: TypeAlias = Callable[[messages.TenantAsked, str], Awaitable[messages.TenantAsked]]


async def _believe(asked: messages.TenantAsked, _token: str) -> messages.TenantAsked:
    return asked


class ResourceManagerService:
    """Refuses invalid input with a status that names the field; makes no decisions.

    The methods of streams write to their context instead of yielding, because such a write can be
    abandoned while the peer does not read; the generated base class has no type for that.

    Attributes:
      proxy_counters: The counters that connected proxies have reported.
      executor_times: The times on executors that connected proxies have reported.
    """

    def __init__(
        self,
        authority: Authority,
        types: tuple[InstanceType, ...],
        *,
        hello_s: float,
        verify: Verify = _believe,
    ) -> None:
        """Serves `authority`; allows a new stream `hello_s` seconds for its first message.

        `verify` takes a proxy's request and identity token, and returns the request to be served.
        """
        self._verify = verify
        self._authority = authority
        self._hello_s = hello_s
        self._types = types
        self._reports = ProxyReports()
        self.proxy_counters = ProxyCounters()
        self.executor_times = ExecutorTimes()

    @refusing
    async def WorkerSession(self, _requests: object, context: Context) -> None:  # noqa: N802
        """Serves one worker, from its hello to its end."""
        hello = await _hello(context, self._hello_s)
        version = negotiate(hello.versions.min, hello.versions.max)
        joined = wire.worker_joined(hello, self._types)
        self._authority.executors.check(hello)
        outbox = self._authority.join_worker(joined, version)
        reasons: list[str] = []
        try:
            await _converse(
                outbox.send(self._writer(context)),
                self._receive_from_worker(joined, context, reasons),
            )
        finally:
            self._authority.leave_worker(joined, outbox, "".join(reasons))

    @refusing
    async def TenantSession(self, _requests: object, context: Context) -> None:  # noqa: N802
        """Serves one proxy, from its hello to its end."""
        hello = await _hello(context, self._hello_s)
        version = negotiate(hello.versions.min, hello.versions.max)
        asked = await self._verify(wire.tenant_asked(hello), hello.identity_token)
        outbox = self._authority.join_tenant(asked, version)
        try:
            await _converse(
                outbox.send(self._writer(context)),
                self._receive_from_tenant(asked, outbox, context),
            )
        finally:
            self.proxy_counters.forget(asked.request.name, outbox)
            self.executor_times.forget(asked.request.name, outbox)
            self._authority.leave_tenant(asked, outbox)

    @refusing
    async def Watch(self, request: pb.WatchRequest, context: Context) -> None:  # noqa: N802
        """Serves one watcher, until it disconnects or does not read."""
        version = negotiate(request.versions.min, request.versions.max)
        if request.tenant:
            check_dns_label("tenant", request.tenant)
        if request.HasField("after"):
            await self._follow(request, context, version)
            return
        outbox = self._authority.watch(request.tenant)
        try:
            # The first event may be a long time away: confirm the stream at once.
            await context.send_initial_metadata(version_metadata(version))
            await outbox.send(context.write)
        finally:
            self._authority.unwatch(outbox)

    async def GetStatus(  # noqa: N802
        self, _request: pb.GetStatusRequest, _context: Context
    ) -> pb.GetStatusResponse:
        """Returns the state of slices, tenants and the queue."""
        status = await self._authority.status()
        self.executor_times.mark(status)
        return status

    @refusing
    async def ReleaseTenant(  # noqa: N802
        self, request: pb.ReleaseTenantRequest, _context: Context
    ) -> pb.ReleaseTenantResponse:
        """Releases a tenant's slices at once."""
        return pb.ReleaseTenantResponse(
            released=self._authority.operators.release(wire.release(request))
        )

    @refusing
    async def GetHistory(  # noqa: N802
        self, request: pb.GetHistoryRequest, context: Context
    ) -> None:
        """Returns decisions of the history."""
        async for page in inquiries.pages(self._authority, request):
            await context.write(page)

    @refusing
    async def Explain(  # noqa: N802
        self, request: pb.ExplainRequest, _context: Context
    ) -> pb.ExplainResponse:
        """Explains why a tenant waits, was moved, was refused or ended."""
        return inquiries.explained(self._authority, request)

    @refusing
    async def GetUsage(  # noqa: N802
        self, request: pb.GetUsageRequest, _context: Context
    ) -> pb.GetUsageResponse:
        """Returns usage of slices."""
        return await inquiries.usage(self._authority, request)

    @refusing
    async def GetProxyCounters(  # noqa: N802
        self, request: pb.GetProxyCountersRequest, context: Context
    ) -> None:
        """Returns the counters of connected proxies."""
        # (On a thread: those of a thousand tenants take seconds.)
        found = await asyncio.to_thread(list, self.proxy_counters.messages(request.tenant))
        for message in found:
            await context.write(message)

    @refusing
    async def GetExecutorTimes(  # noqa: N802
        self, request: pb.GetExecutorTimesRequest, context: Context
    ) -> None:
        """Returns how long programs take on the executors of connected proxies."""
        for message in self.executor_times.messages(request.tenant):
            await context.write(message)

    @refusing
    async def ExportLog(  # noqa: N802
        self, _request: pb.ExportLogRequest, context: Context
    ) -> None:
        """Returns the recording of the core's inputs."""
        async for text in self._authority.recording.export():
            await context.write(pb.ExportLogPage(text=text))

    @refusing
    async def CordonSlice(  # noqa: N802
        self, request: pb.CordonSliceRequest, _context: Context
    ) -> pb.CordonSliceResponse:
        """Gives the slice to no further tenant."""
        named = wire.slice_id(request)
        found = self._authority.operators.mark(messages.SliceCordoned(slice_id=named))
        return pb.CordonSliceResponse(state=found.state, tenant=found.tenant)

    @refusing
    async def DrainSlice(  # noqa: N802
        self, request: pb.DrainSliceRequest, _context: Context
    ) -> pb.DrainSliceResponse:
        """Cordons the slice and moves its holder, if another slice is free."""
        named = wire.slice_id(request)
        found = self._authority.operators.mark(messages.SliceDrained(slice_id=named))
        return pb.DrainSliceResponse(
            state=found.state, tenant=found.tenant, onto=found.onto, grace_s=found.moves_in_s
        )

    @refusing
    async def UncordonSlice(  # noqa: N802
        self, request: pb.UncordonSliceRequest, _context: Context
    ) -> pb.UncordonSliceResponse:
        """Makes the slice available to all tenants again."""
        named = wire.slice_id(request)
        found = self._authority.operators.mark(messages.SliceUncordoned(slice_id=named))
        return pb.UncordonSliceResponse(state=found.state, tenant=found.tenant)

    @refusing
    async def ReserveSlices(  # noqa: N802
        self, request: pb.ReserveSlicesRequest, _context: Context
    ) -> pb.ReserveSlicesResponse:
        """Reserves slices for a user or a team, for a period."""
        asked = wire.reservation(request, self._authority.now)
        self._authority.operators.reserve(asked)
        made = ReservationStatus(reservation=asked, held=0)
        for one in self._authority.reservations:
            if one.reservation.name == asked.name:
                made = one
        return pb.ReserveSlicesResponse(reservation=reservation_message(made))

    @refusing
    async def CancelReservation(  # noqa: N802
        self, request: pb.CancelReservationRequest, _context: Context
    ) -> pb.CancelReservationResponse:
        """Cancels a reservation."""
        name = check_text("name", request.name)
        self._authority.operators.cancel(messages.ReservationCancelled(name=name))
        return pb.CancelReservationResponse()

    def _writer(self, context: Context) -> Callable[[Any], Awaitable[None]]:
        """Returns the function that writes to a stream while this head may decide."""

        async def write(message: Any) -> None:
            # The message may have waited while this process was stopped.
            self._authority.check_term()
            await context.write(message)

        return write

    async def _follow(self, request: pb.WatchRequest, context: Context, version: int) -> None:
        """Serves one follower of decisions, from a number of the history on."""
        wanted = follow_filter_of(request)
        # There may be no decision for hours: confirm the stream at once.
        await context.send_initial_metadata(version_metadata(version))
        async for message in inquiries.followed(self._authority, wanted, request.after):
            await context.write(message)
        outbox = self._authority.follow(wanted)
        try:
            await outbox.send(context.write)
        finally:
            self._authority.unfollow(outbox)

    async def _receive_from_worker(
        self, joined: messages.WorkerJoined, context: Context, reasons: list[str]
    ) -> None:
        """Reads a worker's messages; appends the reason of its end to `reasons`."""
        beat = messages.WorkerBeat(
            slice_id=joined.slice_id,
            host_index=joined.host_index,
            incarnation=joined.incarnation,
        )
        while (message := await context.read()) is not grpc.aio.EOF:
            match message.WhichOneof("message"):
                case "beat":
                    if message.beat.HasField("usage"):
                        self._authority.executors.measured(joined, message.beat.usage)
                    self._authority.handle(beat)
                case "executor":
                    event = self._authority.executors.read(joined, message.executor)
                    self._authority.handle(event)
                case "bye":
                    reasons.append(wire.reason(message.bye.reason))
                    return
                case other:
                    expected = "beat, executor or bye after the hello"
                    raise InvalidRequestError("message", other, expected)

    async def _receive_from_tenant(
        self, asked: messages.TenantAsked, outbox: Outbox[pb.TenantUpdate], context: Context
    ) -> None:
        """Reads a proxy's messages."""
        while (message := await context.read()) is not grpc.aio.EOF:
            match message.WhichOneof("message"):
                case "activity":
                    self._authority.handle(wire.activity(asked, message.activity))
                case "event":
                    if (reported := self._reports.read(asked, message.event)) is not None:
                        self._authority.handle(reported)
                case "counters":
                    name, counters = asked.request.name, message.counters
                    self.executor_times.put(name, outbox, counters)
                    self.proxy_counters.put(name, outbox, counters)
                case "lost" if self._authority.executors.enabled:
                    self._authority.handle(wire.placement_unreachable(asked, message.lost))
                case "bye":
                    released = messages.TenantReleased(
                        tenant=asked.request.name,
                        incarnation=asked.incarnation,
                        reason=wire.reason(message.bye.reason),
                    )
                    self._authority.operators.release(released)
                    return
                case other:
                    expected = "activity, event, counters, lost or bye after the hello"
                    raise InvalidRequestError("message", other, expected)


async def _hello(context: Context, within_s: float) -> Any:
    """Reads the first message of a stream, which must be a hello."""
    try:
        message = await turns.wait_for(context.read(), within_s)
    except TimeoutError:
        # Not necessarily the client's fault: its machine may be short of processor time. So this
        # is not a refusal, which would end a proxy or a worker.
        silent = SharedPathwaysError(f"no hello came within {within_s:g} s (--request_timeout_s)")
        raise StreamEnded(silent, grpc.StatusCode.DEADLINE_EXCEEDED) from None
    first = None if message is grpc.aio.EOF else message.WhichOneof("message")
    if first != "hello":
        raise InvalidRequestError("message", first, "hello first")
    return message.hello


async def _converse(send: Coroutine[Any, Any, None], receive: Coroutine[Any, Any, None]) -> None:
    """Sends and receives concurrently until either ends; raises its error."""
    tasks = [asyncio.create_task(send), asyncio.create_task(receive)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in tasks:
        if task in done:
            task.result()
