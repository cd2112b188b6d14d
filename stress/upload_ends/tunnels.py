"""Tunnels to a local proxy, as the agent has them to a pod, which end in each way."""

from __future__ import annotations

import abc
import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import aiohttp
from aiohttp import web

from shared_pathways_service.tunnel.frames import SUBPROTOCOL
from shared_pathways_service.tunnel.link.carriers import Carrier, CarrierOwner, TcpCarrier
from shared_pathways_service.tunnel.link.connectors import connector_of
from shared_pathways_service.tunnel.link.far_end import FarEnd
from shared_pathways_service.tunnel.link.near_end import LinkState, NearEnd, NearOptions
from shared_pathways_service.tunnel.local_listener import LocalListener
from shared_pathways_service.tunnel.relay import Relay

__all__ = ["ENDINGS", "Ending", "an_ending"]

_TOKEN = b"a token of the tenant"
_REASON = "the pod has died"
_PORT_PREFACE = (29000).to_bytes(2, "little")
_READ_BYTES = 64 << 10


class Ending(abc.ABC):
    """A tunnel to a proxy, and the way in which it ends.

    Args:
      proxy: The socket of the proxy.
      scratch: A private directory.

    Attributes:
      begins_before: Whether the tunnel has ended before the uploads begin.
    """

    begins_before = False

    def __init__(self, proxy: Path, scratch: Path) -> None:
        self._proxy = proxy
        self._scratch = scratch

    @abc.abstractmethod
    async def start(self, stack: contextlib.AsyncExitStack) -> str:
        """Opens it until the stack is closed; returns the address for JAX."""

    @abc.abstractmethod
    def hold(self) -> None:
        """Lets no more bytes get to the proxy, so that uploads stay open."""

    @abc.abstractmethod
    async def end(self) -> None:
        """Ends it."""


class _Silent:
    """Does nothing with what a near end reports."""

    @staticmethod
    def is_final(_error: Exception) -> bool:
        return False

    def link_changed(self, state: LinkState, reason: str) -> None:
        """Does nothing."""

    def dial_failed(self, attempt: int, reason: str) -> None:
        """Does nothing."""


class _Link(Ending):
    """A link whose carriers are cut, and can be dialled no more."""

    async def start(self, stack: contextlib.AsyncExitStack) -> str:
        """Opens it until the stack is closed; returns the address for JAX."""
        self._carriers: list[Carrier] = []
        self._is_reachable = True
        loop = asyncio.get_running_loop()
        far = FarEnd(_TOKEN, connector_of(f"unix:{self._proxy}"))
        stack.push_async_callback(far.close)
        port = await far.start("127.0.0.1", 0)

        async def dial(owner: CarrierOwner) -> None:
            if not self._is_reachable:
                raise ConnectionError("the network is unreachable")
            _, carrier = await loop.create_connection(lambda: TcpCarrier(owner), "127.0.0.1", port)
            self._carriers.append(carrier)

        self._near = NearEnd(dial, _TOKEN, _Silent(), NearOptions(max_backoff_s=0.1))
        stack.push_async_callback(self._near.close)
        self._near.start()
        listener = LocalListener(self._scratch, None, self._near.accept)
        stack.callback(listener.close)
        return listener.start()

    def hold(self) -> None:
        """Lets no more bytes get to the proxy, so that uploads stay open."""
        self._is_reachable = False
        for carrier in self._carriers:
            carrier.close()


class Lost(_Link):
    """A link is lost, and then ends, as after `keep_for` or with the pod."""

    async def end(self) -> None:
        """Ends it."""
        self._near.end(_REASON)


class Late(Lost):
    """The same, before the uploads begin."""

    begins_before = True


class Close(_Link):
    """The near end closes, as when the agent ends."""

    async def end(self) -> None:
        """Ends it."""
        await self._near.close()


class HangUp(_Link):
    """The proxy hangs up, and the link stays."""

    async def start(self, stack: contextlib.AsyncExitStack) -> str:
        """Opens it until the stack is closed; returns the address for JAX."""
        self._gate = _Gate(self._proxy)
        self._proxy = self._scratch / "gate"
        server = await asyncio.start_unix_server(self._gate.carry, self._proxy)
        stack.callback(self._proxy.unlink, missing_ok=True)
        stack.callback(server.close)
        stack.callback(self._gate.hang_up)
        return await super().start(stack)

    def hold(self) -> None:
        """Lets no more bytes get to the proxy, so that uploads stay open."""
        self._gate.is_open = False

    async def end(self) -> None:
        """Ends it."""
        self._gate.hang_up()


class _Gate:
    """Passes connections on to a proxy, until it is closed."""

    def __init__(self, proxy: Path) -> None:
        self._proxy = proxy
        self._writers: list[asyncio.StreamWriter] = []
        self.is_open = True

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Passes one connection on."""
        from_proxy, to_proxy = await asyncio.open_unix_connection(self._proxy)
        self._writers += [writer, to_proxy]
        await asyncio.gather(self._pass(reader, to_proxy), self._pass(from_proxy, writer))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(_READ_BYTES):
                if self.is_open:
                    writer.write(data)
                    await writer.drain()
        writer.close()

    def hang_up(self) -> None:
        """Ends all connections."""
        for writer in self._writers:
            writer.close()


class _Relay(Ending):
    """A plain tunnel, as to Google's images: a port-forward for each connection."""

    async def start(self, stack: contextlib.AsyncExitStack) -> str:
        """Opens it until the stack is closed; returns the address for JAX."""
        self._is_open = True
        self._transports: list[asyncio.Transport] = []
        app = web.Application()
        app.router.add_get("/portforward", self._forward)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/portforward"
        session = await stack.enter_async_context(aiohttp.ClientSession())

        async def dial(headers: Mapping[str, str]) -> aiohttp.ClientResponse:
            return await session.get(url, headers=headers)

        self._relay = Relay(dial, pod="proxy-x", runtime_dir=self._scratch)
        stack.push_async_callback(self._relay.close)
        return await self._relay.start()

    def hold(self) -> None:
        """Lets no more bytes get to the proxy, so that uploads stay open."""
        self._is_open = False

    async def _forward(self, request: web.Request) -> web.WebSocketResponse:
        forward = web.WebSocketResponse(protocols=(SUBPROTOCOL,), compress=False, timeout=0.5)
        await forward.prepare(request)
        for channel in (b"\0", b"\1"):
            await forward.send_bytes(channel + _PORT_PREFACE)
        assert request.transport is not None
        self._transports.append(request.transport)
        from_proxy, to_proxy = await asyncio.open_unix_connection(self._proxy)
        answers = asyncio.ensure_future(_send_answers(from_proxy, forward))
        try:
            async for message in forward:
                if self._is_open:
                    to_proxy.write(message.data[1:])
        finally:
            to_proxy.close()
            await answers
        return forward

    def _break(self) -> None:
        for transport in self._transports:
            transport.abort()


async def _send_answers(from_proxy: asyncio.StreamReader, forward: web.WebSocketResponse) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await from_proxy.read(_READ_BYTES):
            await forward.send_bytes(b"\0" + data)


class PodDied(_Relay):
    """The pod of a plain tunnel dies, as the API server reports."""

    async def end(self) -> None:
        """Ends it."""
        self._relay.pod_died(_REASON)


class Broken(_Relay):
    """All port-forwards of a plain tunnel break."""

    async def end(self) -> None:
        """Ends it."""
        self._break()


ENDINGS: Mapping[str, type[Ending]] = {
    "lost": Lost,
    "late": Late,
    "close": Close,
    "hang up": HangUp,
    "pod died": PodDied,
    "broken": Broken,
}


@contextlib.asynccontextmanager
async def an_ending(name: str, proxy: Path, scratch: Path) -> AsyncIterator[tuple[Ending, str]]:
    """Opens a tunnel that will end so; yields it with its address."""
    ending = ENDINGS[name](proxy, scratch)
    async with contextlib.AsyncExitStack() as stack:
        yield ending, await ending.start(stack)
