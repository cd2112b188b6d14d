"""WebSocket frames (RFC 6455) as a client reads and writes them, without I/O and without copies.

A payload is handed on as it comes, in pieces of the caller's buffer, and is masked where it lies:
at some hundred megabytes a second every copy shows.
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
#: In place of a length: that two bytes with it follow, or eight.
_TWO_BYTES, _EIGHT_BYTES = 126, 127
_FINAL, _RESERVED, _OPCODE, _MASKED = 0x80, 0x70, 0x0F, 0x80
_LONGEST_HEADER = 10
_WORD = 8
#: Fixed by RFC 6455, section 1.3.
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class WebSocketViolation(Exception):  # noqa: N818 - reads as what happened
    """The server sent what RFC 6455 does not allow."""


def handshake_headers(nonce: bytes, subprotocol: str) -> dict[str, str]:
    """Returns the headers of a GET request that asks for a WebSocket.

    Args:
      nonce: 16 random bytes.
      subprotocol: The one that is spoken.
    """
    return {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": base64.b64encode(nonce).decode(),
        "Sec-WebSocket-Protocol": subprotocol,
    }


def accept_of(request: Mapping[str, str]) -> str:
    """Returns the ``Sec-WebSocket-Accept`` that is the answer to these headers."""
    given = request["Sec-WebSocket-Key"].encode()
    digest = hashlib.sha1(given + _GUID, usedforsecurity=False).digest()
    return base64.b64encode(digest).decode()


class Piece(NamedTuple):
    """A part of a message, as it arrived; a control frame comes whole.

    Attributes:
      opcode: Of the message, also when a continuation brought it.
      payload: Refers to what was fed.
      begins: Whether it is the first of its message.
      ends: Whether it is the last; an empty piece where only the last frame tells.
    """

    opcode: int
    payload: memoryview
    begins: bool
    ends: bool


class FrameReader:
    """Parses what a server sends, in whatever portions it arrives."""

    def __init__(self) -> None:
        self._header = bytearray()  # of a frame whose header is cut in two
        self._control = bytearray()  # the payload of a control frame that is cut in two
        self._in_frame = False
        self._left = 0
        self._frame = self._message = CONTINUATION
        self._is_final = True
        self._begins = True

    def feed(self, data: memoryview) -> Iterator[Piece]:
        """Takes any portion of the stream; to be consumed before the next call.

        Yields:
          What it holds, in order.

        Raises:
          WebSocketViolation: The server breaks the protocol; nothing more can be read.
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
        """Returns where to go on; the frame has begun if its header was complete."""
        if not self._header:
            size = self._begin(data[position : position + _LONGEST_HEADER])
            if size:
                return position + size
        # At the seam of two portions only, so byte by byte will do.
        self._header.append(data[position])
        if self._begin(self._header):
            self._header.clear()
        return position + 1

    def _begin(self, head: memoryview | bytearray) -> int:
        """Returns the length of the header that `head` begins with, 0 if it is not all there."""
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
    """Where one binary message after the other is built around what is read into it.

    Args:
      capacity: The most bytes of one message, the prefix not counted.
      prefix: The byte that every message begins with.
    """

    def __init__(self, capacity: int, prefix: int) -> None:
        # The payload begins at a multiple of the word: masking is twice as fast there, and the
        # header fits before it.
        self._payload = 2 * _WORD
        whole = self._payload + 1 + capacity
        self._bytes = bytearray(-(-whole // _WORD) * _WORD)
        self._view = memoryview(self._bytes)
        self._words = np.frombuffer(self._bytes, dtype=np.uint64)
        self._prefix = prefix
        #: Where the message's bytes are to be put.
        self.space = self._view[self._payload + 1 : whole]

    def frame(self, length: int, key: bytes) -> memoryview:
        """Makes a masked frame of the first bytes of `space`.

        Args:
          length: How many.
          key: Of `KEY_BYTES` random bytes, for this frame alone (RFC 6455, section 5.3).

        Returns:
          The frame, in this buffer; `space` is free for the next when it was sent.
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
