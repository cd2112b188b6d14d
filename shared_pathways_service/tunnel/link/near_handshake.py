"""The near end's part of a carrier's handshake."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence

from shared_pathways_service.tunnel.link.carriers import Carrier
from shared_pathways_service.tunnel.link.link_end import LinkEnd
from shared_pathways_service.tunnel.link.link_frames import LinkViolation
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

__all__ = ["Approach", "Credentials", "SessionOver", "reason_of"]


class SessionOver(Exception):  # noqa: N818 - reads as what happened
    """The session has ended and cannot be resumed."""


class Credentials:
    """What each carrier of a session proves and expects.

    Args:
      token: The token of the proxy's tenant.

    Attributes:
      session: Random for each session.
      incarnation: The far end's; None before the first handshake.
    """

    def __init__(self, token: bytes) -> None:
        self.token = token
        self.session = secrets.token_bytes(ID_BYTES)
        self.incarnation: bytes | None = None


class Approach:
    """One carrier of a near end, from its handshake to its end.

    Args:
      end: Uses the carrier after its handshake.
      credentials: Of the session.
      on_accepted: Called after the handshake.

    Attributes:
      accepted: Done after the handshake, or failed.
      lost: Done when the carrier is lost; its result is the reason.
      round_trip_s: What the handshake took from our part to its answer.
    """

    def __init__(
        self, end: LinkEnd, credentials: Credentials, on_accepted: Callable[[], None]
    ) -> None:
        loop = asyncio.get_running_loop()
        self._end = end
        self._credentials = credentials
        self._on_accepted = on_accepted
        self._carrier: Carrier | None = None
        self._bytes = bytearray()
        self._asked: tuple[Greeting, Hello] | None = None
        self._asked_at = 0.0
        self.round_trip_s = 0.0
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

    def carrier_received(self, carrier: Carrier, parts: Sequence[memoryview]) -> None:
        """Takes the handshake, and then frames."""
        if self.accepted.done():
            self._end.received(carrier, parts)
            return
        self._bytes += b"".join(parts)
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
        reason = self._end.remove_carrier(carrier)
        reason = reason or (reason_of(error) if error else "the connection was closed")
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
            self._asked_at = time.monotonic()
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
        self.round_trip_s = time.monotonic() - self._asked_at
        self.accepted.set_result(None)
        self._end.add_carrier(carrier)
        self._on_accepted()
        if self._bytes:
            early = memoryview(bytes(self._bytes))
            self._bytes.clear()
            self._end.received(carrier, (early,))


def reason_of(error: Exception) -> str:
    """Returns why a dial or a carrier failed, in few words: a terminal shows them on one line."""
    said = getattr(error, "cause", None) or getattr(error, "strerror", None) or str(error)
    if not said and isinstance(error, TimeoutError):
        return "no answer in time"
    return str(said) or type(error).__name__
