"""An HTTP proxy and a SOCKS5 proxy on loopback, as companies and `ssh -D` have them."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ipaddress
import ssl
from collections.abc import AsyncIterator, Mapping
from urllib.parse import urlsplit

_SOCKS_FAILURES = {"refused": 5, "forbidden": 2}


class ForwardingProxy:
    """Use `http_proxy` or `socks_proxy`.

    Attributes:
      asked: HOST:PORT of each connection that was requested, as the client wrote it.
      failure: How to fail from now on: ``refused``, ``forbidden``, ``silent``, ``hang up`` or "".
    """

    def __init__(self, names: Mapping[str, str], login: tuple[str, str] | None) -> None:
        self.port = 0
        self.asked: list[str] = []
        self.failure = ""
        self._names = names
        self._login = login

    async def serve_http(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").strip().split("\r\n")
        method, target, _ = first.split()
        headers = {name.lower(): value for name, _, value in (x.partition(": ") for x in lines)}
        if method == "CONNECT":
            place, start = target, b""
        else:
            url = urlsplit(target)
            place = url.netloc if url.port else f"{url.netloc}:80"
            query = f"?{url.query}" if url.query else ""
            kept = [x for x in lines if not x.lower().startswith(("proxy-", "connection:"))]
            origin = f"{method} {url.path}{query} HTTP/1.1"
            start = "\r\n".join([origin, *kept, "Connection: close", "", ""]).encode("latin-1")
        self.asked.append(place)
        if self._login is not None:
            expected = base64.b64encode(":".join(self._login).encode()).decode()
            if headers.get("proxy-authorization") != f"Basic {expected}":
                writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
                return
        if self.failure == "forbidden":
            writer.write(b"HTTP/1.1 403 Forbidden\r\n\r\n")
            return
        try:
            server = await self._dial(place)
        except OSError:
            writer.write(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")
            return
        async with _closing(server[1]):
            if method == "CONNECT":
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            server[1].write(start)
            await _forward((reader, writer), server)

    async def serve_socks(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves SOCKS5, with a login by RFC 1929."""
        version, count = await reader.readexactly(2)
        methods = await reader.readexactly(count)
        assert version == 5
        method = 0 if self._login is None else 2
        if method not in methods:
            writer.write(b"\x05\xff")
            return
        writer.write(bytes([5, method]))
        if self._login is not None:
            assert await reader.readexactly(1) == b"\x01"
            given = [(await _counted(reader)).decode() for _ in range(2)]
            writer.write(b"\x01\x00" if tuple(given) == self._login else b"\x01\x01")
            if tuple(given) != self._login:
                return
        version, command, reserved, kind = await reader.readexactly(4)
        assert (version, command, reserved) == (5, 1, 0)
        if kind == 3:
            host = (await _counted(reader)).decode()
        else:
            address = ipaddress.ip_address(await reader.readexactly({1: 4, 4: 16}[kind]))
            host = f"[{address}]" if address.version == 6 else str(address)
        place = f"{host}:{int.from_bytes(await reader.readexactly(2))}"
        self.asked.append(place)
        status = _SOCKS_FAILURES.get(self.failure, 0)
        server = None
        if not status:
            try:
                server = await self._dial(place)
            except OSError:
                status = 4
        # (Its own address: a name, the rarest kind.)
        writer.write(bytes([5, status, 0, 3, 5]) + b"proxy" + bytes(2))
        if server is not None:
            async with _closing(server[1]):
                await _forward((reader, writer), server)

    async def _dial(self, place: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, _, port = place.rpartition(":")
        host = self._names.get(host, host).strip("[]")
        if not host:
            raise OSError("no such name")
        return await asyncio.open_connection(host, int(port))

    async def accept(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_socks: bool
    ) -> None:
        async with _closing(writer):
            if self.failure == "silent":
                await asyncio.Event().wait()
            # (The client may go at any time.)
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                if self.failure == "hang up":
                    await reader.read(65536)
                else:
                    await (self.serve_socks if is_socks else self.serve_http)(reader, writer)


@contextlib.asynccontextmanager
async def _closing(writer: asyncio.StreamWriter) -> AsyncIterator[None]:
    try:
        yield
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _counted(reader: asyncio.StreamReader) -> bytes:
    (size,) = await reader.readexactly(1)
    return await reader.readexactly(size)


async def _forward(
    client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
) -> None:
    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        # (Either side's end is the end of both.)
        for end in (client[1], server[1]):
            end.close()

    await asyncio.gather(copy(client[0], server[1]), copy(server[0], client[1]))


@contextlib.asynccontextmanager
async def _served(
    proxy: ForwardingProxy, *, is_socks: bool, tls: ssl.SSLContext | None = None
) -> AsyncIterator[ForwardingProxy]:
    tasks: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        await proxy.accept(reader, writer, is_socks=is_socks)

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=tls)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def http_proxy(
    names: Mapping[str, str] | None = None,
    *,
    login: tuple[str, str] | None = None,
    tls: ssl.SSLContext | None = None,
) -> contextlib.AbstractAsyncContextManager[ForwardingProxy]:
    """Serves an HTTP proxy.

    Args:
      names: Addresses of hosts that only the proxy resolves; empty: it cannot.
      login: User and password that it requires.
      tls: For an https:// proxy.
    """
    return _served(ForwardingProxy(names or {}, login), is_socks=False, tls=tls)


def socks_proxy(
    names: Mapping[str, str] | None = None, *, login: tuple[str, str] | None = None
) -> contextlib.AbstractAsyncContextManager[ForwardingProxy]:
    """Serves a SOCKS5 proxy; arguments are those of `http_proxy`."""
    return _served(ForwardingProxy(names or {}, login), is_socks=True)
