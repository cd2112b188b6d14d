"""Combines the parts of the embedded service, and starts and ends it."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import math
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable

import grpc.aio

from shared_pathways_service import constants
from shared_pathways_service.errors import ServiceNotReady
from shared_pathways_service.events import Event, rfc3339
from shared_pathways_service.events.supervisor import EmbeddedServiceEnding, EmbeddedServiceStarted
from shared_pathways_service.flags.limits import limits_of
from shared_pathways_service.flags.supervisor import SupervisorOptions
from shared_pathways_service.patience import timeouts
from shared_pathways_service.protocol import resource_manager_pb2 as rm_pb
from shared_pathways_service.protocol import supervisor_pb2 as pb
from shared_pathways_service.protocol import supervisor_pb2_grpc as pb_grpc
from shared_pathways_service.protocol.auth import TokenInterceptor
from shared_pathways_service.runtime.embedded import state_file
from shared_pathways_service.runtime.embedded.file_names import RuntimePaths
from shared_pathways_service.runtime.embedded.log_directory import ServiceLogs, tail_of
from shared_pathways_service.runtime.file_failures import explained_by_path
from shared_pathways_service.runtime.glog import glog
from shared_pathways_service.runtime.processes import identity_of
from shared_pathways_service.runtime.settings import Settings, private_directory
from shared_pathways_service.servers.serving.connections import ConnectionOptions
from shared_pathways_service.servers.serving.listening import SERVER_OPTIONS, listen, stop_server
from shared_pathways_service.servers.serving.process import report_ready
from shared_pathways_service.servers.supervisor.background import Background
from shared_pathways_service.servers.supervisor.child import ChildEnded
from shared_pathways_service.servers.supervisor.fleet import Fleet
from shared_pathways_service.servers.supervisor.manager_link import ManagerLink
from shared_pathways_service.servers.supervisor.occupancy import Occupancy
from shared_pathways_service.servers.supervisor.proxies import Proxies
from shared_pathways_service.servers.supervisor.service import SupervisorService
from shared_pathways_service.servers.supervisor.service_directory import ServiceDirectory
from shared_pathways_service.servers.supervisor.shared_memory import SharedMemory
from shared_pathways_service.servers.supervisor.standby import StandbyPool
from shared_pathways_service.servers.supervisor.submitted_jobs import SubmittedJobs
from shared_pathways_service.version import __version__

__all__ = ["Supervisor"]

_HOUSEKEEPING_INTERVAL_S = 10.0


class Supervisor:
    """One embedded service; make it on the main thread, whose end would end its children.

    Attributes:
      has_reported: Whether it has reported to its starter that it is ready.
    """

    def __init__(
        self,
        options: SupervisorOptions,
        settings: Settings,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        self._options = options
        self._settings = settings
        self._show = on_event
        self._since = rfc3339(time.time())
        self._paths = RuntimePaths(private_directory(settings.runtime_dir, "SPS_RUNTIME_DIR"))
        self._address = f"unix:{self._paths.supervisor_socket}"
        self._token = secrets.token_urlsafe(32)
        self._directory = ServiceDirectory(self._paths, self._token)
        self._loop = asyncio.get_running_loop()
        self._stop_asked = asyncio.Event()
        self._changed = asyncio.Event()
        self._failure: BaseException | None = None
        self.has_reported = False
        self._logs = ServiceLogs(private_directory(settings.state_dir, "SPS_STATE_DIR"))
        self._occupancy = Occupancy(options.idle_s, self._loop.time())
        self._manager = ManagerLink(f"unix:{self._paths.resource_manager_socket}", self._token)
        self._background = Background(self._on_failure)
        self._fleet = Fleet(
            self._paths,
            options,
            logs=self._logs,
            background=self._background,
            report=self._on_event,
            on_change=self._on_change,
        )
        self._standby = StandbyPool(
            options.standby_proxies, self._logs, self._background, self._on_change
        )
        self._shared_memory = SharedMemory(settings)
        self._proxies = Proxies(
            self._paths,
            options,
            settings,
            standby=self._standby,
            shared_memory=self._shared_memory,
            manager=self._manager,
            occupancy=self._occupancy,
            report=self._on_event,
            on_change=self._on_change,
        )
        self._jobs = SubmittedJobs(
            settings,
            types=[kind for kind, _ in options.slices],
            occupancy=self._occupancy,
            proxies=self._proxies,
            report=self._on_event,
            on_change=self._on_change,
        )

    @property
    def log_dir(self) -> str:
        """The directory of the logs of its processes."""
        return str(self._logs.directory)

    async def run(self) -> None:
        """Runs the service until `stop`, or until it has been idle for long enough.

        Raises:
          PreflightError: Another service of this user runs, or this one cannot be started.
        """
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(explained_by_path(self._settings.directories))
            stack.enter_context(self._directory.claimed())
            self._logs.create()
            stack.callback(self._shared_memory.close)
            self._shared_memory.create()
            stack.push_async_callback(self._manager.close)
            stack.push_async_callback(self._end_processes)
            await self._standby.start()
            await self._fleet.start()
            await stack.enter_async_context(self._serving())
            stack.push_async_callback(self._proxies.stop)
            stack.push_async_callback(self._jobs.stop)
            self._background.start(self._end_when_idle())
            self._background.start(self._keep_house())
            self._background.start(self._end_without_directory())
            self._background.start(self._jobs.keep_house())
            self._background.start(self._manager.follow(self._on_event))
            await self._wait_for_resource_manager()
            self._jobs.recover()
            self._on_event(EmbeddedServiceStarted(address=self._address, pid=os.getpid()))
            self.has_reported = True
            report_ready(self._options.ready_fd, socket=str(self._paths.supervisor_socket))
            await self._stop_asked.wait()
            self._occupancy.end()
        if self._failure is not None:
            raise self._failure

    def stop(self, reason: str) -> None:
        """Starts an orderly shutdown; may be called again."""
        self._occupancy.end()
        if not self._stop_asked.is_set():
            self._on_event(EmbeddedServiceEnding(reason=reason))
            self._stop_asked.set()

    def stop_at_once(self, reason: str) -> None:
        """Kills all processes of the service, also during an orderly shutdown."""
        self.stop(reason)
        try:
            self._jobs.kill()
        finally:
            self._proxies.kill()
            self._standby.kill()
            self._fleet.kill()

    async def status(self) -> rm_pb.GetStatusResponse | None:
        """Returns the resource manager's status; None if it does not answer."""
        return await self._manager.status()

    def processes(self) -> list[pb.GetProcessesResponse.Process]:
        """Returns the service's processes, this one first."""
        process = pb.GetProcessesResponse.Process
        found = [process(role="supervisor", pid=os.getpid())]
        found += [
            process(
                role=member.role,
                pid=member.child.identity.pid,
                slice=member.slice_id,
                name=member.name,
                restarts=member.restarts,
            )
            for member in self._fleet.members
            if member.child is not None and member.child.exit_code is None
        ]
        found += [
            process(role=child.role, pid=child.identity.pid, name=child.name)
            for child in [*self._standby.children, *self._proxies.children]
        ]
        return found + self._jobs.processes()

    # ---- parts of `run`

    @contextlib.asynccontextmanager
    async def _serving(self) -> AsyncIterator[None]:
        server = grpc.aio.server(
            interceptors=(TokenInterceptor(self._token),),
            options=(*SERVER_OPTIONS, *ConnectionOptions().connection_options()),
        )
        service = SupervisorService(
            self._welcome(),
            self._occupancy,
            self._proxies,
            self._fleet,
            self._on_event,
            jobs=self._jobs,
            processes=self.processes,
            on_leave=self._on_change,
            on_shutdown=self.stop,
            limits=limits_of(self._options),
            ffi_library_dir=self._options.ffi_library_dir,
            python_refusal=self._options.python_refusal,
        )
        pb_grpc.add_SupervisorServicer_to_server(service, server)
        listen(
            server,
            server_port=None,
            server_socket=str(self._paths.supervisor_socket),
            default_port=0,
        )
        await server.start()
        try:
            self._write_state()
            yield
        finally:
            await stop_server(server, timeouts.SUPERVISOR_CALLS_END.s)

    async def _wait_for_resource_manager(self) -> None:
        child = self._fleet.resource_manager.child
        assert child is not None
        serving = asyncio.ensure_future(child.serving())
        stopped = asyncio.ensure_future(self._stop_asked.wait())
        await asyncio.wait({serving, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if not serving.done():
            serving.cancel()
            return
        try:
            serving.result()
        except ChildEnded as error:
            await child.wait()
            tail = "\n".join(tail_of(child.log))
            raise ServiceNotReady(f"the resource manager did not start:\n{tail}") from error

    async def _end_processes(self) -> None:
        # First, so that nothing is restarted.
        await self._background.stop()
        await self._standby.stop()
        await self._fleet.stop()

    async def _end_when_idle(self) -> None:
        while not self._occupancy.end_if_idle(self._loop.time()):
            self._changed.clear()
            deadline = self._occupancy.deadline()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(None if deadline == math.inf else deadline):
                    await self._changed.wait()
        self.stop(f"it was idle for {self._options.idle_s:g} s")

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(_HOUSEKEEPING_INTERVAL_S)
            self._logs.keep_small()

    async def _end_without_directory(self) -> None:
        what = await self._directory.lost(write_state=self._write_state)
        self.stop(f"{what} was removed or replaced")

    def _welcome(self) -> pb.JoinReply:
        return pb.JoinReply(
            version=__version__,
            jaxlib_version=importlib.metadata.version("jaxlib"),
            resource_manager_address=f"unix:{self._paths.resource_manager_socket}",
            instance_types=[kind for kind, _ in self._options.slices],
            since=self._since,
            log_dir=self.log_dir,
            detached=self._options.detached,
        )

    # ---- callbacks of the parts

    def _on_event(self, event: Event) -> None:
        self._logs.write_event(event)
        if self._show is not None:
            self._show(event)

    def _on_change(self) -> None:
        """Called when a process or a user is added or removed."""
        self._changed.set()
        if self._directory.is_lost():
            return  # it may be another service's
        try:
            self._write_state()
        except OSError as error:
            # On a full disk, the service continues, and the old file still has its address.
            glog("W", f"cannot write {self._paths.state}: {error}")

    def _on_failure(self, failure: BaseException) -> None:
        """Called when a part of the supervisor itself fails: ends the service."""
        self._failure = self._failure or failure
        self.stop(f"it failed: {failure!r}")

    def _write_state(self) -> None:
        """Writes the address of the service, and its processes in case it is killed."""
        children = [
            *(member.child for member in self._fleet.members),
            *self._standby.children,
            *self._proxies.children,
        ]
        state_file.write_state(
            self._paths,
            state_file.ServiceState(
                supervisor=identity_of(),
                address=self._address,
                version=__version__,
                protocol_min=constants.PROTOCOL_MIN,
                protocol_max=constants.PROTOCOL_MAX,
                slices=dict(self._options.slices),
                spares=self._options.spares,
                since=self._since,
                detached=self._options.detached,
                log_dir=self.log_dir,
                children=tuple(child.identity for child in children if child is not None),
            ),
        )
