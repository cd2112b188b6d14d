"""Takes over a connection of aiohttp once it has become a WebSocket.

aiohttp makes the connection (proxies, TLS, headers, errors). After the response, our own protocol
receives the bytes, because aiohttp's WebSocket copies every message several times. Only public
attributes of aiohttp are used.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping

import aiohttp

from shared_pathways_service.errors import TunnelError
from shared_pathways_service.tunnel.frames import SUBPROTOCOL
from shared_pathways_service.tunnel.websocket import accept_of, handshake_headers

__all__ = ["Dial", "Upgraded", "upgraded"]

#: Sends a GET for the port-forward with these headers in addition to its own and a valid token, and
#: returns the response with its connection open; the caller closes it. An error is final if it is
#: an `AccessDenied`, has a true ``is_final``, or is an `aiohttp.ClientResponseError` with a status
#: of 4xx except 408 and 429. Other `SharedPathwaysError`s, `aiohttp.ClientError`s and `OSError`s
#: are retried, and so are responses that are not a handshake.
Dial = Callable[[Mapping[str, str]], Awaitable[aiohttp.ClientResponse]]

_NONCE_BYTES = 16
_SWITCHING = 101


async def upgraded(dial: Dial) -> Upgraded:
    """Dials once.

    Raises:
      aiohttp.WSServerHandshakeError: The response is not a handshake for the sub-protocol.
      Exception: The errors of `dial`.
    """
    headers = handshake_headers(os.urandom(_NONCE_BYTES), SUBPROTOCOL)
    response = await dial(headers)
    if flaw := _problem(response, accept_of(headers)):
        response.close()
        raise aiohttp.WSServerHandshakeError(
            response.request_info, response.history, status=response.status, message=flaw
        )
    return Upgraded(response)


class Upgraded:
    """A connection whose bytes go to aiohttp until a protocol takes it over."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self._lost: Callable[[BaseException | None], None] = lambda _: None

    def hand_to(self, protocol: asyncio.BufferedProtocol) -> tuple[asyncio.Transport, bytes]:
        """Passes the connection to `protocol`, which calls `lost` when it is lost.

        It may have ended already, as for a port without a listener: early data is returned
        nevertheless, and `protocol` is notified of the end, perhaps twice.

        Returns:
          The connection, and the data that has arrived already.

        Raises:
          TunnelError: aiohttp has closed the connection.
        """
        connection = self._response.connection
        former = connection.protocol if connection else None
        if connection is None or former is None:
            cause = "the API server hung up after the handshake"
            raise TunnelError(cause, cause=cause)
        early = _Early()
        former.set_parser(early, None)
        self._lost = former.connection_lost
        transport = connection.transport
        if transport is None or (closed := former.closed) is None:
            asyncio.get_running_loop().call_soon(protocol.connection_lost, None)
            return _Gone(), bytes(early.data)
        transport.set_protocol(protocol)
        # The notification of its end may already be on its way to `former`.
        closed.add_done_callback(lambda end: protocol.connection_lost(_error_of(end)))
        return transport, bytes(early.data)

    def lost(self, error: BaseException | None) -> None:
        """Notifies aiohttp that the connection has ended, for which closing a session waits."""
        self._lost(error)

    def close(self) -> None:
        """Lets aiohttp close the connection."""
        self._response.close()


class _Gone(asyncio.Transport):
    """A connection that has ended."""

    def is_closing(self) -> bool:
        return True

    def abort(self) -> None:
        """Does nothing: the connection has ended."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Does nothing."""

    def pause_reading(self) -> None:
        """Does nothing."""

    def resume_reading(self) -> None:
        """Does nothing."""


class _Early:
    """Replaces a parser of aiohttp temporarily, to get the data that aiohttp buffers for it."""

    def __init__(self) -> None:
        self.data = bytearray()

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        self.data += data
        return False, b""

    def feed_eof(self) -> None:
        """Does nothing."""


def _error_of(end: asyncio.Future[None]) -> Exception | None:
    error = end.exception()
    return error if isinstance(error, Exception) else None


def _problem(response: aiohttp.ClientResponse, accept: str) -> str:
    headers = response.headers
    if response.status != _SWITCHING:
        return f"the answer is {response.status} {response.reason}, not a WebSocket"
    if headers.get("Upgrade", "").lower() != "websocket":
        return "the answer does not switch to a WebSocket"
    if headers.get("Sec-WebSocket-Accept") != accept:
        return "the answer belongs to another request"
    if headers.get("Sec-WebSocket-Protocol") != SUBPROTOCOL:
        return f"the server does not support {SUBPROTOCOL}"
    if "Sec-WebSocket-Extensions" in headers:
        return "the server uses an extension that was not offered"
    return ""
