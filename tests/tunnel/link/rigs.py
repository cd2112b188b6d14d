"""A server in place of the proxy, a far end before it, and a near end, in this process."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

from harness.deadlines import deadline
from harness.processes import run_async
from shared_pathways_service.patience import timeouts
from shared_pathways_service.patience.factor import Timeout
from shared_pathways_service.tunnel.link.carriers import Carrier, CarrierOwner, TcpCarrier
from shared_pathways_service.tunnel.link.connectors import connector_of
from shared_pathways_service.tunnel.link.far_end import FarEnd, FarOptions
from shared_pathways_service.tunnel.link.near_end import LinkState, NearEnd, NearOptions
from tests.tunnel.link.heard import Heard

__all__ = [
    "DEADLINE_S",
    "TOKEN",
    "Handler",
    "Rig",
    "Way",
    "a_rig",
    "echo",
    "run",
    "sink_with_digest",
]

TOKEN = b"a token of the tenant"
DEADLINE_S = deadline(120.0)
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Way:
    """Dials the far end; what it dialled can be cut, and dialling can be made impossible."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.carriers: list[Carrier] = []
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.dialled = 0
        self.refusal: Exception | None = None

    async def dial(self, owner: CarrierOwner) -> None:
        if self.refusal is not None:
            raise self.refusal
        if not self.is_open.is_set():
            raise ConnectionError("the network is unreachable")
        self.dialled += 1
        loop = asyncio.get_running_loop()
        _, carrier = await loop.create_connection(lambda: TcpCarrier(owner), "127.0.0.1", self.port)
        self.carriers.append(carrier)

    def cut(self) -> None:
        for carrier in self.carriers:
            carrier.close()
        self.carriers.clear()


class Rig:
    """A server (in place of the proxy), a far end before it, and a near end."""

    def __init__(self, far: FarEnd, way: Way, near: NearEnd, heard: Heard) -> None:
        self.far, self.way, self.near, self.heard = far, way, near, heard
        self.states = heard.states

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        mine, theirs = socket.socketpair()
        theirs.setblocking(False)
        self.near.accept(theirs)
        return await asyncio.open_connection(sock=mine)

    async def connection_in_use(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connects, waits for an answer, and until there are both carriers."""
        reader, writer = await self.connect()
        writer.write(b"x")
        await reader.readexactly(1)
        await self.both_carriers()
        return reader, writer

    async def state(self, wanted: LinkState) -> str:
        """Waits for a state; returns its reason."""
        while all(state is not wanted for state, _ in self.states):
            await asyncio.sleep(0.01)
        return next(reason for state, reason in self.states if state is wanted)

    async def both_carriers(self) -> None:
        """Waits until there are two: a second one that is being dialled outlives a cut."""
        while self.near.carriers < 2:
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def a_rig(
    handler: Handler,
    *,
    token: bytes = TOKEN,
    options: FarOptions | None = None,
    carriers: int = 2,
    keep_s: float = 600.0,
    speaks: Timeout = timeouts.LINK_CLIENT_SPEAKS,
) -> AsyncIterator[Rig]:
    server = await asyncio.start_server(handler, "127.0.0.1", 0)
    far = FarEnd(TOKEN, connector_of(f"127.0.0.1:{server.sockets[0].getsockname()[1]}"), options)
    way = Way(await far.start("127.0.0.1", 0))
    heard = Heard()
    numbers = NearOptions(carriers=carriers, max_backoff_s=0.2, keep_s=keep_s, speaks=speaks)
    near = NearEnd(way.dial, token, heard, numbers)
    rig = Rig(far, way, near, heard)
    near.start()
    try:
        yield rig
    finally:
        await near.close()
        await far.close()
        server.close()
        await server.wait_closed()


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def with_deadline() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await test()

    run_async(with_deadline())


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()


async def sink_with_digest(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    digest = hashlib.sha256()
    while data := await reader.read(1 << 16):
        digest.update(data)
    writer.write(digest.digest())
    writer.close()
