"""Sends small host buffers from the far end ahead of the answers that announce them to JAX.

JAX reads a value by two requests, one after the other: a copy to a host buffer, in its session, and
a lookup of this buffer, in a call of its own. The far end sees the copy's answer pass. It looks the
buffer up itself, which costs no round trip here, and sends it along (`early_answers`). Only copies
that JAX asked for are looked up, so bytes take the way once, whether early or not.

No I/O.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, deque
from collections.abc import Callable

from shared_pathways_service.tunnel.link.early_answers import LARGEST_BYTES, encode_early
from shared_pathways_service.tunnel.link.http2_frames import FrameReader, FrameType, MessageReader
from shared_pathways_service.tunnel.link.ifrt_messages import (
    SESSION_PATH,
    answered_copy,
    requested_copy,
    session_of_init,
)
from shared_pathways_service.tunnel.link.link_frames import Buffer

__all__ = ["EarlyCopies", "LookUp"]

#: Looks up (session, handle); calls back once, at once or later, with None if it cannot.
LookUp = Callable[[int, int, Callable[[bytes | None], None]], None]

#: Requests and answers of copies are shorter.
_MESSAGE_BYTES = 4096
#: The answer to the first request, which lists the devices.
_INIT_BYTES = 4 << 20
#: Copies whose answers are awaited.
_COPIES = 1024
#: Bytes that wait for a lookup, after which the proxy's socket is not read.
_FULL_BYTES = 256 << 10


@dataclasses.dataclass(slots=True, eq=False)
class _Waiting:
    """A part of a frame, with the buffers to send before it."""

    raw: bytes
    lookups: int = 0
    early: list[bytes] = dataclasses.field(default_factory=list)


class EarlyCopies:
    """What passes one connection with the proxy, at the far end.

    Args:
      look_up: Looks up a buffer.

    Attributes:
      on_ready: Called when `ready` has bytes for the peer.
      replies: Always empty.
    """

    def __init__(self, look_up: LookUp) -> None:
        self.on_ready: Callable[[], None] = lambda: None
        self.replies: list[bytes] = []
        self._look_up = look_up
        self._to_proxy = FrameReader(has_preface=True)
        self._from_proxy = FrameReader(has_preface=False)
        self._is_asked = self._is_passive = self._is_taking = False
        self._stream = 0  # of the session; 0: there is none
        self._session = 0
        self._requests = MessageReader(_MESSAGE_BYTES)
        self._answers = MessageReader(_INIT_BYTES)
        self._copies: OrderedDict[int, int] = OrderedDict()  # op_id to handle
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether the proxy's socket is not to be read."""
        return self._waiting_bytes > _FULL_BYTES

    def from_local(self, data: Buffer) -> list[Buffer]:
        """Takes what the proxy sent; returns what JAX is to get now."""
        if self._is_passive:
            return [self._from_proxy.take_begun(), data]
        passed: list[Buffer] = []
        self._is_taking = True
        for part in self._from_proxy.read(data):
            if part.type == FrameType.EARLY:
                continue
            lookups = []
            if part.type == FrameType.DATA and part.stream == self._stream:
                lookups = self._announced(part.payload)
            if lookups or self._waiting:
                self._wait(bytes(part.raw), lookups)
            else:
                passed.append(part.raw)
        self._is_taking = False
        # (A lookup may have called back at once.)
        return [*passed, *self.ready()]

    def finish(self) -> list[Buffer]:
        """Returns what was kept when the proxy sends no more."""
        rest: list[Buffer] = [waiting.raw for waiting in self._waiting]
        self._waiting.clear()
        self._waiting_bytes = 0
        return [*rest, self._from_proxy.take_begun()]

    def ready(self) -> list[Buffer]:
        """Returns what waits for no lookup any more."""
        passed: list[Buffer] = []
        while self._waiting and not self._waiting[0].lookups:
            waiting = self._waiting.popleft()
            self._waiting_bytes -= len(waiting.raw) + sum(map(len, waiting.early))
            passed += [*waiting.early, waiting.raw]
        return passed

    def from_peer(self, payloads: list[Buffer]) -> list[Buffer]:
        """Takes whole frames of JAX; returns what the proxy is to get."""
        if self._is_passive:
            return payloads
        passed: list[Buffer] = []
        for payload in payloads:
            for part in self._to_proxy.read(payload):
                if part.type == FrameType.EARLY:
                    self._is_asked = True
                    continue
                passed.append(part.raw)
                if part.type == FrameType.HEADERS:
                    self._is_passive = not self._is_asked
                    self._begin(part.stream, bytes(part.payload))
                elif part.type == FrameType.DATA and part.stream == self._stream:
                    self._note_copies(part.payload)
        return passed

    # ---- the session

    def _begin(self, stream: int, headers: bytes) -> None:
        if SESSION_PATH not in headers:
            return
        self._stream, self._session = stream, 0
        self._requests = MessageReader(_MESSAGE_BYTES)
        self._answers = MessageReader(_INIT_BYTES)
        self._copies.clear()

    def _note_copies(self, payload: Buffer) -> None:
        for message in self._requests.read(payload):
            if (copy := requested_copy(message)) is not None:
                self._copies[copy[0]] = copy[1]
                while len(self._copies) > _COPIES:
                    self._copies.popitem(last=False)

    def _announced(self, payload: Buffer) -> list[int]:
        """Returns the handles of buffers whose copies are answered."""
        handles = []
        for message in self._answers.read(payload):
            if not self._session:
                self._session = session_of_init(message) or 0
                self._answers.limit_bytes = _MESSAGE_BYTES if self._session else _INIT_BYTES
            elif self._copies and (op_id := answered_copy(message)) is not None:
                handle = self._copies.pop(op_id, None)
                handles += [handle] if handle is not None else []
        return handles

    def _wait(self, raw: bytes, handles: list[int]) -> None:
        waiting = _Waiting(raw, len(handles))
        self._waiting.append(waiting)
        self._waiting_bytes += len(raw)
        for handle in handles:
            self._look_up(self._session, handle, self._on_found(waiting, self._session, handle))

    def _on_found(
        self, waiting: _Waiting, session: int, handle: int
    ) -> Callable[[bytes | None], None]:
        def on_found(data: bytes | None) -> None:
            waiting.lookups -= 1
            if data is not None and len(data) <= LARGEST_BYTES:
                waiting.early.append(encode_early(session, handle, data))
                self._waiting_bytes += len(waiting.early[-1])
            if self._waiting and self._waiting[0] is waiting and not self._is_taking:
                self.on_ready()

        return on_found
