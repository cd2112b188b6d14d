"""Frames of a link, without I/O.

A frame is 17 bytes of header (kind, connection, offset, length of the payload; big-endian) and a
payload. Frames of a connection's stream (OPEN, PART, WHOLE, END) have the offset of their first
byte in it; OPEN and END count as one byte.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator
from typing import NamedTuple

__all__ = [
    "HEADER_BYTES",
    "MAX_PAYLOAD_BYTES",
    "STREAM_KINDS",
    "Buffer",
    "Frame",
    "FrameKind",
    "LinkFrameReader",
    "LinkViolation",
    "frame_header",
    "length_in_stream",
]

Buffer = bytes | bytearray | memoryview

_HEADER = struct.Struct(">BIQI")
HEADER_BYTES = _HEADER.size
#: Limit of a frame's payload: a peer that announces more is refused before memory is allocated.
MAX_PAYLOAD_BYTES = 256 << 10


class LinkViolation(Exception):  # noqa: N818 - reads as what happened
    """The peer violated the protocol; the carrier cannot be used any further."""


class FrameKind(enum.IntEnum):
    """The kinds of frames.

    Attributes:
      OPEN: The near end accepted a connection; the payload is its `Protocol`.
      PART: Bytes of a connection that end inside a message of its protocol.
      WHOLE: Bytes of a connection that end with a message.
      END: The sender sends no more on this connection.
      ACK: All bytes before the offset were passed on, or wait only for the rest of their message;
        the payload is the offset (8 bytes) before which all bytes have arrived.
      RESET: The connection broke; the payload says why.
      SYNC: What the sender has of each connection, as the first frame on a carrier; the offset is
        the window that it accepts, 0: 8 MiB.
      PING: Asks for a PONG with the same offset.
      PONG: The answer.
      BYE: The session is over; the payload says why.
    """

    OPEN = 1
    PART = 2
    WHOLE = 3
    END = 4
    ACK = 5
    RESET = 6
    SYNC = 7
    PING = 8
    PONG = 9
    BYE = 10


STREAM_KINDS = frozenset((FrameKind.OPEN, FrameKind.PART, FrameKind.WHOLE, FrameKind.END))
_KINDS = {int(kind): kind for kind in FrameKind}


class Frame(NamedTuple):
    """A received frame."""

    kind: FrameKind
    connection: int
    offset: int
    payload: Buffer


def frame_header(kind: FrameKind, connection: int, offset: int, length: int) -> bytes:
    """Returns the header of a frame with `length` bytes of payload."""
    return _HEADER.pack(kind, connection, offset, length)


def length_in_stream(kind: FrameKind, payload: Buffer) -> int:
    """Returns how many bytes of a connection's stream a frame covers."""
    return len(payload) if kind in (FrameKind.PART, FrameKind.WHOLE) else 1


class LinkFrameReader:
    """Parses the bytes of a carrier, in portions of any size."""

    def __init__(self) -> None:
        self._header = bytearray()
        self._payload = bytearray()
        self._filled = 0
        self._begun: tuple[FrameKind, int, int] | None = None

    def feed(self, data: memoryview) -> Iterator[Frame]:
        """Parses a portion; consume the result before the next call.

        Yields:
          The complete frames, whose payloads are copies that the caller may keep.

        Raises:
          LinkViolation: The bytes are not a frame.
        """
        position, end = 0, len(data)
        while position < end:
            if self._begun is None:
                taken = data[position : position + HEADER_BYTES - len(self._header)]
                self._header += taken
                position += len(taken)
                if len(self._header) < HEADER_BYTES:
                    return
                self._begin()
            missing = len(self._payload) - self._filled
            taken = data[position : position + missing]
            self._payload[self._filled : self._filled + len(taken)] = taken
            self._filled += len(taken)
            position += len(taken)
            if self._filled == len(self._payload):
                assert self._begun is not None
                frame = Frame(*self._begun, self._payload)
                self._begun = None
                yield frame

    def _begin(self) -> None:
        number, connection, offset, length = _HEADER.unpack(self._header)
        self._header.clear()
        kind = _KINDS.get(number)
        if kind is None:
            raise LinkViolation(f"there is no frame of kind {number}")
        if length > MAX_PAYLOAD_BYTES:
            raise LinkViolation(f"a frame of {length} bytes is too long")
        self._begun = kind, connection, offset
        self._payload = bytearray(length)
        self._filled = 0
