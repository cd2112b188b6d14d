"""The two directions of one connection: a sender with a replay buffer, and a receiver in order.

A stream's bytes are numbered from 0. A piece is sent again, unchanged, when the carrier that took
it is lost before the peer acknowledged it; the receiver drops what it has already.
"""

from __future__ import annotations

import dataclasses
from collections import deque

from shared_pathways_service.tunnel.link.link_frames import (
    Buffer,
    Frame,
    FrameKind,
    LinkViolation,
    length_in_stream,
)

__all__ = ["MAX_PIECES", "Piece", "ReceiveStream", "SendStream"]

#: Pieces of one direction in a replay buffer, as small ones take more memory than their bytes.
MAX_PIECES = 16_384


@dataclasses.dataclass(slots=True, eq=False)
class Piece:
    """A part of a stream, as it is sent.

    Attributes:
      offset: Of its first byte.
      carrier: The carrier that took it last; None: it waits to be sent.
      sent_at: When, in seconds on a monotonic clock.
      is_paced: Whether it counts for `Pacing`.
    """

    kind: FrameKind
    offset: int
    payload: Buffer
    carrier: int | None = None
    sent_at: float = 0.0
    is_paced: bool = False

    @property
    def length(self) -> int:
        """Its length in the stream."""
        return length_in_stream(self.kind, self.payload)

    @property
    def end(self) -> int:
        """The offset after its last byte."""
        return self.offset + self.length


class SendStream:
    """Keeps each piece until the peer has passed it on.

    Attributes:
      unacked_bytes: Bytes in the replay buffer.
      has_ended: Whether `FrameKind.END` was appended.
    """

    def __init__(self) -> None:
        self._next = 0
        self._at_peer: deque[Piece] = deque()
        self._missing: deque[Piece] = deque()  # at the peer
        self._waiting: deque[Piece] = deque()  # those of `_missing` that no carrier has
        self.unacked_bytes = 0
        self.has_ended = False

    @property
    def is_acked(self) -> bool:
        """Whether the peer has passed on everything, the end included."""
        return self.has_ended and not self._missing and not self._at_peer

    @property
    def pieces(self) -> int:
        """The number of pieces in the replay buffer."""
        return len(self._at_peer) + len(self._missing)

    @property
    def has_waiting(self) -> bool:
        """Whether a piece waits to be sent."""
        return bool(self._waiting)

    def append(self, kind: FrameKind, payload: Buffer = b"") -> int:
        """Adds a piece, which must not change any more; returns its length."""
        piece = Piece(kind, self._next, payload)
        self._next += piece.length
        self.unacked_bytes += piece.length
        self.has_ended = kind is FrameKind.END
        self._missing.append(piece)
        self._waiting.append(piece)
        return piece.length

    def take(self, carrier: int, now: float) -> Piece:
        """Returns the next piece to send, which `carrier` takes."""
        piece = self._waiting.popleft()
        piece.carrier = carrier
        piece.sent_at = now
        return piece

    def received(self, offset: int) -> list[Piece]:
        """Records that the peer has all bytes before `offset`.

        Returns:
          The pieces that arrived with them, which carriers took.

        Raises:
          LinkViolation: Such bytes were never sent.
        """
        if offset > self._next:
            raise LinkViolation(f"byte {offset} is acknowledged, but was never sent")
        arrived = []
        while self._missing and self._missing[0].end <= offset:
            piece = self._missing.popleft()
            self._at_peer.append(piece)
            if piece.carrier is None:
                # (Lost with its carrier, though the peer had it. Those waiting are in order.)
                self._waiting.popleft()
            else:
                arrived.append(piece)
        return arrived

    def passed_on(self, offset: int) -> int:
        """Drops what the peer has passed on; it has received that before.

        Returns:
          How many bytes that are.
        """
        before = self.unacked_bytes
        while self._at_peer and self._at_peer[0].end <= offset:
            self.unacked_bytes -= self._at_peer.popleft().length
        return before - self.unacked_bytes

    def under_way(self) -> list[Piece]:
        """Returns the pieces that a carrier took and the peer may not have."""
        return [piece for piece in self._missing if piece.carrier is not None]

    def carrier_lost(self, carrier: int) -> list[Piece]:
        """Queues everything again that this carrier took; returns these pieces."""
        lost = [piece for piece in self._missing if piece.carrier == carrier]
        for piece in lost:
            piece.carrier = None
        if lost:
            self._waiting = deque(piece for piece in self._missing if piece.carrier is None)
        return lost


class ReceiveStream:
    """Puts received pieces in order.

    Args:
      window_bytes: How far ahead of the acknowledged bytes the peer may send.

    Attributes:
      received: All bytes before this offset have arrived.
      has_ended: Whether the peer's end has arrived, with everything before it.
      early_bytes: Bytes that have arrived before others that come before them.
    """

    def __init__(self, window_bytes: int) -> None:
        self.received = self.early_bytes = 0
        self.has_ended = False
        self._window_bytes = window_bytes
        self._early: dict[int, Frame] = {}

    def receive(self, frame: Frame, acked: int) -> list[Frame]:
        """Takes a frame.

        Args:
          frame: Of this stream.
          acked: The offset that was acknowledged last.

        Returns:
          The frames that are in order now.

        Raises:
          LinkViolation: It exceeds the window, or contradicts what has arrived.
        """
        end = frame.offset + length_in_stream(frame.kind, frame.payload)
        if end > acked + self._window_bytes:
            raise LinkViolation(f"connection {frame.connection} exceeds its window")
        if frame.offset < self.received:
            if end > self.received:
                raise LinkViolation(f"connection {frame.connection} was cut differently before")
            return []
        if len(self._early) >= 2 * MAX_PIECES:
            raise LinkViolation(f"connection {frame.connection} is cut into too many pieces")
        if frame.offset not in self._early:
            self._early[frame.offset] = frame
            self.early_bytes += len(frame.payload)
        in_order = []
        while (next_frame := self._early.pop(self.received, None)) is not None:
            self.early_bytes -= len(next_frame.payload)
            if self.has_ended:
                raise LinkViolation(f"connection {frame.connection} goes on after its end")
            self.received += length_in_stream(next_frame.kind, next_frame.payload)
            self.has_ended = next_frame.kind is FrameKind.END
            in_order.append(next_frame)
        return in_order
