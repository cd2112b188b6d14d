"""Connections of aiohttp through an HTTP or a SOCKS proxy, and why they fail.

aiohttp knows no SOCKS. aiohttp-socks (0.12) does not pass on the name that a server's certificate
must have (``tls-server-name``), nor the factory of sockets, and so has no keepalives.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import Callable
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.client_proto import ResponseHandler

from shared_pathways_service.kube.http_proxies import NetworkProxy
from shared_pathways_service.kube.socks import SocksError, connect_steps

__all__ = ["cause_of", "new_connector", "proxy_options"]

#: The private method of aiohttp (3.13 to 3.14) that connects; aiohttp-socks overrides it as well.
_CONNECTS = "_wrap_create_connection"

#: Creates a socket for an entry of `socket.getaddrinfo`.
SocketFactory = Callable[[tuple[Any, ...]], socket.socket]


class SocksRefusalError(aiohttp.ClientError):
    """The proxy answered, and did not connect to the server."""


def new_connector(
    proxy: NetworkProxy | None,
    *,
    limit: int = 100,
    socket_factory: SocketFactory | None = None,
    tls: ssl.SSLContext | None = None,
) -> aiohttp.TCPConnector:
    """Returns a connector for requests through a proxy; None: direct ones.

    Args:
      proxy: The same as for `proxy_options`.
      limit: Number of connections.
      socket_factory: Creates their sockets.
      tls: For requests that have no context of their own; None: aiohttp's.
    """
    secure = True if tls is None else tls
    if proxy is not None and proxy.is_socks:
        return _SocksConnector(proxy, limit=limit, socket_factory=socket_factory, secure=secure)
    return aiohttp.TCPConnector(limit=limit, socket_factory=socket_factory, ssl=secure)


def proxy_options(proxy: NetworkProxy | None) -> dict[str, Any]:
    """Returns the arguments of each request of a session with `new_connector`."""
    if proxy is None or proxy.is_socks:
        return {}
    return {"proxy": proxy.url, "proxy_headers": proxy.headers}


def cause_of(error: BaseException, proxy: NetworkProxy | None) -> str:
    """Returns why a connection failed, with the proxy and its setting if it goes through one."""
    if proxy is None:
        return _reason(error)
    # (For a request through an HTTP proxy, aiohttp only looks up the proxy's name.)
    if isinstance(error, aiohttp.ClientProxyConnectionError | aiohttp.ClientConnectorDNSError):
        return f"cannot connect to the proxy {proxy}: {_os_reason(error.os_error)}"
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return f"the proxy {proxy} answered {error.status} {error.message}"
    if isinstance(error, SocksRefusalError):
        return f"the proxy {proxy} {error}"
    return f"{_reason(error)}, through the proxy {proxy}"


def _reason(error: BaseException) -> str:
    """Returns the reason, of a refused connection without the address, which is known."""
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return f"cannot resolve the name {error.host}: {_os_reason(error.os_error)}"
    # (aiohttp's text of an error of TLS contains the address of an object.)
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return _tls_reason(error.certificate_error)
    if isinstance(error, aiohttp.ClientConnectorSSLError):
        return _tls_reason(error.os_error)
    if type(error) is aiohttp.ClientConnectorError and error.os_error.errno:
        return _os_reason(error.os_error)
    silence = "no answer in time" if isinstance(error, TimeoutError) else type(error).__name__
    return str(error) or silence


def _tls_reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate verify failed: {error.verify_message}"
    reason = str(getattr(error, "reason", None) or error).replace("_", " ").lower()
    if reason == "wrong version number":
        return "TLS failed: what answers there does not speak TLS"
    return f"TLS failed: {reason}"


def _os_reason(error: OSError) -> str:
    if isinstance(error, socket.gaierror) or not error.errno:
        return error.strerror or str(error)
    return os.strerror(error.errno).lower()


class _Unresolved(AbstractResolver):
    """Leaves names as they are, for the proxy to resolve."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return [ResolveResult(hostname=host, host=host, port=port, family=family, proto=0, flags=0)]

    async def close(self) -> None:
        pass


class _SocksConnector(aiohttp.TCPConnector):
    def __init__(
        self,
        proxy: NetworkProxy,
        *,
        limit: int,
        socket_factory: SocketFactory | None,
        secure: ssl.SSLContext | bool,
    ) -> None:
        if not hasattr(aiohttp.TCPConnector, _CONNECTS):
            raise RuntimeError(
                f"aiohttp {aiohttp.__version__} has no {_CONNECTS}: cannot use {proxy}"
            )
        super().__init__(limit=limit, resolver=_Unresolved(), ssl=secure)
        self._socks = proxy
        self._new_socket = socket_factory or (lambda info: socket.socket(*info[:3]))

    async def _wrap_create_connection(
        self,
        *args: Any,
        addr_infos: Any,
        req: Any,
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - aiohttp's
        client_error: type[Exception] = aiohttp.ClientConnectorError,
        **kwargs: Any,
    ) -> tuple[asyncio.Transport, ResponseHandler]:
        """Connects to the proxy, and by it to the server; arguments are aiohttp's."""
        del client_error
        loop = asyncio.get_running_loop()
        host, port, *_ = addr_infos[0][4]
        key = req.connection_key
        try:
            async with asyncio.timeout(timeout.sock_connect):
                made = await self._connected(loop, key)
                await self._negotiate(loop, made, host, port)
                return await loop.create_connection(*args, **kwargs, sock=made)
        except SocksError as error:
            raise SocksRefusalError(str(error)) from error
        except ssl.SSLCertVerificationError as error:
            raise aiohttp.ClientConnectorCertificateError(key, error) from error
        except ssl.SSLError as error:
            raise aiohttp.ClientConnectorSSLError(key, error) from error

    async def _connected(self, loop: asyncio.AbstractEventLoop, key: Any) -> socket.socket:
        """Returns a connection to the first of the proxy's addresses that accepts one."""
        failed = OSError("it has no address")
        try:
            addresses = await loop.getaddrinfo(
                self._socks.host, self._socks.port, type=socket.SOCK_STREAM
            )
        except OSError as error:
            raise aiohttp.ClientProxyConnectionError(key, error) from error
        for info in addresses:
            with contextlib.ExitStack() as stack:
                made = self._new_socket(info)
                stack.callback(made.close)
                made.setblocking(False)
                try:
                    await loop.sock_connect(made, info[4])
                except OSError as error:
                    failed = error
                    continue
                stack.pop_all()
                return made
        raise aiohttp.ClientProxyConnectionError(key, failed) from failed

    async def _negotiate(
        self, loop: asyncio.AbstractEventLoop, made: socket.socket, host: str, port: int
    ) -> None:
        steps = connect_steps(host, port, user=self._socks.user, password=self._socks.password)
        with contextlib.ExitStack() as stack:
            stack.callback(made.close)
            data, size = next(steps)
            while True:
                received = await _answer(loop, made, data, size)
                try:
                    data, size = steps.send(received)
                except StopIteration:
                    stack.pop_all()
                    return


async def _answer(
    loop: asyncio.AbstractEventLoop, made: socket.socket, data: bytes, size: int
) -> bytes:
    """Sends data, and returns an answer of `size` bytes."""
    received = b""
    with contextlib.suppress(ConnectionError):
        await loop.sock_sendall(made, data)
        while len(received) < size and (more := await loop.sock_recv(made, size - len(received))):
            received += more
    if len(received) < size:
        raise SocksError("closed the connection")
    return received
