"""Forwarders to the port of a pod, each a process: our two, kr8s, `kubernetes`, and a slow line."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from benchmarks.tunnel_pod import LINK_TOKEN, PORT
from harness.delay_relay import LineSpeed, delay_relay
from harness.own_service import ROOT

if TYPE_CHECKING:
    import aiohttp

    from shared_pathways_service.tunnel.websocket_upgrade import Dial


def forward_plain(port: int, url: str, token: str) -> None:
    from shared_pathways_service.tunnel.relay import Relay

    async def run() -> None:
        async with dialler(url, token) as dial:
            directory = Path(tempfile.gettempdir())
            async with Relay(dial, pod="load", runtime_dir=directory, local_port=port) as relay:
                await relay.start()
                await asyncio.Event().wait()

    asyncio.run(run())


def forward_link(port: int, url: str, token: str) -> None:
    from shared_pathways_service.tunnel.resumable_relay import ResumableRelay

    async def run() -> None:
        async with dialler(url, token) as dial:
            relay = ResumableRelay(
                dial,
                pod="load",
                token=LINK_TOKEN,
                keep_s=600.0,
                runtime_dir=Path(tempfile.gettempdir()),
                local_port=port,
                on_event=print,
                on_failure=print,
            )
            await relay.start()
            await asyncio.Event().wait()

    asyncio.run(run())


@contextlib.asynccontextmanager
async def dialler(url: str, token: str) -> AsyncIterator[Dial]:
    """Gives what opens a port-forward at a URL."""
    import aiohttp

    tls = ssl.create_default_context()
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    async with aiohttp.ClientSession() as session:

        async def dial(asked: Mapping[str, str]) -> aiohttp.ClientResponse:
            headers = {"Authorization": f"Bearer {token}", **asked}
            return await session.get(url, headers=headers, ssl=tls)

        yield dial


def forward_kr8s(port: int, kubeconfig: str, namespace: str) -> None:
    import kr8s
    from kr8s.asyncio.objects import Pod

    async def run() -> None:
        api = await kr8s.asyncio.api(kubeconfig=kubeconfig)
        pod = await Pod.get("load", namespace=namespace, api=api)
        async with pod.portforward(PORT, local_port=port):
            await asyncio.Event().wait()

    asyncio.run(run())


def forward_kubernetes(port: int, kubeconfig: str, namespace: str) -> None:
    from kubernetes import client, config
    from kubernetes.stream import portforward

    config.load_kube_config(kubeconfig)
    forward = client.CoreV1Api().connect_get_namespaced_pod_portforward

    def pump(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(256 << 10):
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def join(local: socket.socket) -> None:
        remote = portforward(forward, "load", namespace, ports=str(PORT)).socket(PORT)
        remote.setblocking(True)
        threading.Thread(target=pump, args=(remote, local), daemon=True).start()
        pump(local, remote)

    with socket.create_server(("127.0.0.1", port)) as listener:
        while True:
            threading.Thread(target=join, args=(listener.accept()[0],), daemon=True).start()


def line(
    port: int, target: str, target_port: int, round_trip_s: float, bytes_per_s: float | None
) -> None:
    """Forwards over a line of this round trip and rate."""

    async def run() -> None:
        speed = LineSpeed(delay_s=round_trip_s / 2, bytes_per_s=bytes_per_s)
        limit = 2 * speed.read_bytes
        relay = delay_relay(
            lambda: asyncio.open_connection(target, target_port, limit=limit), speed, port=port
        )
        async with relay:
            await asyncio.Event().wait()

    asyncio.run(run())


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@contextlib.contextmanager
def process(function: str, port: int, *arguments: object) -> Iterator[psutil.Process]:
    """Runs one of these functions (or a command) that listens on a port."""
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); "
    code += "from benchmarks import tunnel_forwarders as t; "
    call = f"t.{function}({', '.join(map(repr, (port, *arguments)))})"
    with running([sys.executable, "-c", code + call], port) as found:
        yield found


@contextlib.contextmanager
def running(line: list[str], port: int) -> Iterator[psutil.Process]:
    """Runs a command until the block ends; begins when it listens."""
    child = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while child.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5):
                break
            time.sleep(0.05)
        yield psutil.Process(child.pid)
    finally:
        child.kill()
        child.wait()
