"""Looks up small host buffers of the proxy, on one connection of the far end's own.

A client of gRPC for this one call, with the standard library alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import socket
from collections import deque
from collections.abc import Callable

from shared_pathways_service.patience import timeouts
from shared_pathways_service.tunnel.link.early_answers import LARGEST_BYTES
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
from shared_pathways_service.tunnel.link.http2_pings import PREFACE
from shared_pathways_service.tunnel.link.ifrt_messages import (
    LOOKUP_PATH,
    encode_lookup,
    lookup_data,
)

__all__ = ["BufferLookups"]

#: Deadlines in a row after which no more buffers are looked up.
_MOST_LATE = 3
_AT_ONCE = 32
_READ_BYTES = 64 << 10
_WINDOW = LARGEST_BYTES + 1024
_INITIAL_WINDOW_SIZE = b"\x00\x04"
_CANCEL = b"\x00\x00\x00\x08"
_METHOD_POST, _SCHEME_HTTP = b"\x83", b"\x86"
_AUTHORITY, _PATH = 1, 4
_HEADERS = (
    _METHOD_POST
    + _SCHEME_HTTP
    + literal(_PATH, LOOKUP_PATH)
    + literal(_AUTHORITY, b"localhost")
    + literal(b"content-type", b"application/grpc")
    + literal(b"te", b"trailers")
)
_STATUS_OK = literal(b"grpc-status", b"0")[1:]  # however its kind of literal is marked

OnFound = Callable[[bytes | None], None]


@dataclasses.dataclass(slots=True, eq=False)
class _Lookup:
    request: bytes
    on_found: OnFound
    stream: int = 0
    deadline: asyncio.TimerHandle | None = None
    messages: MessageReader = dataclasses.field(
        default_factory=lambda: MessageReader(LARGEST_BYTES + 64)
    )
    data: bytes = b""


class BufferLookups:
    """Looks up buffers.

    Args:
      connect: Begins to connect with the proxy (`connectors`).
    """

    def __init__(self, connect: Callable[[], socket.socket]) -> None:
        self._connect = connect
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._streams = itertools.count(1, 2)
        self._open: dict[int, _Lookup] = {}
        self._queue: deque[_Lookup] = deque()
        self._is_closed = False
        self._late = 0

    def look_up(self, session: int, handle: int, on_found: OnFound) -> None:
        """Looks up a buffer; `on_found` is called once, at once or later."""
        is_given_up = self._is_closed or self._late >= _MOST_LATE
        if is_given_up or len(self._open) + len(self._queue) >= _AT_ONCE:
            on_found(None)
            return
        lookup = _Lookup(encode_lookup(session, handle), on_found)
        lookup.deadline = self._loop.call_later(timeouts.BUFFER_LOOKUP.s, self._on_late, lookup)
        self._queue.append(lookup)
        if self._task is None:
            self._task = self._loop.create_task(self._run())
        self._ask()

    def close(self) -> None:
        """Ends all lookups."""
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()
        self._on_end()

    async def _run(self) -> None:
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            stack.callback(self._on_end)
            local = stack.enter_context(self._connect())
            window = (_WINDOW * _AT_ONCE).to_bytes(4, "big")
            settings = NO_HEADER_TABLE + _INITIAL_WINDOW_SIZE + _WINDOW.to_bytes(4, "big")
            begin = PREFACE + encode_frame(FrameType.SETTINGS, 0, 0, settings)
            begin += encode_frame(FrameType.WINDOW_UPDATE, 0, 0, window)
            await self._loop.sock_sendall(local, begin)
            reader, self._writer = await asyncio.open_connection(sock=local)
            stack.callback(self._writer.close)
            self._ask()
            frames = FrameReader(has_preface=False)
            while data := await reader.read(_READ_BYTES):
                for part in frames.read(data):
                    self._take(part)

    def _on_end(self) -> None:
        self._task = self._writer = None
        self._streams = itertools.count(1, 2)
        lookups = [*self._open.values(), *self._queue]
        self._open.clear()
        self._queue.clear()
        for lookup in lookups:
            self._found(lookup, None)

    def _ask(self) -> None:
        while self._writer is not None and self._queue:
            lookup = self._queue.popleft()
            lookup.stream = stream = next(self._streams)
            self._open[stream] = lookup
            self._write(FrameType.HEADERS, END_HEADERS, stream, _HEADERS)
            self._write(FrameType.DATA, END_STREAM, stream, encode_message(lookup.request))

    def _take(self, part: Part) -> None:
        if part.type == FrameType.DATA:
            self._take_data(part)
        elif part.type in (FrameType.SETTINGS, FrameType.PING) and not part.flags & ACK:
            payload = b"" if part.type == FrameType.SETTINGS else bytes(part.payload)
            self._write(FrameType(part.type), ACK, 0, payload)
        elif part.type == FrameType.GOAWAY:
            # The proxy accepts no more requests on this connection.
            if self._writer is not None:
                self._writer.close()
        elif (lookup := self._open.get(part.stream)) is None:
            return
        elif part.type == FrameType.RST_STREAM:
            self._found(lookup, None)
        elif part.type == FrameType.HEADERS and part.flags & END_STREAM:
            is_ok = _STATUS_OK in bytes(part.payload)
            self._late = 0
            self._found(lookup, lookup.data if is_ok else None)

    def _take_data(self, part: Part) -> None:
        if part.payload:
            size = len(part.payload).to_bytes(4, "big")
            self._write(FrameType.WINDOW_UPDATE, 0, 0, size)
        if (lookup := self._open.get(part.stream)) is None:
            return
        lookup.data += b"".join(lookup_data(each) for each in lookup.messages.read(part.payload))
        if lookup.messages.skipped or len(lookup.data) > LARGEST_BYTES:
            self._give_up(lookup)

    def _on_late(self, lookup: _Lookup) -> None:
        # JAX's session waits meanwhile.
        self._late += 1
        self._give_up(lookup)

    def _give_up(self, lookup: _Lookup) -> None:
        if lookup.stream:
            self._write(FrameType.RST_STREAM, 0, lookup.stream, _CANCEL)
        else:
            self._queue.remove(lookup)
        self._found(lookup, None)

    def _found(self, lookup: _Lookup, data: bytes | None) -> None:
        self._open.pop(lookup.stream, None)
        if lookup.deadline is not None:
            lookup.deadline.cancel()
        lookup.on_found(data)

    def _write(self, kind: FrameType, flags: int, stream: int, payload: bytes) -> None:
        if self._writer is not None:
            self._writer.write(encode_frame(kind, flags, stream, payload))
