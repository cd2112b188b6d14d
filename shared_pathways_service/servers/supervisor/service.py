"""The supervisor's gRPC service: checks calls and passes them on."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeAlias

import grpc
import grpc.aio

from shared_pathways_service.api.proxy_limits import ProxyLimits
from shared_pathways_service.errors import (
    InvalidRequestError,
    ServiceNotFound,
    ServiceNotReady,
    SharedPathwaysError,
)
from shared_pathways_service.events import Event
from shared_pathways_service.events.supervisor import ClientJoined, ClientLeft
from shared_pathways_service.protocol import supervisor_pb2 as pb
from shared_pathways_service.protocol import supervisor_pb2_grpc as pb_grpc
from shared_pathways_service.protocol.grpc_errors import abort
from shared_pathways_service.protocol.versions import negotiate
from shared_pathways_service.servers.supervisor.fleet import Fleet
from shared_pathways_service.servers.supervisor.occupancy import Occupancy
from shared_pathways_service.servers.supervisor.proxies import NameTaken, Proxies
from shared_pathways_service.servers.supervisor.proxy_requests import (
    read_disturbance,
    read_job_request,
    read_proxy_request,
)
from shared_pathways_service.servers.supervisor.submitted_jobs import SubmittedJobs

__all__ = ["SupervisorService"]

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class SupervisorService(pb_grpc.SupervisorServicer):
    """Answers calls of agents and `sps`.

    Args:
      welcome: The answer to a Join, without the protocol's version.
      jobs: The submitted jobs.
      processes: Lists the service's processes.
      on_leave: Called when a Join has ended.
      on_shutdown: Called with a request to end.
      limits: The operator's limits of a proxy.
    """

    def __init__(
        self,
        welcome: pb.JoinReply,
        occupancy: Occupancy,
        proxies: Proxies,
        fleet: Fleet,
        report: Callable[[Event], object],
        *,
        jobs: SubmittedJobs,
        processes: Callable[[], list[pb.GetProcessesResponse.Process]],
        on_leave: Callable[[], None],
        on_shutdown: Callable[[str], None],
        limits: ProxyLimits,
        ffi_library_dir: str = "",
        python_refusal: str = "",
    ) -> None:
        self._welcome = welcome
        self._occupancy = occupancy
        self._proxies = proxies
        self._fleet = fleet
        self._report = report
        self._jobs = jobs
        self._processes = processes
        self._on_leave = on_leave
        self._on_shutdown = on_shutdown
        self._limits = limits
        self._ffi_library_dir = ffi_library_dir
        self._python_refusal = python_refusal

    async def Join(  # noqa: N802 - the protocol's name
        self, request: pb.JoinRequest, context: Context
    ) -> AsyncIterator[pb.JoinReply]:
        """Counts the caller as a user during the call."""
        try:
            protocol = negotiate(request.protocol_min, request.protocol_max)
        except SharedPathwaysError as error:
            await abort(context, error)
        if not self._occupancy.enter():
            ending = ServiceNotReady("the service is ending", hint="start a new service")
            await abort(context, ending)
        try:
            self._report(ClientJoined(who=request.who[:200]))
            reply = pb.JoinReply(protocol=protocol)
            reply.MergeFrom(self._welcome)
            yield reply
            await asyncio.Event().wait()
        finally:
            self._occupancy.leave(asyncio.get_running_loop().time())
            self._on_leave()
            self._report(ClientLeft(who=request.who[:200]))

    async def CreateProxy(  # noqa: N802
        self, request: pb.CreateProxyRequest, context: Context
    ) -> pb.Proxy:
        """Starts a proxy."""
        try:
            checked = read_proxy_request(
                request,
                self._welcome.instance_types,
                self._limits,
                self._ffi_library_dir,
                self._python_refusal,
            )
            proxy = await self._proxies.create(checked)
        except SharedPathwaysError as error:
            await abort(context, error)
        except NameTaken as error:
            taken = SharedPathwaysError(str(error), hint="choose another name")
            await abort(context, taken, grpc.StatusCode.ALREADY_EXISTS)
        message = proxy.message()
        message.token = proxy.token
        return message

    async def WatchProxy(  # noqa: N802
        self, request: pb.WatchProxyRequest, context: Context
    ) -> AsyncIterator[pb.Proxy]:
        """Follows one proxy."""
        proxy = self._proxies.find(request.name)
        if proxy is None:
            await abort(context, ServiceNotFound(f"there is no proxy {request.name[:100]!r}"))
        async with contextlib.aclosing(proxy.changes()) as changes:
            async for message in changes:
                yield message

    async def DeleteProxy(  # noqa: N802
        self, request: pb.DeleteProxyRequest, _context: Context
    ) -> pb.DeleteProxyResponse:
        """Ends a proxy."""
        deleted = await self._proxies.delete(
            request.name,
            request.reason or "it was deleted",
            uid=request.uid,
            session=request.session,
        )
        return pb.DeleteProxyResponse(deleted=deleted)

    async def GetProcesses(  # noqa: N802
        self, _request: pb.GetProcessesRequest, _context: Context
    ) -> pb.GetProcessesResponse:
        """Lists processes and proxies."""
        return pb.GetProcessesResponse(
            processes=self._processes(),
            proxies=[p.message() for p in self._proxies.all()],
            proxy_limits=pb.ProxyLimits(**dataclasses.asdict(self._limits)),
        )

    async def DisturbSlice(  # noqa: N802
        self, request: pb.DisturbSliceRequest, context: Context
    ) -> pb.DisturbSliceResponse:
        """Kills or stops the workers of a slice for a while."""
        try:
            kind, hold_s = read_disturbance(request)
            workers = self._fleet.disturb(request.slice, kind, hold_s)
        except SharedPathwaysError as error:
            await abort(context, error)
        return pb.DisturbSliceResponse(workers=workers)

    async def SubmitJob(  # noqa: N802
        self, request: pb.SubmitJobRequest, context: Context
    ) -> pb.SubmitJobResponse:
        """Starts a submitted job."""
        try:
            job = read_job_request(request)
            self._jobs.submit(job)
        except SharedPathwaysError as error:
            await abort(context, error)
        except NameTaken as error:
            taken = InvalidRequestError(
                "name", job.name, "a name that is not in use", message=str(error)
            )
            await abort(context, taken, grpc.StatusCode.ALREADY_EXISTS)
        return pb.SubmitJobResponse(name=job.name)

    async def CancelJob(  # noqa: N802
        self, request: pb.CancelJobRequest, _context: Context
    ) -> pb.CancelJobResponse:
        """Ends a submitted job."""
        return pb.CancelJobResponse(cancelled=await self._jobs.cancel(request.name))

    async def Shutdown(  # noqa: N802
        self, request: pb.ShutdownRequest, _context: Context
    ) -> pb.ShutdownResponse:
        """Ends the service."""
        self._occupancy.end()
        self._on_shutdown(request.reason or "on request")
        return pb.ShutdownResponse()
