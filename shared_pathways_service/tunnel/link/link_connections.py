"""What one end of a link knows of its connections."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from shared_pathways_service.tunnel.link.control_frames import ack_frame
from shared_pathways_service.tunnel.link.link_events import (
    Arrived,
    Ended,
    LinkEvent,
    Opened,
    parse_protocol,
)
from shared_pathways_service.tunnel.link.link_frames import Buffer, Frame, FrameKind, LinkViolation
from shared_pathways_service.tunnel.link.link_streams import ReceiveStream, SendStream

__all__ = ["MAX_MESSAGE_BYTES", "Connection", "KnownNumbers"]

#: A frame of HTTP/2 has at most 2**24 - 1 bytes, and 9 of header.
MAX_MESSAGE_BYTES = (16 << 20) + 64
#: Numbers of connections that are awaited; each takes some memory.
_MOST_MISSING = 8192


@dataclasses.dataclass(slots=True, eq=False)
class Connection:
    """One connection.

    Attributes:
      send: What this end sends.
      receive: What the peer sends.
      parts: The begin of a message whose rest has not arrived.
      parts_bytes: Their length.
      arrived_to: The offset up to which messages were given to this end's owner.
      delivered_to: The offset up to which the owner has passed them on.
      acked: The offset that was acknowledged last: the peer may send a window from there.
    """

    send: SendStream
    receive: ReceiveStream
    parts: list[Buffer] = dataclasses.field(default_factory=list)
    parts_bytes: int = 0
    arrived_to: int = 0
    delivered_to: int = 0
    acked: int = 0

    @property
    def is_done(self) -> bool:
        """Whether both directions have ended and everything is passed on."""
        is_delivered = self.delivered_to == self.arrived_to
        return self.send.is_acked and self.receive.has_ended and is_delivered

    def acknowledge(self) -> int:
        """Returns the offset to acknowledge: what is passed on, or waits for the rest of a message.

        It stays when that rest has come and the message waits for the owner.
        """
        is_delivered = self.delivered_to == self.arrived_to
        offset = self.receive.received if is_delivered else self.delivered_to
        self.acked = max(self.acked, offset)
        return self.acked

    def ack(self, number: int) -> bytes:
        """Returns an ACK; `number` is the connection's."""
        return ack_frame(number, self.acknowledge(), self.receive.received)

    @property
    def held_bytes(self) -> int:
        """Bytes that have arrived and are not passed on."""
        return self.receive.received + self.receive.early_bytes - self.delivered_to

    @property
    def waiting_bytes(self) -> int:
        """Bytes that have arrived and are not acknowledged."""
        return self.receive.received + self.receive.early_bytes - self.acked

    def take_in_order(self, frame: Frame, *, is_near: bool) -> LinkEvent | None:
        """Takes the next frame of the peer's stream; returns what follows from it.

        Args:
          frame: The frame.
          is_near: Whether this end opens connections.

        Raises:
          LinkViolation: The message is too long, or the stream does not begin as it must.
        """
        number = frame.connection
        is_first = frame.offset == 0 and not is_near
        if is_first is not (frame.kind is FrameKind.OPEN):
            raise LinkViolation(f"connection {number} does not begin with its opening")
        if frame.kind is FrameKind.OPEN:
            self.arrived_to = self.delivered_to = 1
            return Opened(number, parse_protocol(frame.payload))
        if frame.kind is FrameKind.END:
            return Ended(number)
        self.parts.append(frame.payload)
        self.parts_bytes += len(frame.payload)
        if self.parts_bytes > MAX_MESSAGE_BYTES:
            raise LinkViolation(f"a message of connection {number} is too long")
        if frame.kind is FrameKind.PART:
            return None
        whole, self.parts, self.parts_bytes = self.parts, [], 0
        self.arrived_to = frame.offset + len(frame.payload)
        return Arrived(number, whole, self.arrived_to)


class KnownNumbers:
    """The numbers of all connections that ever were, which come in any order.

    Attributes:
      top: The highest of them.
    """

    def __init__(self) -> None:
        self.top = 0
        self._missing: set[int] = set()  # below it

    @property
    def all_to(self) -> int:
        """All numbers up to this one."""
        return min(self._missing) - 1 if self._missing else self.top

    def add(self, number: int) -> None:
        """Adds a number.

        Raises:
          LinkViolation: Too many before it are missing.
        """
        if len(self._missing) + number - self.top > _MOST_MISSING:
            raise LinkViolation("too many connections that were never opened are missing")
        self._missing.update(range(self.top + 1, number))
        self._missing.discard(number)
        self.top = max(self.top, number)

    def add_all_but(self, others: Collection[int], top: int) -> None:
        """Adds all numbers up to `top` but `others`, which may still come."""
        self._missing = {n for n in self._missing if n > top or n in others}
        self._missing.update(n for n in others if self.top < n <= top)
        self.top = max(self.top, top)

    def __contains__(self, number: int) -> bool:
        return number <= self.top and number not in self._missing
