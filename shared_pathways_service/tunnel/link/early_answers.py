"""Answers JAX's lookups of small host buffers at the near end, before they take the way.

The far end sends such a buffer ahead of the answer that announces it (`early_copies`). JAX's lookup
then does not reach the proxy. For this, the near end

- asks the far end for buffers, in front of the first request of a connection for a session of JAX;
- offers JAX no header table, so that a header's text can be found without state;
- withholds a part of JAX's window for the connection from the proxy, as the proxy does not know of
  the bytes that are sent in its place. Without that reserve a lookup is passed on.

No I/O.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from shared_pathways_service.tunnel.link.http2_frames import (
    ACK,
    END_HEADERS,
    END_STREAM,
    NO_HEADER_TABLE,
    FrameReader,
    FrameType,
    MessageReader,
    Part,
    encode_frame,
    encode_message,
    literal,
)
from shared_pathways_service.tunnel.link.ifrt_messages import (
    LOOKUP_PATH,
    SESSION_PATH,
    VERSION_PATH,
    encode_lookup_answer,
    lookup_key,
)
from shared_pathways_service.tunnel.link.link_frames import Buffer

__all__ = ["ASK", "LARGEST_BYTES", "EarlyAnswers", "EarlyBuffers", "decode_early", "encode_early"]

#: The largest buffer that is sent early.
LARGEST_BYTES = 256 << 10
#: Sent in front of the first request: buffers may be sent early.
ASK = encode_frame(FrameType.EARLY, 0, 0, b"?")

_KEPT_BYTES = 4 << 20
_KEY_BYTES = 16
_DATA_BYTES = 16 << 10  # of a frame, which every client accepts
_RESERVE_BYTES = LARGEST_BYTES + 1024
#: What the proxy keeps of the window in any case.
_FLOOR_BYTES = 512 << 10
_DEFAULT_WINDOW = 65535
_INITIAL_WINDOW_SIZE = 4
_ANSWERED = 1024
_LOOKUP_BYTES = 64
_STATUS_200 = b"\x88"
_ANSWER_HEADERS = _STATUS_200 + literal(b"content-type", b"application/grpc")
_ANSWER_TRAILERS = literal(b"grpc-status", b"0")


def encode_early(session: int, handle: int, data: bytes) -> bytes:
    """Returns the frame with a buffer."""
    key = session.to_bytes(8, "big") + handle.to_bytes(8, "big")
    return encode_frame(FrameType.EARLY, 0, 0, key + data)


def decode_early(payload: Buffer) -> tuple[tuple[int, int], bytes]:
    """Returns session and handle of a buffer, and the buffer."""
    raw = bytes(payload)
    key = int.from_bytes(raw[:8], "big"), int.from_bytes(raw[8:_KEY_BYTES], "big")
    return key, raw[_KEY_BYTES:]


class EarlyBuffers:
    """Buffers that arrived before they were looked up; the oldest ones are dropped."""

    def __init__(self, limit_bytes: int = _KEPT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._buffers: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        #: Bytes that are kept, and buffers that answered a lookup.
        self.kept_bytes = self.taken = 0

    def put(self, key: tuple[int, int], data: bytes) -> None:
        """Keeps a buffer."""
        self.drop(key)
        self._buffers[key] = data
        self.kept_bytes += len(data)
        while self.kept_bytes > self._limit_bytes:
            self.drop(next(iter(self._buffers)))

    def find(self, key: tuple[int, int]) -> bytes | None:
        """Returns a buffer, if it is here."""
        return self._buffers.get(key)

    def drop(self, key: tuple[int, int]) -> None:
        """Drops a buffer, if it is here."""
        self.kept_bytes -= len(self._buffers.pop(key, b""))


class EarlyAnswers:
    """What passes one of JAX's connections, at the near end.

    Args:
      buffers: Those of the near end, for all connections.

    Attributes:
      on_ready: Not called.
      replies: Frames for JAX; the caller takes them.
    """

    def __init__(self, buffers: EarlyBuffers) -> None:
        self.on_ready: Callable[[], None] = lambda: None
        self.replies: list[bytes] = []
        self._buffers = buffers
        self._from_jax = FrameReader(has_preface=True)
        self._to_jax = FrameReader(has_preface=False)
        #: A lookup whose request is not there yet: its stream, and its headers.
        self._lookup: tuple[int, bytes] | None = None
        self._has_begun = False
        self._streams: OrderedDict[int, None] = OrderedDict()  # answered here
        self._window = _DEFAULT_WINDOW  # of the connection, for the proxy
        self._reserve = 0
        self._stream_window = _DEFAULT_WINDOW

    @property
    def is_full(self) -> bool:
        """Whether JAX's socket is not to be read: never."""
        return False

    def ready(self) -> list[Buffer]:
        """Returns nothing."""
        return []

    def from_local(self, data: Buffer) -> list[Buffer]:
        """Takes what JAX sent; returns what the proxy is to get."""
        passed: list[Buffer] = []
        for part in self._from_jax.read(data):
            self._take(part, passed)
        return passed

    def finish(self) -> list[Buffer]:
        """Returns what was kept when JAX sends no more."""
        passed: list[Buffer] = []
        self._release(passed)
        return [*passed, self._from_jax.take_begun()]

    def from_peer(self, payloads: list[Buffer]) -> list[Buffer]:
        """Takes whole frames of the proxy; returns what JAX is to get."""
        passed: list[Buffer] = []
        early = bytearray()
        for payload in payloads:
            for part in self._to_jax.read(payload):
                if part.type == FrameType.EARLY:
                    early += part.payload
                    if part.is_last:
                        self._buffers.put(*decode_early(early))
                        early.clear()
                elif part.type == FrameType.SETTINGS and not part.flags & ACK:
                    settings = bytes(part.payload) + NO_HEADER_TABLE
                    passed.append(encode_frame(FrameType.SETTINGS, part.flags, 0, settings))
                else:
                    if part.type == FrameType.DATA:
                        self._window -= len(part.payload)
                    passed.append(part.raw)
        return passed

    # ---- from JAX

    def _take(self, part: Part, passed: list[Buffer]) -> None:
        if part.type == FrameType.EARLY:
            return
        if part.stream:
            self._take_of_stream(part, passed)
        elif part.type == FrameType.WINDOW_UPDATE:
            passed.append(self._share_window(part))
        else:
            if part.type == FrameType.SETTINGS and not part.flags & ACK:
                self._read_settings(bytes(part.payload))
            passed.append(part.raw)

    def _take_of_stream(self, part: Part, passed: list[Buffer]) -> None:
        if part.stream in self._streams or self._may_answer(part):
            return
        if part.type == FrameType.HEADERS or self._is_of_lookup(part):
            # (Streams must begin in order.)
            self._release(passed)
        if part.type == FrameType.HEADERS and part.is_whole and part.flags & END_HEADERS:
            headers = bytes(part.payload)
            if not self._has_begun and (VERSION_PATH in headers or SESSION_PATH in headers):
                passed.append(ASK)
            self._has_begun = True
            if LOOKUP_PATH in headers and not part.flags & END_STREAM:
                self._lookup = part.stream, bytes(part.raw)
                return
        passed.append(part.raw)

    def _is_of_lookup(self, part: Part) -> bool:
        return self._lookup is not None and self._lookup[0] == part.stream

    def _release(self, passed: list[Buffer]) -> None:
        if self._lookup is not None:
            passed.append(self._lookup[1])
            self._lookup = None

    def _may_answer(self, request: Part) -> bool:
        """Answers a lookup if this is one whose buffer is here; returns whether it did."""
        if not self._is_of_lookup(request) or not request.is_whole:
            return False
        is_all = request.type == FrameType.DATA and request.flags == END_STREAM
        if not is_all or len(request.payload) > _LOOKUP_BYTES:
            return False
        messages = MessageReader(_LOOKUP_BYTES).read(request.payload)
        key = lookup_key(messages[0]) if len(messages) == 1 else (0, 0)
        if (data := self._buffers.find(key)) is None:
            return False
        answer = encode_message(encode_lookup_answer(data))
        if len(answer) > min(self._reserve, self._stream_window):
            return False
        self._buffers.drop(key)
        self._reserve -= len(answer)
        self._lookup = None
        self._remember(request.stream)
        self._reply(request.stream, answer)
        # The window for the request, which the proxy does not give back.
        increment = len(request.payload).to_bytes(4, "big")
        self.replies.append(encode_frame(FrameType.WINDOW_UPDATE, 0, 0, increment))
        self._buffers.taken += 1
        return True

    def _remember(self, stream: int) -> None:
        self._streams[stream] = None
        while len(self._streams) > _ANSWERED:
            self._streams.popitem(last=False)

    def _reply(self, stream: int, answer: bytes) -> None:
        view = memoryview(answer)
        self.replies.append(encode_frame(FrameType.HEADERS, END_HEADERS, stream, _ANSWER_HEADERS))
        for start in range(0, len(view), _DATA_BYTES):
            data = view[start : start + _DATA_BYTES]
            self.replies.append(encode_frame(FrameType.DATA, 0, stream, data))
        flags = END_HEADERS | END_STREAM
        self.replies.append(encode_frame(FrameType.HEADERS, flags, stream, _ANSWER_TRAILERS))

    def _share_window(self, part: Part) -> Buffer:
        """Passes on what JAX's window grows by, less what the reserve needs, or with it."""
        grown = int.from_bytes(part.payload, "big") + self._reserve
        # Below the floor the reserve is given back. The window must grow by 1 at least.
        spare = min(self._window + grown - _FLOOR_BYTES, grown - 1)
        self._reserve = max(0, min(_RESERVE_BYTES, spare))
        increment = grown - self._reserve
        self._window += increment
        return encode_frame(FrameType.WINDOW_UPDATE, 0, 0, increment.to_bytes(4, "big"))

    def _read_settings(self, payload: bytes) -> None:
        for start in range(0, len(payload), 6):
            if int.from_bytes(payload[start : start + 2], "big") == _INITIAL_WINDOW_SIZE:
                self._stream_window = int.from_bytes(payload[start + 2 : start + 6], "big")
