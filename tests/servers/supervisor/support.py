"""The embedded service as a process of a test, and calls to it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import grpc

from harness.carriers import create_proxy
from harness.deadlines import wait_until
from harness.processes import DEADLINE_S, KIND, ServerProcess, Stream
from shared_pathways_service.constants import PROTOCOL_MAX, PROTOCOL_MIN
from shared_pathways_service.protocol import resource_manager_pb2 as rm_pb
from shared_pathways_service.protocol import resource_manager_pb2_grpc as rm_grpc
from shared_pathways_service.protocol import supervisor_pb2 as pb
from shared_pathways_service.protocol import supervisor_pb2_grpc as pb_grpc
from shared_pathways_service.protocol.auth import bearer
from shared_pathways_service.runtime.embedded.file_names import RuntimePaths
from shared_pathways_service.runtime.processes import Identity, identity_of

MODULE = "shared_pathways_service.servers.supervisor"
LOCKS = {"service.lock", "start.lock"}


def runtime_paths() -> RuntimePaths:
    """The files of this test's service."""
    return RuntimePaths(Path(os.environ["SPS_RUNTIME_DIR"]))


class EmbeddedClient:
    """Calls to a running service, as its user makes them; use as a context manager."""

    def __init__(self, paths: RuntimePaths | None = None) -> None:
        self.paths = paths or runtime_paths()
        self.token = self.paths.token.read_text()
        self._stack = contextlib.ExitStack()
        self.supervisor = pb_grpc.SupervisorStub(self._channel(self.paths.supervisor_socket))
        self.manager = rm_grpc.ResourceManagerStub(
            self._channel(self.paths.resource_manager_socket)
        )

    def _channel(self, socket: Path) -> grpc.Channel:
        options = (("grpc.max_reconnect_backoff_ms", 200),)
        return self._stack.enter_context(grpc.insecure_channel(f"unix:{socket}", options))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stack.close()

    @property
    def call(self) -> dict[str, Any]:
        """What every call carries."""
        return {"metadata": bearer(self.token), "timeout": DEADLINE_S, "wait_for_ready": True}

    def join(self) -> Stream:
        request = pb.JoinRequest(protocol_min=PROTOCOL_MIN, protocol_max=PROTOCOL_MAX, who="a test")
        stream = Stream(self.supervisor.Join, request, token=self.token)
        return self._stack.enter_context(stream)

    def create(self, name: str = "isc-proxy-a", **fields: Any) -> pb.Proxy:
        values: dict[str, Any] = {"session": str(uuid.uuid4()), "virtual_slices": [KIND]}
        request = create_proxy(name=name, **{**values, **fields})
        return self.supervisor.CreateProxy(request, **self.call)

    def delete(self, name: str = "isc-proxy-a", **fields: Any) -> bool:
        request = pb.DeleteProxyRequest(name=name, **fields)
        return self.supervisor.DeleteProxy(request, **self.call).deleted

    def watch(self, name: str = "isc-proxy-a") -> Stream:
        request = pb.WatchProxyRequest(name=name)
        return self._stack.enter_context(
            Stream(self.supervisor.WatchProxy, request, token=self.token)
        )

    def processes(self, role: str) -> list[pb.GetProcessesResponse.Process]:
        answer = self.supervisor.GetProcesses(pb.GetProcessesRequest(), **self.call)
        return [process for process in answer.processes if process.role == role]

    def status(self) -> rm_pb.GetStatusResponse:
        return self.manager.GetStatus(rm_pb.GetStatusRequest(), **self.call)

    def holders(self) -> dict[str, str]:
        """Which tenant holds each slice that is ready; empty: nobody."""
        return {s.id: s.tenant for s in self.status().slices if s.state == "ready"}

    def wait_for_holders(self, *tenants: str) -> dict[str, str]:
        """Waits until these tenants, and nobody else, hold the ready slices; "": a free one."""

        def look() -> dict[str, str] | None:
            found = self.holders()
            return found if sorted(found.values()) == sorted(tenants) else None

        found: dict[str, str] = wait_until(f"slices held by {tenants}", look)
        return found

    def all_identities(self) -> list[Identity]:
        """Every process of the service."""
        answer = self.supervisor.GetProcesses(pb.GetProcessesRequest(), **self.call)
        found = [identity_of(process.pid) for process in answer.processes]
        return [identity for identity in found if identity is not None]


@contextlib.contextmanager
def embedded(
    *flags: str, slices: str = f"{KIND}=1", spares: int = 0, standby: int = 0
) -> Iterator[tuple[ServerProcess, EmbeddedClient]]:
    """Runs a service for the length of the block, all slices ready, and calls to it."""
    arguments = [f"--slices={slices}", f"--spares={spares}", f"--standby_proxies={standby}"]
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(ServerProcess(MODULE, [*arguments, *flags]))
        assert server.ready is not None, "\n".join(server.lines)
        client = stack.enter_context(EmbeddedClient())
        count = sum(int(part.split("=")[1]) + spares for part in slices.split(","))
        client.wait_for_holders(*[""] * count)
        yield server, client


def expect_state(stream: Stream, state: pb.Proxy.State.ValueType) -> pb.Proxy:
    """Reads a watched proxy's changes up to this state."""
    seen = []
    while (message := stream.next()) is not None:
        if message.state == state:
            assert isinstance(message, pb.Proxy)
            return message
        seen.append(message.state)
    raise AssertionError(f"the watch ended without {state}: {seen}, {stream.status()}")


def wait_for_end(identities: list[Identity]) -> None:
    """Waits until none of them lives."""
    wait_until(f"the end of {identities}", lambda: not any(i.is_alive() for i in identities))


def assert_clean(paths: RuntimePaths) -> None:
    """Nothing is left in the runtime directory but the locks."""
    assert {path.name for path in paths.directory.iterdir()} <= LOCKS


@contextlib.contextmanager
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """Runs a process that does nothing, to be somebody's owner."""
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def started(pid: int) -> str:
    return identity_of(pid).start


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
