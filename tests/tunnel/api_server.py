"""Port-forwards on loopback as kube-apiserver answers them, each with a behaviour of its own.

For faults that a real one does not show on demand. `test_real_server` holds the ordinary case
against the real one.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path

import aiohttp
from aiohttp import web

from shared_pathways_service.kube.tls import client_tls
from shared_pathways_service.testing.testbed.certificates import make_certificates

PREFACE = (29000).to_bytes(2, "little")
#: Serves one port-forward whose port has been told.
Behaviour = Callable[[web.WebSocketResponse], Awaitable[None]]


async def echo(socket: web.WebSocketResponse) -> None:
    """Sends back what comes."""
    async for message in socket:
        await socket.send_bytes(message.data)


def says(words: str) -> Behaviour:
    """Speaks on the error channel and hangs up, as for a port that nobody listens on."""

    async def behave(socket: web.WebSocketResponse) -> None:
        await socket.send_bytes(b"\1" + words.encode())
        await socket.close()

    return behave


def sends(data: bytes) -> Behaviour:
    """Sends this and hangs up, as a server at the port that is done."""

    async def behave(socket: web.WebSocketResponse) -> None:
        for start in range(0, len(data), 32 << 10):
            await socket.send_bytes(b"\0" + data[start : start + (32 << 10)])
        await socket.close()

    return behave


class ApiServer:
    """Answers dials, one behaviour or status after the other; the last one again and again.

    Attributes:
      answers: The answers to the next dials; may be replaced.
      dials: The headers of each dial.
      heard: What `keeps` has taken, without channels.
      ended: Set when a port-forward has ended, by whichever side.
    """

    def __init__(self, *answers: Behaviour | int, autoping: bool = True) -> None:
        self.answers = list(answers)
        self._autoping = autoping
        self._url = ""
        self._tls: ssl.SSLContext | bool = True
        self._session: aiohttp.ClientSession | None = None
        self.dials: list[Mapping[str, str]] = []
        self.heard = bytearray()
        self.ended = asyncio.Event()
        self.opened = asyncio.Event()

    @contextlib.asynccontextmanager
    async def serve(self, certificates: Path | None) -> AsyncIterator[None]:
        """Serves while the block lasts; with TLS where there is a directory for certificates."""
        context = None
        if certificates is not None:
            files = make_certificates(certificates)
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(files.certificate, files.key)
            self._tls = client_tls(authority=files.authority.read_text())
        app = web.Application()
        app.router.add_get("/portforward", self._answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        scheme = "https" if context else "http"
        self._url = f"{scheme}://127.0.0.1:{runner.addresses[0][1]}/portforward"
        async with aiohttp.ClientSession() as self._session:
            try:
                yield
            finally:
                await runner.cleanup()

    async def dial(self, headers: Mapping[str, str]) -> aiohttp.ClientResponse:
        """Is the relay's dial."""
        assert self._session
        response = await self._session.get(self._url, headers=headers, ssl=self._tls)
        if response.status != 101:
            response.raise_for_status()
        return response

    async def keeps(self, socket: web.WebSocketResponse) -> None:
        """Is a behaviour: keeps what comes in `heard`."""
        async for message in socket:
            self.heard += message.data[1:]

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.dials.append(request.headers)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, int):
            return web.Response(status=answer)
        socket = web.WebSocketResponse(
            protocols=("v4.channel.k8s.io",), autoping=self._autoping, compress=False, timeout=0.5
        )
        await socket.prepare(request)
        for channel in (b"\0", b"\1"):
            await socket.send_bytes(channel + PREFACE)
        self.opened.set()
        try:
            with contextlib.suppress(ConnectionError):
                await answer(socket)
        finally:
            self.ended.set()
        return socket


def hang_up(socket: web.WebSocketResponse) -> None:
    """Ends the connection without a word."""
    transport = socket.get_extra_info("socket")
    assert transport
    server = socket._req
    assert server
    assert server.transport
    server.transport.abort()


async def pod_that_waits(socket: web.WebSocketResponse) -> None:
    """Is a behaviour: takes everything and says nothing, until the client goes."""
    async for _ in socket:
        pass
