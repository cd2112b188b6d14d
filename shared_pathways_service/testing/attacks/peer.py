"""A client's HTTP/2 connection that sends exactly the requested frames, valid or not.

A client library would complete calls, answer pings and open windows by itself; this one acts only
on request. The frames are those of RFC 9113, headers are sent as literals without an index
(RFC 7541, 6.2.2), a message has gRPC's prefix of five bytes.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final, Self

__all__ = [
    "DATA",
    "ENDED",
    "GOAWAY",
    "HEADERS",
    "PREFACE",
    "RST_STREAM",
    "SETTINGS",
    "Peer",
    "announced",
]

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
#: The key in `Peer.seen` of streams that the server ended; other keys are types of frames.
ENDED: Final = "ended"

_END_STREAM, _END_HEADERS, _ACK = 0x1, 0x4, 0x1
_INITIAL_WINDOW = 0x4
_CANCEL = 8
#: The size of a frame in bytes that every server accepts.
_FRAME = 16_384
_HEAD = struct.Struct(">I")


class Peer:
    """A connection; use as a context manager.

    Args:
      address: ``unix:/path`` or ``host:port``.
      timeout_s: Seconds for one send that the server does not accept.

    Attributes:
      seen: The number of received frames by type, and of streams that the server ended (`ENDED`).
      closed: Whether the server has closed the connection.
    """

    def __init__(self, address: str, *, timeout_s: float = 10.0) -> None:
        self.seen: Counter[int | str] = Counter()
        self.closed = False
        self._ended: set[int] = set()
        self._buffer = bytearray()
        self._next = 1
        self._greeted = False
        path = address.removeprefix("unix:")
        family = socket.AF_INET if path == address else socket.AF_UNIX
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._socket.settimeout(timeout_s)
            host, _, port = address.rpartition(":")
            self._socket.connect(path if path != address else (host, int(port)))
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def fileno(self) -> int:
        """Returns the socket's descriptor."""
        return self._socket.fileno()

    def close(self) -> None:
        """Closes the connection without ending its streams."""
        self._socket.close()

    def send(self, data: bytes) -> bool:
        """Sends bytes; returns False if the server does not accept them."""
        try:
            self._socket.sendall(data)
        except OSError:
            return False
        return True

    def greet(self, *, window: int = 65_535) -> bool:
        """Sends the preface.

        Args:
          window: The initial window of each stream, in bytes.
        """
        self._greeted = True
        settings = struct.pack(">HI", _INITIAL_WINDOW, window)
        return self.send(PREFACE + _frame(SETTINGS, 0, 0, settings))

    def want_all(self) -> bool:
        """Sends the preface and opens every window, so that only unread data blocks the server.

        (RFC 9113, 6.9: 2 GiB per stream, 1 GiB for the connection.)
        """
        wide = _frame(WINDOW_UPDATE, 0, 0, _HEAD.pack(1 << 30))
        return self.greet(window=(1 << 31) - 1) and self.send(wide)

    def open(self, path: str, metadata: Iterable[tuple[str, str | bytes]] = ()) -> int:
        """Begins a call without a request; returns its stream's number."""
        stream, self._next = self._next, self._next + 2
        self.send(opening(stream, path, metadata))
        return stream

    def write(self, stream: int, data: bytes) -> bool:
        """Sends raw bytes of a call's body."""
        pieces = (data[i : i + _FRAME] for i in range(0, len(data), _FRAME))
        return self.send(b"".join(_frame(DATA, 0, stream, piece) for piece in pieces))

    def finish(self, stream: int, message: bytes = b"") -> bool:
        """Sends the only message of a call, and ends its requests."""
        return self.send(_frame(DATA, _END_STREAM, stream, announced(len(message)) + message))

    def reset(self, stream: int) -> bool:
        """Resets a call."""
        return self.send(_frame(RST_STREAM, 0, stream, _HEAD.pack(_CANCEL)))

    def read(self) -> None:
        """Reads received data; answers settings and pings as a live client does."""
        while not self.closed and self._has_data(0):
            self._take()

    def wait(self, what: int | str, *, times: int = 1, timeout_s: float) -> bool:
        """Reads until `what` was seen `times` times, or the server has closed the connection.

        Returns:
          Whether it was seen.
        """
        deadline = time.monotonic() + timeout_s
        while self.seen[what] < times and not self.closed:
            left = deadline - time.monotonic()
            if left <= 0 or not self._has_data(left):
                break
            self._take()
        return self.seen[what] >= times

    def wait_closed(self, *, timeout_s: float) -> bool:
        """Reads until the server has closed the connection; returns whether it did."""
        self.wait("nothing has this name", timeout_s=timeout_s)
        return self.closed

    def _has_data(self, timeout_s: float) -> bool:
        # (Not `select.select`, which refuses descriptors from 1024 on.)
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))

    def _take(self) -> None:
        try:
            data = self._socket.recv(1 << 16)
        except OSError:
            data = b""
        self.closed = not data
        self._buffer += data
        for kind, flags, stream, body in self._frames():
            self.seen[kind] += 1
            if kind == RST_STREAM or (kind in {HEADERS, DATA} and flags & _END_STREAM):
                # A server may reset a stream that it has ended, so that the client stops sending.
                self._ended.add(stream)
                self.seen[ENDED] = len(self._ended)
            if self._greeted and kind in {SETTINGS, PING} and not flags & _ACK:
                self.send(_frame(kind, _ACK, 0, body if kind == PING else b""))

    def _frames(self) -> Iterator[tuple[int, int, int, bytes]]:
        """Yields type, flags, stream and body of each complete frame."""
        buffer = self._buffer
        while len(buffer) >= 9 and len(buffer) >= 9 + (size := int.from_bytes(buffer[:3], "big")):
            stream = int.from_bytes(buffer[5:9], "big") & 0x7FFF_FFFF
            yield buffer[3], buffer[4], stream, bytes(buffer[9 : 9 + size])
            del buffer[: 9 + size]


def announced(size: int) -> bytes:
    """Returns gRPC's prefix of a message of `size` bytes."""
    return b"\0" + _HEAD.pack(size)


def opening(stream: int, path: str, metadata: Iterable[tuple[str, str | bytes]] = ()) -> bytes:
    """Returns the frame that begins a call."""
    fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "localhost"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        *metadata,
    ]
    return _frame(HEADERS, _END_HEADERS, stream, b"".join(_field(*field) for field in fields))


def _frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return len(body).to_bytes(3, "big") + bytes((kind, flags)) + _HEAD.pack(stream) + body


def _field(name: str, value: str | bytes) -> bytes:
    return (
        b"\0" + _text(name.encode()) + _text(value if isinstance(value, bytes) else value.encode())
    )


def _text(data: bytes) -> bytes:
    # An integer with a prefix of seven bits (RFC 7541, 5.1); the first bit means: no Huffman code.
    size, out = len(data), bytearray()
    if size < 0x7F:
        return bytes((size,)) + data
    out.append(0x7F)
    size -= 0x7F
    while size >= 0x80:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    out.append(size)
    return bytes(out) + data
