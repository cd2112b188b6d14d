"""Frames of HTTP/2 and messages of gRPC in them, as far as early buffers need them.

Headers are only searched for literal texts: an end that offers a peer a header table of 0 bytes
gets no others from gRPC (RFC 7541, section 4.2), and needs no state for them.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import NamedTuple

from shared_pathways_service.tunnel.link.http2_pings import PREFACE
from shared_pathways_service.tunnel.link.link_frames import Buffer

__all__ = [
    "ACK",
    "END_HEADERS",
    "END_STREAM",
    "NO_HEADER_TABLE",
    "FrameReader",
    "FrameType",
    "MessageReader",
    "Part",
    "encode_frame",
    "encode_message",
    "literal",
]

ACK = END_STREAM = 0x1
END_HEADERS = 0x4
#: The setting SETTINGS_HEADER_TABLE_SIZE with the value 0.
NO_HEADER_TABLE = b"\x00\x01\x00\x00\x00\x00"

_HEAD_BYTES = 9
_MESSAGE_HEAD_BYTES = 5
#: Longer frames are passed on in parts.
_WHOLE_BYTES = 16 << 10


class FrameType(enum.IntEnum):
    """Types of frames (RFC 9113, section 6)."""

    DATA = 0
    HEADERS = 1
    RST_STREAM = 3
    SETTINGS = 4
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    #: Our own: a receiver ignores frames of unknown types (section 4.1).
    EARLY = 0xE9


class Part(NamedTuple):
    """A frame, or a part of a long one.

    Attributes:
      type: Of the frame; -1: of the preface.
      raw: Its bytes, as they were read.
      is_last: Whether the frame ends with it.
    """

    type: int
    flags: int
    stream: int
    payload: Buffer
    raw: Buffer
    is_last: bool

    @property
    def is_whole(self) -> bool:
        """Whether it is a whole frame."""
        return self.is_last and len(self.raw) > len(self.payload)


class FrameReader:
    """Cuts bytes into frames.

    Args:
      has_preface: Whether it is the client's direction.
    """

    def __init__(self, *, has_preface: bool) -> None:
        self._begun = bytearray()
        self._head = (-1, 0, 0)
        self._left = len(PREFACE) if has_preface else 0

    def take_begun(self) -> bytes:
        """Returns the begin of a frame whose rest was not read, and forgets it."""
        begun = bytes(self._begun)
        self._begun.clear()
        return begun

    def read(self, data: Buffer) -> Iterator[Part]:
        """Reads on; the begin of a frame is kept for the next call."""
        view = memoryview(data)
        if self._begun:
            self._begun += view
            view = memoryview(bytes(self._begun))
            self._begun.clear()
        position = 0
        while position < len(view):
            if self._left:
                piece = view[position : position + self._left]
                self._left -= len(piece)
                position += len(piece)
                yield Part(*self._head, piece, piece, not self._left)
                continue
            head = view[position : position + _HEAD_BYTES]
            if len(head) < _HEAD_BYTES:
                break
            length = head[0] << 16 | head[1] << 8 | head[2]
            end = position + _HEAD_BYTES + length
            stream = int.from_bytes(head[5:9], "big") & 0x7FFFFFFF
            if length > _WHOLE_BYTES:
                self._head, self._left = (head[3], head[4], stream), length
                yield Part(*self._head, b"", head, is_last=False)
                position += _HEAD_BYTES
            elif end <= len(view):
                payload = view[position + _HEAD_BYTES : end]
                yield Part(head[3], head[4], stream, payload, view[position:end], is_last=True)
                position = end
            else:
                break
        self._begun += view[position:]


class MessageReader:
    """Reads messages from the DATA of a stream.

    Args:
      limit_bytes: Longer messages are skipped.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        #: Messages that were skipped.
        self.skipped = 0
        self._begun = bytearray()
        self._skip = 0

    def read(self, payload: Buffer) -> list[bytes]:
        """Reads on; returns the messages that end."""
        messages: list[bytes] = []
        view = memoryview(payload)
        while True:
            skipped = min(self._skip, len(view))
            self._skip -= skipped
            view = view[skipped:]
            if len(self._begun) < _MESSAGE_HEAD_BYTES:
                view = self._take(view, _MESSAGE_HEAD_BYTES)
            if len(self._begun) < _MESSAGE_HEAD_BYTES:
                return messages
            length = int.from_bytes(self._begun[1:_MESSAGE_HEAD_BYTES], "big")
            if length > self.limit_bytes or self._begun[0]:
                # (The first byte says that it is compressed.)
                self.skipped += 1
                self._skip = length
                self._begun.clear()
                continue
            view = self._take(view, _MESSAGE_HEAD_BYTES + length)
            if len(self._begun) < _MESSAGE_HEAD_BYTES + length:
                return messages
            messages.append(bytes(self._begun[_MESSAGE_HEAD_BYTES:]))
            self._begun.clear()

    def _take(self, view: memoryview, until: int) -> memoryview:
        """Keeps bytes until there are so many; returns the rest."""
        missing = until - len(self._begun)
        self._begun += view[:missing]
        return view[missing:]


def encode_frame(kind: FrameType, flags: int, stream: int, payload: Buffer = b"") -> bytes:
    """Returns a frame."""
    head = len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big")
    return head + payload


def encode_message(message: bytes) -> bytes:
    """Returns a message of gRPC, not compressed."""
    return b"\x00" + len(message).to_bytes(4, "big") + message


def literal(name: bytes | int, value: bytes) -> bytes:
    """Returns a header field that no table holds (RFC 7541, section 6.2.2).

    Args:
      name: Or its index in the static table, below 15.
      value: Both have less than 127 bytes.
    """
    head = bytes((name,)) if isinstance(name, int) else b"\x00" + bytes((len(name),)) + name
    return head + bytes((len(value),)) + value
