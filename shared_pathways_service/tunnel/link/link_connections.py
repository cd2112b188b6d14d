"""What one end of a link knows of its connections."""

from __future__ import annotations

import dataclasses

from shared_pathways_service.tunnel.link.control_frames import ack_frame
from shared_pathways_service.tunnel.link.link_frames import Buffer, Frame, FrameKind, LinkViolation
from shared_pathways_service.tunnel.link.link_streams import ReceiveStream, SendStream

__all__ = ["MAX_MESSAGE_BYTES", "Connection", "KnownNumbers"]

#: A frame of HTTP/2 has at most 2**24 - 1 bytes, and 9 of header.
MAX_MESSAGE_BYTES = (16 << 20) + 64


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
    """

    send: SendStream
    receive: ReceiveStream
    parts: list[Buffer] = dataclasses.field(default_factory=list)
    parts_bytes: int = 0
    arrived_to: int = 0
    delivered_to: int = 0

    @property
    def acked(self) -> int:
        """The offset to acknowledge: what is passed on, or waits for the rest of its message."""
        is_delivered = self.delivered_to == self.arrived_to
        return self.receive.received if is_delivered else self.delivered_to

    @property
    def is_done(self) -> bool:
        """Whether both directions have ended and everything is passed on."""
        is_delivered = self.delivered_to == self.arrived_to
        return self.send.is_acked and self.receive.has_ended and is_delivered

    def ack(self, number: int) -> bytes:
        """Returns an ACK; `number` is the connection's."""
        return ack_frame(number, self.acked, self.receive.received)

    def assemble(self, frame: Frame) -> list[Buffer]:
        """Adds the bytes of a frame; returns the message that ends with them, or nothing.

        Raises:
          LinkViolation: The message is too long.
        """
        self.parts.append(frame.payload)
        self.parts_bytes += len(frame.payload)
        if self.parts_bytes > MAX_MESSAGE_BYTES:
            raise LinkViolation("a message of a connection is too long")
        if frame.kind is FrameKind.PART:
            return []
        whole, self.parts, self.parts_bytes = self.parts, [], 0
        return whole


class KnownNumbers:
    """The numbers of all connections that ever were, which come in any order.

    Attributes:
      all_to: All numbers up to this one.
    """

    def __init__(self) -> None:
        self.all_to = 0
        self._above: set[int] = set()

    def add(self, number: int) -> None:
        """Adds a number."""
        self._above.add(number)
        while self.all_to + 1 in self._above:
            self.all_to += 1
            self._above.remove(self.all_to)

    def __contains__(self, number: int) -> bool:
        return number <= self.all_to or number in self._above
