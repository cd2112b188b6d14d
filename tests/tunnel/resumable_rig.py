"""A resumable relay before the stand-in of an API server, and a pod with a far end behind it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
from aiohttp import web

from shared_pathways_service.events import Event
from shared_pathways_service.tunnel.link.connectors import connector_of
from shared_pathways_service.tunnel.link.far_end import FarEnd
from shared_pathways_service.tunnel.relay import TunnelFailure
from shared_pathways_service.tunnel.resumable_relay import ResumableRelay
from tests.tunnel.api_server import ApiServer, hang_up

TOKEN = "a token of the tenant"


class Pod:
    """A far end before an echo server, and port-forwards to it that can be cut."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.open: set[web.WebSocketResponse] = set()

    async def forward(self, socket: web.WebSocketResponse) -> None:
        """Is a behaviour of the API server: forwards to the far end."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.open.add(socket)
        upwards = asyncio.create_task(self._upwards(reader, socket))
        try:
            async for message in socket:
                assert message.data[0] == 0
                writer.write(message.data[1:])
                await writer.drain()
        finally:
            self.open.discard(socket)
            upwards.cancel()
            await asyncio.gather(upwards, return_exceptions=True)
            writer.close()

    def cut(self) -> None:
        while self.open:
            hang_up(self.open.pop())

    @staticmethod
    async def _upwards(reader: asyncio.StreamReader, socket: web.WebSocketResponse) -> None:
        while data := await reader.read(1 << 15):
            await socket.send_bytes(b"\0" + data)
        await socket.close()


class Rig:
    """A relay before a pod."""

    def __init__(self, server: ApiServer, pod: Pod, far: FarEnd) -> None:
        self.server, self.pod, self.far = server, pod, far
        self.relay: ResumableRelay
        self.address = ""
        self.events: list[Event] = []
        self.failures: list[TunnelFailure] = []
        self._news = asyncio.Event()

    def add_event(self, event: Event) -> None:
        self.events.append(event)
        self._news.set()

    def failed(self, failure: TunnelFailure) -> None:
        self.failures.append(failure)
        self._news.set()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_unix_connection(self.address.removeprefix("unix:"))

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits for a condition, which it checks after each event and failure."""
        while not condition():
            self._news.clear()
            await self._news.wait()

    def kinds(self) -> list[type[Event]]:
        return [type(event) for event in self.events]


def has_expired(error: BaseException) -> bool:
    """Whether credentials have, which their owner may renew."""
    return isinstance(error, aiohttp.ClientResponseError) and error.status == 401


@contextlib.asynccontextmanager
async def a_rig(root: Path, certificates: Path | None) -> AsyncIterator[Rig]:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()

    proxy = await asyncio.start_server(echo, "127.0.0.1", 0)
    far = FarEnd(TOKEN.encode(), connector_of(f"127.0.0.1:{proxy.sockets[0].getsockname()[1]}"))
    pod = Pod(await far.start("127.0.0.1", 0))
    server = ApiServer(pod.forward)
    rig = Rig(server, pod, far)
    try:
        # (It ends before what it forwards to: Python 3.11 leaves a connection open that a server
        # accepts as it closes.)
        async with server.serve(certificates):
            rig.relay = ResumableRelay(
                server.dial,
                pod="the-pod",
                token=TOKEN,
                keep_s=600.0,
                runtime_dir=root,
                may_recover=has_expired,
                on_event=rig.add_event,
                on_failure=rig.failed,
            )
            rig.address = await rig.relay.start()
            try:
                yield rig
            finally:
                await rig.relay.close()
    finally:
        await far.close()
        proxy.close()
        await proxy.wait_closed()
