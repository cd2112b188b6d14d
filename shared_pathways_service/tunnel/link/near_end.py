"""The near end of a link, in the agent: accepts local connections, and keeps carriers open.

Each carrier is dialled again, with jittered backoff, when it breaks. A local connection stays open
while there is none; it is closed when the session is over.
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import secrets
import socket
from collections.abc import Awaitable, Callable

from shared_pathways_service.runtime.backoff import Backoff
from shared_pathways_service.tunnel.link.carriers import Carrier, CarrierOwner
from shared_pathways_service.tunnel.link.http2_pings import PREFACE
from shared_pathways_service.tunnel.link.link_end import LinkEnd
from shared_pathways_service.tunnel.link.link_events import Opened, Protocol
from shared_pathways_service.tunnel.link.link_frames import LinkViolation
from shared_pathways_service.tunnel.link.link_state import Link
from shared_pathways_service.tunnel.link.local_sockets import Bridge
from shared_pathways_service.tunnel.link.token_handshake import (
    ANSWER_BYTES,
    GREETING_BYTES,
    ID_BYTES,
    Greeting,
    Hello,
    Result,
    check_answer,
    hello,
)

__all__ = ["DialCarrier", "LinkState", "NearEnd", "NearOptions", "SessionOver"]

#: Opens one carrier that reports to this owner. An error with a true ``is_final`` ends the session.
DialCarrier = Callable[[CarrierOwner], Awaitable[None]]

_FIRST_BACKOFF_S = 0.2
_FIRST_BYTES = 4096


class SessionOver(Exception):  # noqa: N818 - reads as what happened
    """The session has ended and cannot be resumed."""


class LinkState(enum.Enum):
    """Whether bytes can move."""

    CONNECTING = "connecting"
    UP = "up"
    LOST = "lost"
    OVER = "over"


@dataclasses.dataclass(frozen=True, kw_only=True)
class NearOptions:
    """Numbers of a near end.

    Attributes:
      carriers: Carriers at once.
      dial_s: Seconds for a dial with its handshake.
      max_backoff_s: Limit of the pause between two dials.
    """

    carriers: int = 2
    dial_s: float = 15.0
    max_backoff_s: float = 5.0


class NearEnd:
    """A session with a far end.

    Args:
      dial: Opens a carrier.
      token: The token of the proxy's tenant.
      on_state: Called with each change of the state and its reason.
      options: The numbers.

    Attributes:
      state: The present state.
      attempts: Failed dials since the last carrier.
    """

    def __init__(
        self,
        dial: DialCarrier,
        token: bytes,
        *,
        on_state: Callable[[LinkState, str], object],
        options: NearOptions | None = None,
    ) -> None:
        self._dial = dial
        self._on_state = on_state
        self._options = options or NearOptions()
        self._loop = asyncio.get_running_loop()
        self._end = LinkEnd(
            Link(is_near=True), on_opened=self._refuse_opened, on_over=self._on_over
        )
        self._credentials = _Credentials(token)
        self._dialers: list[asyncio.Task[None]] = []
        self._greeters: set[asyncio.Task[None]] = set()
        self.state = LinkState.CONNECTING
        self.attempts = 0
        self.last_error = ""

    def start(self) -> None:
        """Begins to dial."""
        self._dialers = [
            self._loop.create_task(self._keep_carrier()) for _ in range(self._options.carriers)
        ]

    def accept(self, local: socket.socket) -> None:
        """Takes over a connected, non-blocking local socket."""
        greeter = self._loop.create_task(self._accept(local))
        self._greeters.add(greeter)
        greeter.add_done_callback(self._greeters.discard)

    async def close(self) -> None:
        """Ends the session."""
        self._end.close("the near end has closed the session")
        tasks = [*self._dialers, *self._greeters]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ---- local connections

    async def _accept(self, local: socket.socket) -> None:
        try:
            # The client of HTTP/2 speaks first, as does every client here.
            early = await self._loop.sock_recv(local, _FIRST_BYTES)
        except BaseException:
            local.close()
            raise
        protocol = Protocol.HTTP2 if PREFACE.startswith(early[: len(PREFACE)]) else Protocol.BYTES
        is_open = bool(early) and self.state is not LinkState.OVER
        connection = self._end.link.open(protocol) if is_open else None
        if connection is None:
            local.close()
            return
        bridge = Bridge(self._end.link, connection, protocol, local, self._end, is_client=True)
        self._end.add_bridge(connection, bridge, early)

    def _refuse_opened(self, event: Opened) -> None:
        self._on_over(f"the far end opened connection {event.connection}, which only we do")

    # ---- carriers

    async def _keep_carrier(self) -> None:
        backoff = Backoff(first_s=_FIRST_BACKOFF_S, longest_s=self._options.max_backoff_s)
        while self.state is not LinkState.OVER:
            approach = _Approach(self._end, self._credentials, self._on_carrier)
            try:
                async with asyncio.timeout(self._options.dial_s):
                    await self._dial(approach)
                    await approach.accepted
                backoff.reset()
                self.last_error = await approach.lost
            except (SessionOver, LinkViolation) as error:
                self._on_over(str(error))
            except Exception as error:  # noqa: BLE001 - whatever a dial raises, it is tried again
                if getattr(error, "is_final", False):
                    self._on_over(str(error))
                self.attempts += 1
                self.last_error = str(error) or type(error).__name__
            finally:
                approach.close()
            self._note_loss()
            await asyncio.sleep(backoff.next_pause_s())

    def _on_carrier(self) -> None:
        self.attempts = 0
        self._set_state(LinkState.UP, "")

    def _note_loss(self) -> None:
        if self.state is LinkState.UP and not self._end.carriers:
            self._set_state(LinkState.LOST, self.last_error)

    def _on_over(self, reason: str) -> None:
        if self.state is not LinkState.OVER:
            self._set_state(LinkState.OVER, reason)
            self._end.close(reason)

    def _set_state(self, state: LinkState, reason: str) -> None:
        if state is not self.state and self.state is not LinkState.OVER:
            self.state = state
            self._on_state(state, reason)


class _Credentials:
    """What each carrier of a session proves and expects."""

    def __init__(self, token: bytes) -> None:
        self.token = token
        self.session = secrets.token_bytes(ID_BYTES)
        self.incarnation: bytes | None = None


class _Approach:
    """One carrier, from its handshake to its end; `close` cancels what still waits."""

    def __init__(
        self, end: LinkEnd, credentials: _Credentials, on_accepted: Callable[[], None]
    ) -> None:
        loop = asyncio.get_running_loop()
        self._end = end
        self._credentials = credentials
        self._on_accepted = on_accepted
        self._carrier: Carrier | None = None
        self._bytes = bytearray()
        self._asked: tuple[Greeting, Hello] | None = None
        self.accepted: asyncio.Future[None] = loop.create_future()
        self.lost: asyncio.Future[str] = loop.create_future()

    def close(self) -> None:
        """Closes the carrier, and drops errors of waits that were given up."""
        if self._carrier is not None:
            self._carrier.close()
        self.accepted.cancel()
        self.lost.cancel()

    # ---- a carrier's owner

    def carrier_opened(self, carrier: Carrier) -> None:
        """Waits for the far end's greeting."""
        self._carrier = carrier

    def carrier_received(self, carrier: Carrier, data: memoryview) -> None:
        """Takes the handshake, and then frames."""
        if self.accepted.done():
            self._end.received(carrier, data)
            return
        self._bytes += data
        try:
            self._shake_hands(carrier)
        except (LinkViolation, SessionOver, ConnectionError) as error:
            if not self.accepted.done():
                self.accepted.set_exception(error)
            carrier.close()

    def carrier_writable(self, carrier: Carrier) -> None:  # noqa: ARG002
        """Sends on."""
        self._end.move()

    def carrier_lost(self, carrier: Carrier, error: Exception | None) -> None:
        """Reports the end."""
        reason = str(error) if error else "the connection was closed"
        self._end.remove_carrier(carrier)
        if not self.accepted.done():
            self.accepted.set_exception(ConnectionError(reason))
        if not self.lost.done():
            self.lost.set_result(reason)

    def _shake_hands(self, carrier: Carrier) -> None:
        credentials = self._credentials
        if self._asked is None and len(self._bytes) >= GREETING_BYTES:
            greeting = Greeting.decode(bytes(self._bytes[:GREETING_BYTES]))
            del self._bytes[:GREETING_BYTES]
            mine = Hello(
                credentials.session, credentials.incarnation is None, secrets.token_bytes(ID_BYTES)
            )
            self._asked = greeting, mine
            carrier.write([hello(credentials.token, greeting, mine)])
        if self._asked is not None and len(self._bytes) >= ANSWER_BYTES:
            greeting, mine = self._asked
            result = check_answer(
                credentials.token, greeting, mine, bytes(self._bytes[:ANSWER_BYTES])
            )
            del self._bytes[:ANSWER_BYTES]
            self._accept(carrier, greeting, result)

    def _accept(self, carrier: Carrier, greeting: Greeting, result: Result) -> None:
        credentials = self._credentials
        if result is Result.TOO_MANY:
            raise ConnectionError("the far end has too many sessions or carriers")
        if credentials.incarnation not in (None, greeting.incarnation):
            raise SessionOver("the far end was restarted, and with it the session's data is lost")
        if result is Result.UNKNOWN:
            raise SessionOver("the far end has given the session up, as no connection came in time")
        credentials.incarnation = greeting.incarnation
        self.accepted.set_result(None)
        self._end.add_carrier(carrier)
        self._on_accepted()
        if self._bytes:
            early = memoryview(bytes(self._bytes))
            self._bytes.clear()
            self._end.received(carrier, early)
