"""Answers PINGs of HTTP/2 while the way between the two ends is interrupted.

gRPC sends PINGs by itself and closes a connection whose PING is not answered for a minute
(``grpc.http2.ping_timeout``). On a link, PINGs and their answers pass like all other bytes, so that
gRPC measures the way as it is; only an answer that does not come in time is given here, and dropped
when it comes after all. Answers are put between whole frames (RFC 9113, section 6.7).
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from shared_pathways_service.tunnel.link.link_frames import Buffer

__all__ = ["ANSWER_AFTER_S", "PREFACE", "FrameCutter", "FrameHead", "PingKeeper"]

#: The first bytes of a client (RFC 9113, section 3.4).
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
#: Seconds after which a PING is answered in place of the peer, well below gRPC's minute.
ANSWER_AFTER_S = 15.0
#: PINGs that are remembered: gRPC has a few at a time.
_MOST_ASKED = 1024

_HEAD_BYTES = 9
_TYPE, _FLAGS, _STREAM = 3, 4, 5
_HEADERS, _PING, _ACK = 0x1, 0x6, 0x1
_PING_BYTES = 8
#: An answer up to its payload: length, type, flags, stream 0.
_ANSWER_HEAD = bytes((0, 0, _PING_BYTES, _PING, _ACK, 0, 0, 0, 0))


class FrameHead(NamedTuple):
    """The head of a frame.

    Attributes:
      length: Bytes of its payload.
    """

    type: int
    flags: int
    stream: int
    length: int


class FrameCutter:
    """Finds where frames end, and PINGs, in the bytes of one direction.

    Args:
      has_preface: Whether it is the client's direction.
      on_frame: Called at the end of each frame, with the payload of HEADERS; others are not kept.
    """

    def __init__(
        self,
        *,
        has_preface: bool,
        on_frame: Callable[[FrameHead, bytes], None] | None = None,
    ) -> None:
        self._left = len(PREFACE) if has_preface else 0
        self._head = bytearray()
        self._on_frame = on_frame
        self._frame: FrameHead | None = None
        self._is_ping = False
        self._kept: bytearray | None = None
        #: Payloads of PINGs that were found and not taken yet; the caller takes them.
        self.pings: list[bytes] = []

    @property
    def is_between_frames(self) -> bool:
        """Whether the bytes so far end with a whole frame."""
        return not self._left and not self._head

    def cut(self, data: memoryview) -> int:
        """Reads on.

        Returns:
          How many of these bytes end with a whole frame; 0 if no frame ends in them.
        """
        position, end, whole = 0, len(data), 0
        while position < end:
            if self._left:
                taken = min(self._left, end - position)
                if self._kept is not None:
                    self._kept += data[position : position + taken]
                self._left -= taken
                position += taken
            else:
                position = self._read_head(data, position)
            if not self._left and not self._head:
                whole = position
                self._end_frame()
        return whole

    def _read_head(self, data: memoryview, position: int) -> int:
        taken = data[position : position + _HEAD_BYTES - len(self._head)]
        self._head += taken
        if len(self._head) == _HEAD_BYTES:
            head = self._head
            length = self._left = head[0] << 16 | head[1] << 8 | head[2]
            kind, flags = head[_TYPE], head[_FLAGS]
            self._is_ping = kind == _PING and not flags & _ACK and length == _PING_BYTES
            if self._on_frame is not None:
                stream = int.from_bytes(head[_STREAM:], "big") & 0x7FFFFFFF
                self._frame = FrameHead(kind, flags, stream, length)
            if self._is_ping or (self._frame is not None and kind == _HEADERS):
                self._kept = bytearray()
            self._head.clear()
        return position + len(taken)

    def _end_frame(self) -> None:
        kept = b"" if self._kept is None else bytes(self._kept)
        self._kept = None
        if self._is_ping:
            self._is_ping = False
            self.pings.append(kept)
        if self._frame is not None and self._on_frame is not None:
            frame, self._frame = self._frame, None
            self._on_frame(frame, kept)


@dataclasses.dataclass(slots=True)
class _Asked:
    payload: bytes
    at: float
    is_answered: bool = False


class PingKeeper:
    """Remembers the PINGs of a local socket until they are answered."""

    def __init__(self) -> None:
        self._asked: deque[_Asked] = deque(maxlen=_MOST_ASKED)

    @property
    def due_at(self) -> float | None:
        """When the next PING must be answered here; None: none is open."""
        return next(
            (each.at + ANSWER_AFTER_S for each in self._asked if not each.is_answered), None
        )

    def asked(self, payload: bytes, now: float) -> None:
        """Records a PING that the local side sent."""
        self._asked.append(_Asked(payload, now))

    def answers(self, now: float) -> list[bytes]:
        """Returns the answers to PINGs that have waited too long, as frames."""
        if self.due_at is None or now < self.due_at:
            return []
        answers = []
        for each in self._asked:
            if not each.is_answered and each.at + ANSWER_AFTER_S <= now:
                each.is_answered = True
                answers.append(_ANSWER_HEAD + each.payload)
        return answers

    def arrived(self, payloads: list[Buffer]) -> list[Buffer]:
        """Removes answers that were given here already.

        Args:
          payloads: Whole frames for the local side, together.

        Returns:
          What is to be passed on.
        """
        if not self._asked:
            return payloads
        return self._without_late(_joined(payloads))

    def _without_late(self, data: memoryview) -> list[Buffer]:
        kept: list[Buffer] = []
        start = position = 0
        while position < len(data):
            head = data[position : position + _HEAD_BYTES]
            after = position + _HEAD_BYTES + (head[0] << 16 | head[1] << 8 | head[2])
            is_answer = bytes(head) == _ANSWER_HEAD
            if is_answer and self._is_late(bytes(data[position + _HEAD_BYTES : after])):
                if position > start:
                    kept.append(data[start:position])
                start = after
            position = after
        if start < len(data):
            kept.append(data[start:])
        return kept

    def _is_late(self, payload: bytes) -> bool:
        """Forgets the PING that this answers; returns whether it was answered here."""
        for each in self._asked:
            if each.payload == payload:
                self._asked.remove(each)
                return each.is_answered
        return False


def _joined(payloads: list[Buffer]) -> memoryview:
    return memoryview(payloads[0] if len(payloads) == 1 else b"".join(payloads))
