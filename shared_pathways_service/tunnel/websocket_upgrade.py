"""A connection of aiohttp's, taken over once it has become a WebSocket.

aiohttp makes the connection (proxies, TLS, headers, errors); from the answer on its bytes go to a
protocol of ours, because aiohttp's own WebSocket copies every message several times. Only public
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

#: Sends a GET for the port-forward with these headers beside its own and a token that is valid now,
#: and returns the answer, its connection still open; whoever called closes it. An error is final
#: when it is an `AccessDenied`, has a true ``is_final``, or is an `aiohttp.ClientResponseError`
#: with a status of 4xx but 408 and 429; other `SharedPathwaysError`s, `aiohttp.ClientError`s and
#: `OSError`s are tried again. So are answers that are returned and are no handshake.
Dial = Callable[[Mapping[str, str]], Awaitable[aiohttp.ClientResponse]]

_NONCE_BYTES = 16
_SWITCHING = 101


async def upgraded(dial: Dial) -> Upgraded:
    """Dials once.

    Raises:
      aiohttp.WSServerHandshakeError: The answer is no handshake for the sub-protocol.
      Exception: What `dial` raises.
    """
    headers = handshake_headers(os.urandom(_NONCE_BYTES), SUBPROTOCOL)
    response = await dial(headers)
    if flaw := _flaw(response, accept_of(headers)):
        response.close()
        raise aiohttp.WSServerHandshakeError(
            response.request_info, response.history, status=response.status, message=flaw
        )
    return Upgraded(response)


class Upgraded:
    """The connection; its bytes are aiohttp's until a protocol takes them."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self._lost: Callable[[BaseException | None], None] = lambda _: None

    def hand_to(self, protocol: asyncio.BufferedProtocol) -> tuple[asyncio.Transport, bytes]:
        """Gives the connection to `protocol`, which tells `lost` when it loses it.

        It may have ended by now, as it does for a port that nobody listens on: what came before is
        returned all the same, and `protocol` hears of the end, perhaps twice.

        Returns:
          The connection, and what has arrived already.

        Raises:
          TunnelError: aiohttp has given it up.
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
        # The news of its end may be on its way to `former` already.
        closed.add_done_callback(lambda end: protocol.connection_lost(_error_of(end)))
        return transport, bytes(early.data)

    def lost(self, error: BaseException | None) -> None:
        """Tells aiohttp that the connection has ended: closing a client session waits for it."""
        self._lost(error)

    def close(self) -> None:
        """Gives the connection up; aiohttp closes it."""
        self._response.close()


class _Gone(asyncio.Transport):
    """A connection that has ended."""

    def is_closing(self) -> bool:
        return True

    def abort(self) -> None:
        """It has ended."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is written."""

    def pause_reading(self) -> None:
        """Nothing comes."""

    def resume_reading(self) -> None:
        """Nothing comes."""


class _Early:
    """Stands in for a parser of aiohttp's, to get what that holds back until there is one."""

    def __init__(self) -> None:
        self.data = bytearray()

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        self.data += data
        return False, b""

    def feed_eof(self) -> None:
        """Nothing is waited for."""


def _error_of(end: asyncio.Future[None]) -> Exception | None:
    error = end.exception()
    return error if isinstance(error, Exception) else None


def _flaw(response: aiohttp.ClientResponse, accept: str) -> str:
    headers = response.headers
    if response.status != _SWITCHING:
        return f"the answer is {response.status} {response.reason}, no WebSocket"
    if headers.get("Upgrade", "").lower() != "websocket":
        return "the answer does not switch to a WebSocket"
    if headers.get("Sec-WebSocket-Accept") != accept:
        return "the answer is to another request"
    if headers.get("Sec-WebSocket-Protocol") != SUBPROTOCOL:
        return f"the server does not speak {SUBPROTOCOL}"
    if "Sec-WebSocket-Extensions" in headers:
        return "the server uses an extension that was not offered"
    return ""
