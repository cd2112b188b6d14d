"""Follows which streams and pings of an HTTP/2 connection (RFC 9113) are open, without I/O."""

from __future__ import annotations

import dataclasses
import threading
from typing import Final

__all__ = ["OpenStreams"]

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEAD_BYTES: Final = 9
_DATA, _HEADERS, _RST_STREAM, _PING = 0, 1, 3, 6
_END_STREAM, _ACK = 1, 1


class OpenStreams:
    """What a client has begun and neither side has ended. Each direction may have its thread.

    It is true if there are streams that neither side has ended or reset.
    """

    def __init__(self) -> None:
        self._open: set[int] = set()
        self._pings: list[bytes] = []
        self._from_client = _Frames(skipped=len(_PREFACE))
        self._from_server = _Frames()
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._open)

    def take_from_client(self, data: bytes) -> None:
        """Processes the next bytes of the client."""
        with self._lock:
            for frame in self._from_client.take(data):
                if frame.kind == _HEADERS:
                    self._open.add(frame.stream)
                if frame.ends_stream:
                    self._open.discard(frame.stream)
                if frame.kind == _PING and frame.payload in self._pings:
                    self._pings.remove(frame.payload)

    def take_from_server(self, data: bytes) -> None:
        """Processes the next bytes of the server."""
        with self._lock:
            for frame in self._from_server.take(data):
                if frame.ends_stream:
                    self._open.discard(frame.stream)
                if frame.kind == _PING and not frame.flags & _ACK:
                    self._pings.append(frame.payload)

    def take_answers(self) -> bytes:
        """Returns the answers that the client owes to the server's pings, each once."""
        with self._lock:
            pings, self._pings = self._pings, []
        head = (8).to_bytes(3) + bytes([_PING, _ACK]) + (0).to_bytes(4)
        return b"".join(head + ping for ping in pings)


@dataclasses.dataclass(frozen=True)
class _Frame:
    """A frame; of a ping it has the payload."""

    kind: int
    flags: int
    stream: int
    payload: bytes = b""

    @property
    def ends_stream(self) -> bool:
        has_flag = bool(self.flags & _END_STREAM)
        return self.kind == _RST_STREAM or (self.kind in (_DATA, _HEADERS) and has_flag)


class _Frames:
    """Splits the bytes of one direction into frames.

    Args:
      skipped: The number of bytes before the first frame.
    """

    def __init__(self, skipped: int = 0) -> None:
        self._skipped = skipped
        self._part = b""

    def take(self, data: bytes) -> list[_Frame]:
        """Returns the frames that these bytes complete; others than pings at their beginning."""
        found = []
        at = 0
        while at < len(data):
            if self._skipped:
                step = min(self._skipped, len(data) - at)
                self._skipped -= step
            else:
                step = min(self._missing, len(data) - at)
                self._part += data[at : at + step]
                if not self._missing:
                    found.append(self._complete())
            at += step
        return found

    @property
    def _missing(self) -> int:
        wanted = _HEAD_BYTES
        if len(self._part) >= _HEAD_BYTES and self._part[3] == _PING:
            wanted += int.from_bytes(self._part[:3])
        return wanted - len(self._part)

    def _complete(self) -> _Frame:
        part, self._part = self._part, b""
        payload = part[_HEAD_BYTES:]
        self._skipped = int.from_bytes(part[:3]) - len(payload)
        stream = int.from_bytes(part[5:_HEAD_BYTES]) & 0x7FFFFFFF
        return _Frame(part[3], part[4], stream, payload)
