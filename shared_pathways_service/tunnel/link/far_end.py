"""The far end of a link, beside the proxy: accepts carriers, connects connections with the proxy.

A session outlives its carriers for `keep_s` seconds; the proxy's sockets stay open meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import secrets
import socket
from collections.abc import Callable, Sequence

from shared_pathways_service.patience import timeouts
from shared_pathways_service.patience.factor import Timeout
from shared_pathways_service.patience.within import within
from shared_pathways_service.runtime.listeners import listen
from shared_pathways_service.tunnel.link.buffer_lookups import BufferLookups
from shared_pathways_service.tunnel.link.carriers import Carrier, TcpCarrier
from shared_pathways_service.tunnel.link.early_copies import EarlyCopies
from shared_pathways_service.tunnel.link.link_end import LinkEnd
from shared_pathways_service.tunnel.link.link_events import Opened, Protocol
from shared_pathways_service.tunnel.link.link_state import Link
from shared_pathways_service.tunnel.link.local_sockets import Bridge
from shared_pathways_service.tunnel.link.token_handshake import (
    HELLO_BYTES,
    ID_BYTES,
    Greeting,
    Hello,
    Result,
    answer,
    check_hello,
)

__all__ = ["FarCounters", "FarEnd", "FarOptions"]

_BACKLOG = 64

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FarOptions:
    """Limits of a far end.

    Attributes:
      keep_s: Seconds for which a session without a carrier is kept.
      hello: The time for a handshake.
      max_sessions: Sessions at once: one per process that uses the proxy.
      max_carriers: Carriers of one session.
      max_handshakes: Handshakes at once, as anybody may begin one; for one more, the oldest ends.
    """

    keep_s: float = 600.0
    hello: Timeout = timeouts.LINK_HELLO
    max_sessions: int = 8
    max_carriers: int = 8
    max_handshakes: int = 32


@dataclasses.dataclass(slots=True)
class FarCounters:
    """What happened so far.

    Attributes:
      accepted: Carriers whose handshake succeeded.
      refused: Carriers that did not prove in time that they know the token.
      unknown: Carriers of sessions that this end does not know.
      expired: Sessions that were given up, as no carrier came in time.
    """

    accepted: int = 0
    refused: int = 0
    unknown: int = 0
    expired: int = 0


class FarEnd:
    """Serves carriers.

    Args:
      token: The token of the proxy's tenant.
      connect: Begins to connect with the proxy; returns a non-blocking socket (`connectors`).
      options: The limits.

    Attributes:
      counters: What happened so far.
    """

    def __init__(
        self, token: bytes, connect: Callable[[], socket.socket], options: FarOptions | None = None
    ) -> None:
        self.counters = FarCounters()
        self.options = options or FarOptions()
        self.incarnation = secrets.token_bytes(ID_BYTES)
        self.token = token
        self._connect = connect
        self._sessions: dict[bytes, _Session] = {}
        self._entrances: set[_Entrance] = set()
        self._entrance_left = asyncio.Event()
        self._handshakes: dict[_Entrance, None] = {}  # the oldest first
        self._server: asyncio.Server | None = None

    @property
    def sessions(self) -> int:
        """The number of sessions."""
        return len(self._sessions)

    @property
    def carriers(self) -> int:
        """The number of carriers of all sessions."""
        return sum(session.carriers for session in self._sessions.values())

    async def start(self, host: str, port: int) -> int:
        """Listens; returns the port.

        Raises:
          OSError: The port is taken.
        """
        loop = asyncio.get_running_loop()
        listener = listen(host, port, backlog=_BACKLOG)
        # (With the backlog of the listener: asyncio calls listen() again.)
        self._server = await loop.create_server(self._accept, sock=listener, backlog=_BACKLOG)
        return int(listener.getsockname()[1])

    async def close(self, reason: str = "the far end was stopped") -> None:
        """Stops listening, and ends every session.

        What the proxy has sent before is passed on, if that takes no longer than some seconds.

        Args:
          reason: For the near ends.
        """
        if self._server is not None:
            self._server.close()
        for entrance in list(self._handshakes):
            entrance.carrier.close()
        ends = [session.end_of_link for session in self._sessions.values()]
        with contextlib.suppress(TimeoutError):
            async with within(timeouts.LINK_DRAIN):
                await asyncio.gather(*(end.drain() for end in ends))
        for session in list(self._sessions.values()):
            session.end(reason)
        await asyncio.gather(*(end.wait_closed() for end in ends))
        for entrance in list(self._entrances):
            entrance.carrier.close()
        # Those that finish take some seconds. (Before Python 3.12, `Server.wait_closed` does not
        # wait for them, and what was accepted as the server closed never becomes a connection.)
        with contextlib.suppress(TimeoutError):
            async with within(timeouts.LINK_DRAIN):
                while any(entrance.carrier.was_connected for entrance in self._entrances):
                    self._entrance_left.clear()
                    await self._entrance_left.wait()
        if self._server is not None:
            await self._server.wait_closed()

    def enter(self, hello: Hello) -> tuple[Result, _Session | None]:
        """Decides about a carrier whose proof is right."""
        session = self._sessions.get(hello.session)
        if session is None:
            if not hello.is_new:
                self.counters.unknown += 1
                return Result.UNKNOWN, None
            if len(self._sessions) >= self.options.max_sessions:
                return Result.TOO_MANY, None
            session = _Session(self, hello.session, self._connect)
            self._sessions[hello.session] = session
        elif session.carriers >= self.options.max_carriers:
            return Result.TOO_MANY, None
        self.counters.accepted += 1
        return Result.ACCEPTED, session

    def end_handshake(self, entrance: _Entrance) -> None:
        """Records that a handshake has succeeded or failed."""
        self._handshakes.pop(entrance, None)

    def forget_entrance(self, entrance: _Entrance) -> None:
        """Forgets a carrier."""
        self.end_handshake(entrance)
        self._entrances.discard(entrance)
        self._entrance_left.set()

    def forget_session(self, name: bytes) -> None:
        """Forgets a session that has ended."""
        self._sessions.pop(name, None)

    def _accept(self) -> TcpCarrier:
        if len(self._handshakes) >= self.options.max_handshakes:
            # Not the new one: whoever opens many and sends nothing would keep everybody out.
            next(iter(self._handshakes)).refuse()
        entrance = _Entrance(self)
        self._entrances.add(entrance)
        self._handshakes[entrance] = None
        return entrance.carrier


class _Entrance:
    """One carrier, from its handshake on."""

    def __init__(self, far: FarEnd) -> None:
        self._far = far
        self.carrier = TcpCarrier(self)
        self.session: _Session | None = None
        self._greeting = Greeting(far.incarnation, secrets.token_bytes(ID_BYTES))
        self._hello = bytearray()
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(far.options.hello.s, self.refuse)

    def refuse(self) -> None:
        """Ends a carrier that has not proved that it knows the token."""
        self._far.counters.refused += 1
        self._end_handshake()
        self.carrier.close()

    # ---- a carrier's owner

    def carrier_opened(self, carrier: Carrier) -> None:
        """Greets."""
        carrier.write([self._greeting.encode()])

    def carrier_received(self, carrier: Carrier, parts: Sequence[memoryview]) -> None:
        """Takes the handshake, and then frames."""
        if self.session is not None:
            self.session.end_of_link.received(carrier, parts)
            return
        data = memoryview(b"".join(parts))
        missing = HELLO_BYTES - len(self._hello)
        self._hello += data[:missing]
        if len(self._hello) == HELLO_BYTES:
            self._enter(carrier, data[missing:])

    def carrier_writable(self, carrier: Carrier) -> None:  # noqa: ARG002
        """Sends on."""
        if self.session is not None:
            self.session.end_of_link.move()

    def carrier_lost(self, carrier: Carrier, error: Exception | None) -> None:  # noqa: ARG002
        """Leaves the session."""
        self._deadline.cancel()
        self._far.forget_entrance(self)
        if self.session is not None:
            self.session.carrier_lost(carrier)

    def _enter(self, carrier: Carrier, more: memoryview) -> None:
        far, greeting = self._far, self._greeting
        hello = check_hello(far.token, greeting, bytes(self._hello))
        if hello is None:
            self.refuse()
            return
        self._end_handshake()
        result, session = far.enter(hello)
        carrier.write([answer(far.token, greeting, hello, result)])
        if session is None:
            carrier.finish()
            return
        self.session = session
        session.add_carrier(carrier)
        if more:
            session.end_of_link.received(carrier, (more,))

    def _end_handshake(self) -> None:
        self._deadline.cancel()
        self._far.end_handshake(self)


class _Session:
    """A near end's session."""

    def __init__(self, far: FarEnd, name: bytes, connect: Callable[[], socket.socket]) -> None:
        self._far = far
        self._name = name
        self._connect = connect
        self._loop = asyncio.get_running_loop()
        self._expiry: asyncio.TimerHandle | None = None
        self._is_over = False
        self._lookups = BufferLookups(connect)
        self.end_of_link = LinkEnd(Link(is_near=False), on_opened=self._on_opened, on_over=self.end)

    @property
    def carriers(self) -> int:
        return self.end_of_link.carriers

    def add_carrier(self, carrier: Carrier) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        self.end_of_link.add_carrier(carrier)

    def carrier_lost(self, carrier: Carrier) -> None:
        self.end_of_link.remove_carrier(carrier)
        if not self.carriers and not self._is_over:
            self._expiry = self._loop.call_later(self._far.options.keep_s, self._expire)

    def end(self, reason: str) -> None:
        """Ends the session: its connections with the proxy are closed."""
        if self._is_over:
            return
        self._is_over = True
        self._far.forget_session(self._name)
        if self._expiry is not None:
            self._expiry.cancel()
        self._lookups.close()
        self.end_of_link.close(reason)

    def _expire(self) -> None:
        self._far.counters.expired += 1
        _log.warning("a session without a carrier for %g s ends", self._far.options.keep_s)
        self.end("the session has expired")

    def _on_opened(self, event: Opened) -> None:
        link = self.end_of_link.link
        try:
            local = self._connect()
        except OSError as error:
            reason = error.strerror or str(error)
            link.reset(event.connection, f"the proxy does not accept connections: {reason}")
            return
        is_http2 = event.protocol is Protocol.HTTP2
        bridge = Bridge(
            *(link, event.connection, event.protocol, local, self.end_of_link),
            is_client=False,
            passes=EarlyCopies(self._lookups.look_up) if is_http2 else None,
        )
        self.end_of_link.add_bridge(event.connection, bridge)
