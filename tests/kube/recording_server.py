"""A server on loopback in an API server's place, which records what reaches it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import ssl
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from aiohttp import web

from shared_pathways_service.tunnel.frames import SUBPROTOCOL

#: The answer to each request: an empty list, and the version of a server.
ANSWER: dict[str, Any] = {
    "kind": "List",
    "metadata": {"resourceVersion": "1"},
    "items": [],
    "major": "1",
    "minor": "36",
    "gitVersion": "v1.36.3",
}
#: The event of each watch.
EVENT = (
    b'{"type": "ADDED", "object": '
    b'{"metadata": {"name": "a", "uid": "1", "resourceVersion": "2"}}}\n'
)
_OF_INTEREST = ("Authorization", "Impersonate-")


@dataclasses.dataclass(frozen=True)
class Seen:
    """A request.

    Attributes:
      target: Path and query.
      headers: Those with credentials, names in lower case, sorted.
      host: Of the header.
      server_name: Of the TLS handshake; empty: none.
      client: The common name of the client's certificate; empty: none.
    """

    target: str
    headers: tuple[tuple[str, str], ...]
    host: str
    server_name: str
    client: str


class RecordingServer:
    """Use `recording_server`.

    Attributes:
      seen: The requests, in the order of their arrival.
    """

    def __init__(self) -> None:
        self.port = 0
        self.seen: list[Seen] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(_seen(request))
        if "Upgrade" in request.headers:
            return await _port_forward(request)
        if "watch" in request.query:
            return await _watch(request)
        return web.json_response(ANSWER)


def _seen(request: web.Request) -> Seen:
    assert request.transport is not None
    secured = request.transport.get_extra_info("ssl_object")
    certificate: Any = secured.getpeercert() if secured else None
    subject = dict(part[0] for part in (certificate or {}).get("subject", ()))
    return Seen(
        target=request.path_qs,
        headers=tuple(
            sorted(
                (name.lower(), value)
                for name, value in request.headers.items()
                if name.startswith(_OF_INTEREST)
            )
        ),
        host=request.host,
        server_name=getattr(secured, "wanted_name", None) or "",
        client=subject.get("commonName", ""),
    )


async def _watch(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(EVENT)
    await asyncio.Event().wait()
    raise AssertionError("cancelled by then")


async def _port_forward(request: web.Request) -> web.StreamResponse:
    """Sends back what comes."""
    socket = web.WebSocketResponse(protocols=(SUBPROTOCOL,), compress=False)
    await socket.prepare(request)
    async for message in socket:
        await socket.send_bytes(message.data)
    return socket


@contextlib.asynccontextmanager
async def recording_server(
    certificate: tuple[str, str] | None, clients: str = ""
) -> AsyncIterator[RecordingServer]:
    """Serves on a free port of 127.0.0.1, and of ::1 where this machine has it.

    Args:
      certificate: Of the server, with its key, as PEM; None: plain HTTP.
      clients: The authority of certificates that clients may show, as PEM.
    """
    server = RecordingServer()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    try:
        context = server_context(certificate, clients) if certificate else None
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        server.port = runner.addresses[0][1]
        with contextlib.suppress(OSError):
            await web.TCPSite(runner, "::1", server.port, ssl_context=context).start()
        yield server
    finally:
        await runner.cleanup()


def server_context(certificate: tuple[str, str], clients: str = "") -> ssl.SSLContext:
    """Returns a context of a server; arguments are those of `recording_server`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.NamedTemporaryFile("w") as file:
        file.write("\n".join(certificate))
        file.flush()
        context.load_cert_chain(Path(file.name))
    if clients:
        context.verify_mode = ssl.CERT_OPTIONAL
        context.load_verify_locations(cadata=clients)

    def note(secured: Any, name: str | None, _: ssl.SSLContext) -> None:
        secured.wanted_name = name

    context.sni_callback = note
    return context
