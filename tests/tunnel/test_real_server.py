"""The relay before a real API server and kubelet endpoint: what the stand-in's tests build on."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import aiohttp
import pytest

from harness.deadlines import deadline, wait_until
from harness.processes import run_async
from harness.testbed.pods import container, phase, pod
from shared_pathways_service.kube.tls import client_tls
from shared_pathways_service.testing.testbed import Namespace, User
from shared_pathways_service.tunnel.relay import FailureKind, Relay, TunnelFailure

PORT = 29000
DEADLINE_S = deadline(90.0)
#: Answers with what it got.
ECHO = f"""
import os, socketserver
class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while data := self.request.recv(1 << 16):
            self.request.sendall(data)
socketserver.ThreadingTCPServer.allow_reuse_address = True
with socketserver.ThreadingTCPServer((os.environ["IP"], {PORT}), Echo) as server:
    print("listening", flush=True)
    server.serve_forever()
"""


@pytest.fixture
def echo_pod(namespace: Namespace) -> str:
    """A pod that listens on `PORT`."""
    environment = [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
    ports = [{"containerPort": PORT}, {"containerPort": PORT + 1}]
    echo = container("", env=environment, ports=ports) | {"command": [sys.executable, "-c", ECHO]}
    namespace.create("pods", pod("echo", echo))

    namespace.wait_for_pod("echo", lambda seen: phase(seen) == "Running")
    wait_until("the pod's server", lambda: "listening" in namespace.log("echo"))
    return "echo"


def run(
    namespace: Namespace,
    user: User,
    root: Path,
    test: Callable[[Relay, str, list[TunnelFailure]], Awaitable[None]],
    *,
    name: str = "echo",
    port: int = PORT,
) -> None:
    """Runs a test with a relay to a port of a pod."""
    url = namespace.testbed.server + namespace.path("pods", f"{name}/portforward")
    tls = client_tls(authority=namespace.testbed.authority.read_text())
    authorization = {"Authorization": f"Bearer {user.token}"}
    failures: list[TunnelFailure] = []

    async def body() -> None:
        async with asyncio.timeout(DEADLINE_S), aiohttp.ClientSession() as session:

            async def dial(headers: Mapping[str, str]) -> aiohttp.ClientResponse:
                response = await session.get(
                    url, params={"ports": str(port)}, headers={**headers, **authorization}, ssl=tls
                )
                response.raise_for_status()
                return response

            async with Relay(dial, pod=name, runtime_dir=root, on_failure=failures.append) as relay:
                address = await relay.start()
                await test(relay, address.removeprefix("unix:"), failures)

    run_async(body())


async def refused(_relay: Relay, path: str, failures: list[TunnelFailure]) -> None:
    reader, writer = await asyncio.open_unix_connection(path)
    assert await reader.read() == b""
    writer.close()
    assert [f.kind for f in failures] == [FailureKind.REFUSED]


def test_bytes_go_both_ways(namespace: Namespace, echo_pod: str, own_directories: Path) -> None:
    async def test(_relay: Relay, path: str, failures: list[TunnelFailure]) -> None:
        reader, writer = await asyncio.open_unix_connection(path)
        data = bytes(range(256)) * 20_000
        writer.write(data)
        assert await reader.readexactly(len(data)) == data
        writer.close()
        assert not failures

    run(namespace, namespace.user("tenant"), own_directories / "r", test)


def test_a_pod_that_dies_is_not_waited_for(
    namespace: Namespace, echo_pod: str, own_directories: Path
) -> None:
    async def test(relay: Relay, path: str, failures: list[TunnelFailure]) -> None:
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        await asyncio.to_thread(namespace.delete, "pods", echo_pod)
        relay.pod_died("deleted")
        assert await reader.read() == b""
        writer.close()
        assert [f.kind for f in failures] == [FailureKind.POD_DIED]

    run(namespace, namespace.user("tenant"), own_directories / "r", test)


def test_a_port_without_a_listener_is_reported(
    namespace: Namespace, echo_pod: str, own_directories: Path
) -> None:
    async def test(_relay: Relay, path: str, failures: list[TunnelFailure]) -> None:
        reader, writer = await asyncio.open_unix_connection(path)
        assert await reader.read() == b""
        writer.close()
        (failure,) = failures
        assert failure.kind is FailureKind.PORT
        assert "refused" in failure.error.cause

    run(namespace, namespace.user("tenant"), own_directories / "r", test, port=PORT + 1)


def test_who_may_not_forward_is_refused_at_once(
    namespace: Namespace, echo_pod: str, own_directories: Path
) -> None:
    run(namespace, namespace.user("nobody", []), own_directories / "r", refused)


def test_a_pod_that_is_not_there_is_refused_at_once(
    namespace: Namespace, own_directories: Path
) -> None:
    run(namespace, namespace.user("tenant"), own_directories / "r", refused, name="none")
