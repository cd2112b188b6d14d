"""Reads and writes WebSocket frames (RFC 6455) as a client, without I/O and without copies.

Payloads are passed on as they arrive, in pieces of the caller's buffer, and are masked in place: at
some hundred megabytes per second every copy is noticeable.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

__all__ = [
    "BINARY",
    "CLOSE",
    "KEY_BYTES",
    "PING",
    "PONG",
    "TEXT",
    "FrameBuffer",
    "FrameReader",
    "Piece",
    "WebSocketViolation",
    "accept_of",
    "control_frame",
    "handshake_headers",
]

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
#: Bytes of a masking key.
KEY_BYTES = 4

_DATA = (CONTINUATION, TEXT, BINARY)
_CONTROLS = (CLOSE, PING, PONG)
_CONTROL_BYTES = 125
#: Values in place of a length: two or eight bytes with the length follow.
_TWO_BYTES, _EIGHT_BYTES = 126, 127
_FINAL, _RESERVED, _OPCODE, _MASKED = 0x80, 0x70, 0x0F, 0x80
_LONGEST_HEADER = 10
_WORD = 8
#: A constant of RFC 6455, section 1.3.
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class WebSocketViolation(Exception):  # noqa: N818 - reads as what happened
    """The server violated RFC 6455."""


def handshake_headers(nonce: bytes, subprotocol: str) -> dict[str, str]:
    """Returns the headers of a GET request for a WebSocket.

    Args:
      nonce: 16 random bytes.
      subprotocol: The requested sub-protocol.
    """
    return {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": base64.b64encode(nonce).decode(),
        "Sec-WebSocket-Protocol": subprotocol,
    }


def accept_of(request: Mapping[str, str]) -> str:
    """Returns the ``Sec-WebSocket-Accept`` that answers these headers."""
    given = request["Sec-WebSocket-Key"].encode()
    digest = hashlib.sha1(given + _GUID, usedforsecurity=False).digest()
    return base64.b64encode(digest).decode()


class Piece(NamedTuple):
    """A part of a message as it arrived; a control frame is always complete.

    Attributes:
      opcode: The message's opcode, also for continuations.
      payload: A view of the caller's data.
      begins: Whether it is the first of its message.
      ends: Whether it is the last one; an empty piece if only the last frame says so.
    """

    opcode: int
    payload: memoryview
    begins: bool
    ends: bool


class FrameReader:
    """Parses a server's stream in portions of any size."""

    def __init__(self) -> None:
        self._header = bytearray()  # the begin of a header that continues in the next portion
        self._control = bytearray()  # the begin of a control frame's payload, likewise
        self._in_frame = False
        self._left = 0
        self._frame = self._message = CONTINUATION
        self._is_final = True
        self._begins = True

    def feed(self, data: memoryview) -> Iterator[Piece]:
        """Parses a portion of the stream; consume the result before the next call.

        Yields:
          The pieces in it, in order.

        Raises:
          WebSocketViolation: The server violates the protocol; no more can be read.
        """
        position, end = 0, len(data)
        while position < end or (self._in_frame and not self._left):
            if not self._in_frame:
                position = self._take_header(data, position)
                continue
            payload = data[position : position + self._left]
            position += len(payload)
            self._left -= len(payload)
            self._in_frame = self._left > 0
            if self._frame in _CONTROLS:
                yield from self._take_control(payload)
                continue
            ends = self._is_final and not self._left
            if payload or ends:
                yield Piece(self._message, payload, self._begins, ends)
                self._begins = False

    def _take_header(self, data: memoryview, position: int) -> int:
        """Returns the position after the header; the frame has begun if the header was complete."""
        if not self._header:
            size = self._begin(data[position : position + _LONGEST_HEADER])
            if size:
                return position + size
        # Only at the boundary of two portions, so byte by byte is fast enough.
        self._header.append(data[position])
        if self._begin(self._header):
            self._header.clear()
        return position + 1

    def _begin(self, head: memoryview | bytearray) -> int:
        """Returns the length of the header at the start of `head`, 0 if it is incomplete."""
        if len(head) < 2:
            return 0
        first, length = head[0], head[1]
        if first & _RESERVED:
            raise WebSocketViolation("a reserved bit is set, though no extension was agreed on")
        if length & _MASKED:
            raise WebSocketViolation("a server's frame is masked")
        size = 2
        if length >= _TWO_BYTES:
            size = 4 if length == _TWO_BYTES else _LONGEST_HEADER
            if len(head) < size:
                return 0
            length = int.from_bytes(head[2:size], "big")
        opcode, is_final = first & _OPCODE, bool(first & _FINAL)
        if opcode in _CONTROLS:
            if length > _CONTROL_BYTES or not is_final:
                raise WebSocketViolation("a control frame is too long or in fragments")
        else:
            self._begin_data(opcode, is_final)
        self._frame, self._left, self._in_frame = opcode, length, True
        return size

    def _begin_data(self, opcode: int, is_final: bool) -> None:
        if opcode not in _DATA:
            raise WebSocketViolation(f"no such opcode: {opcode}")
        if (opcode == CONTINUATION) == self._is_final:
            raise WebSocketViolation("fragments are out of order")
        if opcode != CONTINUATION:
            self._message, self._begins = opcode, True
        self._is_final = is_final

    def _take_control(self, payload: memoryview) -> Iterator[Piece]:
        if not self._left and not self._control:
            yield Piece(self._frame, payload, True, True)
            return
        self._control += payload
        if not self._left:
            whole, self._control = self._control, bytearray()
            yield Piece(self._frame, memoryview(whole), True, True)


class FrameBuffer:
    """Builds binary messages around data that is read into its buffer.

    Args:
      capacity: The maximum size of a message, without the prefix.
      prefix: The first byte of every message.
    """

    def __init__(self, capacity: int, prefix: int) -> None:
        # The payload starts at a multiple of the word size, where masking is twice as fast, and the
        # header fits before it.
        self._payload = 2 * _WORD
        whole = self._payload + 1 + capacity
        self._bytes = bytearray(-(-whole // _WORD) * _WORD)
        self._view = memoryview(self._bytes)
        self._words = np.frombuffer(self._bytes, dtype=np.uint64)
        self._prefix = prefix
        #: The space for the message's data.
        self.space = self._view[self._payload + 1 : whole]

    def frame(self, length: int, key: bytes) -> memoryview:
        """Makes a masked frame from the first bytes of `space`.

        Args:
          length: The number of bytes.
          key: `KEY_BYTES` random bytes, used for this frame only (RFC 6455, section 5.3).

        Returns:
          The frame, in this buffer; `space` may be reused when it was sent.
        """
        self._bytes[self._payload] = self._prefix
        first = self._payload // _WORD
        words = self._words[first : first + -(-(length + 1) // _WORD)]
        np.bitwise_xor(words, np.frombuffer(key + key, dtype=np.uint64), out=words)
        header = _header(BINARY, length + 1) + key
        start = self._payload - len(header)
        self._view[start : self._payload] = header
        return self._view[start : self._payload + 1 + length]


def control_frame(opcode: int, payload: bytes, key: bytes) -> bytes:
    """Returns a masked CLOSE, PING or PONG with up to 125 bytes."""
    masked = bytes(byte ^ key[i % KEY_BYTES] for i, byte in enumerate(payload))
    return _header(opcode, len(payload)) + key + masked


def _header(opcode: int, length: int) -> bytes:
    first = bytes((_FINAL | opcode,))
    if length < _TWO_BYTES:
        return first + bytes((_MASKED | length,))
    if length < 1 << 16:
        return first + bytes((_MASKED | _TWO_BYTES,)) + length.to_bytes(2, "big")
    return first + bytes((_MASKED | _EIGHT_BYTES,)) + length.to_bytes(8, "big")
