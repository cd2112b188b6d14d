"""Finds, joins and starts the embedded service of this user."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Coroutine, Mapping
from io import FileIO
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from filelock import AsyncFileLock, Timeout

from shared_pathways_service import constants
from shared_pathways_service.errors import InvalidRequestError, ServiceNotReady
from shared_pathways_service.homes.racing import first_of
from shared_pathways_service.patience import timeouts
from shared_pathways_service.patience.within import within
from shared_pathways_service.protocol import resource_manager_pb2_grpc as rm_grpc
from shared_pathways_service.protocol import supervisor_pb2 as pb
from shared_pathways_service.protocol import supervisor_pb2_grpc as pb_grpc
from shared_pathways_service.protocol.auth import bearer, read_token
from shared_pathways_service.protocol.grpc_errors import error_of
from shared_pathways_service.rmclient.channels import LOCAL_CHANNEL
from shared_pathways_service.runtime.embedded.file_names import RuntimePaths
from shared_pathways_service.runtime.embedded.log_directory import tail_of
from shared_pathways_service.runtime.embedded.server_environment import server_environment
from shared_pathways_service.runtime.embedded.service_lock import ServiceLock
from shared_pathways_service.runtime.embedded.state_file import (
    ServiceState,
    check_not_elsewhere,
    read_state,
)
from shared_pathways_service.runtime.file_failures import explained
from shared_pathways_service.runtime.inherited_signals import RESETTABLE_SIGNALS
from shared_pathways_service.runtime.processes import place_name
from shared_pathways_service.runtime.settings import Settings, private_directory
from shared_pathways_service.runtime.standard_streams import reserve_descriptors

__all__ = ["DEFAULT_SLICES", "ServiceLink", "find", "find_or_start"]

#: The slices of a service that was started without a request for particular ones.
DEFAULT_SLICES: Mapping[str, int] = {"tpuv6e:2x2": 2}
_SPARES = 1

_LOOK_S = 0.05
#: Status codes of a service that is ending: it refuses a join, or ends in the middle of it.
_ENDING = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


class ServiceLink:
    """A connection to a service: channels to its supervisor and its resource manager.

    Attributes:
      state: The content of its state file.
      supervisor: Stub of the supervisor.
      resource_manager: Stub of the resource manager.
      manager_address: The resource manager's address.
      token: The token for each call; None: none.
      metadata: The token as gRPC metadata.
      welcome: The answer to `join`; None before.
      started_pid: The supervisor's process if it was started for this caller; otherwise 0.
    """

    def __init__(self, state: ServiceState, token: str | None, resource_manager: str) -> None:
        self.state = state
        self.manager_address = resource_manager
        self.started_pid = 0
        self.token = token
        self.metadata = bearer(token)
        self.welcome: pb.JoinReply | None = None
        self._channels = [
            grpc.aio.insecure_channel(address, options=LOCAL_CHANNEL)
            for address in (state.address, resource_manager)
        ]
        self.supervisor: pb_grpc.SupervisorAsyncStub = pb_grpc.SupervisorStub(self._channels[0])
        self.resource_manager: rm_grpc.ResourceManagerAsyncStub = rm_grpc.ResourceManagerStub(
            self._channels[1]
        )
        self._join: grpc.aio.UnaryStreamCall[pb.JoinRequest, pb.JoinReply] | None = None

    async def join(self, who: str) -> pb.JoinReply:
        """Registers as a user, so that the service does not end as idle, until `close`.

        Args:
          who: The user's name in the service's log.

        Raises:
          grpc.aio.AioRpcError: The service refuses.
        """
        request = pb.JoinRequest(
            client_version=self.state.version,
            protocol_min=constants.PROTOCOL_MIN,
            protocol_max=constants.PROTOCOL_MAX,
            who=who,
        )
        self._join = self.supervisor.Join(request, metadata=self.metadata)
        async with within(timeouts.SERVICE_ANSWER):
            reply = await self._join.read()
        if not isinstance(reply, pb.JoinReply):
            # The stream ended without an answer; raise its status.
            await self._join.code()
            raise ServiceNotReady(f"the service at {self.state.address} ended the call")
        self.welcome = reply
        return reply

    async def while_it_runs(self, work: Coroutine[Any, Any, None]) -> None:
        """Does the work, which is cancelled if the service ends; call `join` first.

        Without it, a wait for the resource manager of a killed service goes on.

        Raises:
          ServiceNotReady: The service has ended.
        """
        await first_of(work, self._raise_at_its_end())

    async def _raise_at_its_end(self) -> None:
        assert self._join is not None, "call join first"
        await self._join.code()
        raise ServiceNotReady(
            f"the embedded service at {self.state.address} has ended",
            hint="connect again, which starts a new one",
        )

    async def close(self) -> None:
        """Leaves the service."""
        if self._join is not None:
            self._join.cancel()
        for channel in self._channels:
            await channel.close()
        if self.started_pid:
            # The service outlives us but is our child: reap it if it has ended.
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.started_pid, os.WNOHANG)  # noqa: ASYNC222 - it does not wait


async def find(settings: Settings) -> ServiceLink | None:
    """Returns the running service of this user without joining it; None: none runs.

    Raises:
      AccessDenied: The runtime directory is not private to this user.
      PreflightError: It has a service of another machine.
    """
    if not settings.runtime_dir.exists():
        return None
    paths = _paths(settings)
    state = read_state(paths)
    check_not_elsewhere(paths, state)
    if state is None or not state.supervisor.is_alive():
        return None
    token = None
    if paths.token.exists():
        try:
            token = read_token(str(paths.token), field="service.token")
        except InvalidRequestError:
            if not paths.token.exists():
                return None  # it has ended meanwhile
            raise
    return ServiceLink(state, token, f"unix:{paths.resource_manager_socket}")


async def find_or_start(
    settings: Settings, slices: Mapping[str, int] | None = None, *, who: str
) -> ServiceLink:
    """Joins the service of this user; starts one, detached, if none runs.

    Args:
      settings: The directories of the service.
      slices: The slices of a service that is started, in addition to a spare of each type.
      who: The user's name in the service's log.

    Raises:
      AccessDenied: The runtime directory is not private to this user.
      PreflightError: It has a service of another machine.
      ServiceNotReady: A service exists but does not answer, or one cannot be started.
      VersionSkew: The service has no common protocol version with this client.
    """
    # Usually a service runs, and no lock is needed to find it.
    if link := await _try_to_join(settings, who):
        return link
    paths = _paths(settings)
    async with contextlib.AsyncExitStack() as stack:
        with explained(paths.directory, "SPS_RUNTIME_DIR"):
            await stack.enter_async_context(
                AsyncFileLock(paths.start_lock, mode=0o600, poll_interval=_LOOK_S)
            )
        deadline = timeouts.SERVICE_TRANSITION.deadline()
        while True:
            if link := await _try_to_join(settings, who):
                return link
            if _none_runs(paths):
                pid = await _start(settings, slices or DEFAULT_SLICES)
                link = await _try_to_join(settings, who)
                if link is not None:
                    link.started_pid = pid
                    return link
            if not deadline.left_s:
                raise _hung(paths)
            # A service is starting or ending: the lock or the socket shows when it has.
            await asyncio.sleep(_LOOK_S)


async def _try_to_join(settings: Settings, who: str) -> ServiceLink | None:
    """Returns None if there is no service, or one that is starting or ending."""
    link = await find(settings)
    if link is None:
        return None
    async with contextlib.AsyncExitStack() as undo:
        undo.push_async_callback(link.close)
        try:
            await link.join(who)
        except TimeoutError:
            raise _hung(_paths(settings)) from None
        except grpc.aio.AioRpcError as error:
            if error.code() in _ENDING:
                return None
            raise error_of(
                error, service="the embedded service", address=link.state.address
            ) from error
        undo.pop_all()
    return link


def _paths(settings: Settings) -> RuntimePaths:
    return RuntimePaths(private_directory(settings.runtime_dir, "SPS_RUNTIME_DIR"))


def _none_runs(paths: RuntimePaths) -> bool:
    lock = ServiceLock(paths)
    try:
        lock.acquire(0.0)
    except Timeout:
        return False
    lock.release()
    return True


def _hung(paths: RuntimePaths) -> ServiceNotReady:
    state = read_state(paths)
    who = f"process {state.supervisor.pid}" if state else f"a process with {paths.service_lock}"
    return ServiceNotReady(
        f"the embedded service ({who}) does not answer",
        hint=f"end it (kill {state.supervisor.pid}) and try again" if state else "",
    )


# ---- starting


async def _start(settings: Settings, slices: Mapping[str, int]) -> int:
    """Starts a service, and returns its process id when it serves.

    Raises:
      ServiceNotReady: The service ended instead.
    """
    logs = private_directory(settings.state_dir, "SPS_STATE_DIR") / "logs"
    # (Machines that share the directory each have their own.)
    log = logs / f"start-{place_name()}.log"
    reserve_descriptors()
    with contextlib.ExitStack() as stack:
        with explained(settings.state_dir, "SPS_STATE_DIR"):
            logs.mkdir(mode=0o700, exist_ok=True)
            output = stack.enter_context(_opened(log))
        ours, theirs = os.pipe()
        pipe = stack.enter_context(os.fdopen(ours, "rb", 0))
        with contextlib.closing(os.fdopen(theirs, "wb", 0)):
            pid = _spawn(settings, slices, output.fileno(), theirs)
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), pipe
        )
        stack.callback(transport.close)
        ready = await reader.readline()
    # (A log on a full disk does not say it.)
    failure = json.loads(ready).get("error", "") if ready else ""
    if not ready or failure:
        _, status = await asyncio.to_thread(os.waitpid, pid, 0)
        said = "\n".join(tail_of(log))
        if failure not in said:
            said += failure
        raise ServiceNotReady(
            f"the embedded service did not start: exit code {os.waitstatus_to_exitcode(status)}\n"
            f"{said}",
            hint=f"its log is {log}",
        )
    return pid


def _opened(log: Path) -> FileIO:
    """Opens an empty log that only this user can read."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    return FileIO(os.open(log, flags, 0o600), "ab")


def _spawn(settings: Settings, slices: Mapping[str, int], log_fd: int, ready_fd: int) -> int:
    """Starts a service that outlives this process, its terminal and its notebook.

    Not with `subprocess`, which warns about a child that outlives its parent.
    """
    inherited = 3
    counts = ",".join(f"{kind}={count}" for kind, count in slices.items())
    arguments = [
        sys.executable,
        "-P",
        "-m",
        "shared_pathways_service.servers.supervisor",
        f"--slices={counts}",
        f"--spares={_SPARES}",
        f"--idle_s={constants.SERVICE_IDLE_S}",
        f"--ready_fd={inherited}",
    ]
    environment = server_environment(os.environ, os.environ.get("SPS_PLATFORM", constants.CPU))
    environment["SPS_RUNTIME_DIR"] = str(settings.runtime_dir)
    environment["SPS_STATE_DIR"] = str(settings.state_dir)
    environment["SPS_CACHE_DIR"] = str(settings.cache_dir)
    environment["SPS_COMPILE_CACHE_BYTES"] = str(settings.compile_cache_bytes)
    return os.posix_spawn(
        sys.executable,
        arguments,
        environment,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, log_fd, 1),
            (os.POSIX_SPAWN_DUP2, log_fd, 2),
            (os.POSIX_SPAWN_DUP2, ready_fd, inherited),
        ],
        setsid=True,
        # Its jobs would inherit what this process ignores or blocks.
        setsigmask=(),
        setsigdef=RESETTABLE_SIGNALS,
    )
