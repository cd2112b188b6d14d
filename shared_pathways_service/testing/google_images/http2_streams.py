"""Follows which streams of an HTTP/2 connection are open, without I/O."""

from __future__ import annotations

from typing import Final

__all__ = ["OpenStreams"]

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEAD_BYTES: Final = 9
_DATA, _HEADERS, _RST_STREAM = 0, 1, 3
_END_STREAM: Final = 1


class OpenStreams:
    """The streams that a client has opened, and that neither side has ended or reset (RFC 9113)."""

    def __init__(self) -> None:
        self._open: set[int] = set()
        self._from_client = _Frames(skipped=len(_PREFACE))
        self._from_server = _Frames()

    def __bool__(self) -> bool:
        return bool(self._open)

    def take_from_client(self, data: bytes) -> None:
        """Processes the next bytes of the client."""
        for kind, ends, stream in self._from_client.take(data):
            if kind == _HEADERS:
                self._open.add(stream)
            if ends:
                self._open.discard(stream)

    def take_from_server(self, data: bytes) -> None:
        """Processes the next bytes of the server."""
        for _, ends, stream in self._from_server.take(data):
            if ends:
                self._open.discard(stream)


class _Frames:
    """Splits bytes of one direction into frames, whose payload it skips.

    Args:
      skipped: The number of bytes before the first frame.
    """

    def __init__(self, skipped: int = 0) -> None:
        self._skipped = skipped
        self._head = b""

    def take(self, data: bytes) -> list[tuple[int, bool, int]]:
        """Returns the type of each new frame, whether it ends its stream, and the stream."""
        found = []
        at = 0
        while at < len(data):
            if self._skipped:
                step = min(self._skipped, len(data) - at)
                self._skipped -= step
                at += step
                continue
            part = data[at : at + _HEAD_BYTES - len(self._head)]
            self._head += part
            at += len(part)
            if len(self._head) < _HEAD_BYTES:
                break
            head, self._head = self._head, b""
            self._skipped = int.from_bytes(head[:3])
            kind, flags = head[3], head[4]
            ends = kind == _RST_STREAM or (kind in (_DATA, _HEADERS) and bool(flags & _END_STREAM))
            found.append((kind, ends, int.from_bytes(head[5:]) & 0x7FFFFFFF))
        return found
