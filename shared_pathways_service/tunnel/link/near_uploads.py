"""Ends the local connections of JAX's clients so that no two of their uploads fail together.

JAX's client uploads each array in a call of its own, and disconnects on the thread of a call that
fails. If two calls fail at the same time, as they do when their connection is closed, both threads
destroy one thread pool, which can end the process (`RpcHelper::Batcher::Finish` of jaxlib). Once
one call has failed alone, the others may fail in any way.

So a connection with uploads is not closed: one upload is reset, JAX's reset of its session shows
that it has disconnected, and only then its connections are closed. An upload that begins later
fails alone in the same way. Other calls, such as downloads, are reset at once: their failure does
not disconnect, and they have no deadline. A connection that was cut within a frame is closed at
once.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
import struct
from typing import Protocol as Interface

from shared_pathways_service.patience import timeouts
from shared_pathways_service.patience.factor import Timeout
from shared_pathways_service.patience.within import within
from shared_pathways_service.tunnel.link.http2_frames import END_STREAM, FrameType, encode_frame
from shared_pathways_service.tunnel.link.http2_pings import PREFACE, FrameCutter, FrameHead
from shared_pathways_service.tunnel.link.ifrt_messages import BUFFER_PATHS, SESSION_PATH

__all__ = ["UploadEnds", "UploadWatch"]

#: Seconds between the ends of a client's connections that break for the same reason.
_TOGETHER_PAUSE_S = 0.05
_READ_BYTES = 256 << 10
_EARLY_BYTES = 4096
_CANCEL = (8).to_bytes(4, "big")
_CREDENTIALS = struct.Struct("3i")  # of a process, its user and its group


class _Owner(Interface):
    def disconnected(self, watch: UploadWatch) -> None:
        """JAX has reset the session on this connection."""

    def take_over(self, watch: UploadWatch, local: socket.socket) -> None:
        """The connection has no other end any more."""


class UploadWatch:
    """Follows the calls on one connection of HTTP/2. No I/O.

    Args:
      owner: Is notified.
      client: The process of JAX's client; 0: not known.
      is_http2: None: its first bytes show it.

    Attributes:
      from_jax: Cuts what JAX sent.
      to_jax: Cuts what was written to JAX's socket.
      has_buffers: Whether JAX transfers arrays on it.
    """

    def __init__(self, owner: _Owner, client: int, *, is_http2: bool | None = None) -> None:
        self._owner = owner
        self.client = client
        self.from_jax = FrameCutter(has_preface=True, on_frame=self._on_sent)
        self.to_jax = FrameCutter(has_preface=False, on_frame=self._on_answered)
        self.has_buffers = False
        self._is_http2 = is_http2
        self._early = bytearray()
        self._session = 0
        self._uploads: dict[int, None] = {}
        self._other_calls: set[int] = set()

    @property
    def has_session(self) -> bool:
        """Whether JAX's session is open on it."""
        return self._session != 0

    @property
    def has_uploads(self) -> bool:
        """Whether an upload is open on it."""
        return self.has_buffers and bool(self._uploads)

    @property
    def is_of_jax(self) -> bool:
        """Whether JAX's client has opened its session on it, or transfers arrays."""
        return self.has_session or self.has_buffers

    @property
    def can_reset(self) -> bool:
        """Whether JAX can get a frame: not within another one."""
        return self.to_jax.is_between_frames

    def sent(self, data: memoryview) -> None:
        """Takes what JAX sent."""
        if self._is_http2 is None:
            self._is_http2 = PREFACE.startswith(bytes(data[: len(PREFACE)]))
            early, self._early = self._early, bytearray()
            self.written(memoryview(early))
        if self._is_http2:
            self.from_jax.cut(data)
            self.from_jax.pings.clear()

    def written(self, data: memoryview) -> None:
        """Takes what was written to JAX's socket."""
        if self._is_http2:
            self.to_jax.cut(data)
            self.to_jax.pings.clear()
        elif self._is_http2 is None:
            self._early += data
            # (The settings of a server may come first, but not more.)
            self._is_http2 = None if len(self._early) < _EARLY_BYTES else False

    def reset_upload(self) -> bytes:
        """Returns a frame for JAX that fails one upload."""
        stream = next(iter(self._uploads))
        del self._uploads[stream]
        return _reset(stream)

    def reset_other_calls(self) -> bytes:
        """Returns frames for JAX that fail all calls but uploads."""
        streams, self._other_calls = self._other_calls, set()
        return b"".join(map(_reset, sorted(streams)))

    def take_over(self, local: socket.socket) -> None:
        """Ends the connection; the owner closes its socket."""
        self._owner.take_over(self, local)

    def _on_sent(self, head: FrameHead, payload: bytes) -> None:
        if head.type == FrameType.HEADERS:
            # (A path's first use is a literal, and one session is opened on a connection.)
            if SESSION_PATH in payload:
                self._session = head.stream
            else:
                self.has_buffers = self.has_buffers or BUFFER_PATHS in payload
                self._uploads[head.stream] = None
        elif head.type == FrameType.RST_STREAM:
            self._forget(head.stream)
            if head.stream == self._session:
                self._session = 0
                self._owner.disconnected(self)
        elif head.type == FrameType.DATA and head.flags & END_STREAM and head.length:
            # The only message of a call. Uploads end with an empty frame.
            self._uploads.pop(head.stream, None)
            self._other_calls.add(head.stream)

    def _on_answered(self, head: FrameHead, _payload: bytes) -> None:
        is_end = head.type in (FrameType.HEADERS, FrameType.DATA) and head.flags & END_STREAM
        if is_end or head.type == FrameType.RST_STREAM:
            self._forget(head.stream)
            if head.stream == self._session:
                self._session = 0

    def _forget(self, stream: int) -> None:
        self._uploads.pop(stream, None)
        self._other_calls.discard(stream)


@dataclasses.dataclass(eq=False)
class _Ending:
    """A connection whose other end is gone."""

    watch: UploadWatch
    local: socket.socket
    task: asyncio.Task[None] | None = None
    news: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    is_failing: bool = False  # an upload that was reset
    has_disconnected: bool = False
    has_hung_up: bool = False


class UploadEnds:
    """Ends connections of JAX's clients to proxies that are gone.

    Args:
      disconnect: The time in which JAX disconnects after a failed upload.
    """

    def __init__(self, disconnect: Timeout = timeouts.JAX_DISCONNECT) -> None:
        self._disconnect = disconnect
        self._loop = asyncio.get_running_loop()
        self._watches: set[UploadWatch] = set()
        self._endings: set[_Ending] = set()
        self._is_closing = False

    def watch(self, local: socket.socket, *, is_http2: bool | None = None) -> UploadWatch:
        """Begins to follow a connection; `UploadWatch.take_over` must end it."""
        watch = UploadWatch(self, _process_of(local), is_http2=is_http2)
        self._watches.add(watch)
        return watch

    async def close(self) -> None:
        """Closes all that was taken over, once an upload that is open has failed alone."""
        self._is_closing = True
        self._notify()
        tasks = [ending.task for ending in self._endings if ending.task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)

    # ---- the owner of its watches

    def disconnected(self, watch: UploadWatch) -> None:
        """JAX has reset the session on this connection."""
        for ending in self._endings:
            if ending.watch.client == watch.client:
                ending.has_disconnected = True
        self._notify()

    def take_over(self, watch: UploadWatch, local: socket.socket) -> None:
        """Closes a connection, at once or when an upload has failed alone."""
        if not (watch.can_reset and watch.is_of_jax):
            self._watches.discard(watch)
            local.close()
            return
        ending = _Ending(watch, local)
        self._endings.add(ending)
        ending.task = self._loop.create_task(self._end(ending))
        self._loop.add_reader(local.fileno(), self._on_readable, ending)

    # ---- internals

    async def _end(self, ending: _Ending) -> None:
        try:
            # (Its other connections may be about to break, and bytes may not be read yet.)
            await asyncio.sleep(_TOGETHER_PAUSE_S)
            watch = ending.watch
            if watch.has_session or not watch.has_buffers:
                await self._wait_for_uploads(ending)
                # (JAX's session has a connection of its own. Another client's, with one for
                # everything, must not wait for an upload that may never begin.)
                if not watch.has_uploads:
                    return
            await self._fail_an_upload(ending)
        finally:
            self._loop.remove_reader(ending.local.fileno())
            ending.local.close()
            self._endings.discard(ending)
            self._watches.discard(ending.watch)
            self._notify()

    async def _fail_an_upload(self, ending: _Ending) -> None:
        """Resets the first upload, which may begin later, and waits until JAX has disconnected."""
        watch = ending.watch
        with contextlib.suppress(OSError, TimeoutError):
            while not watch.has_uploads:
                async with within(self._disconnect):
                    await self._loop.sock_sendall(ending.local, watch.reset_other_calls())
                if ending.has_hung_up or self._is_closing:
                    return
                await _news(ending)
            ending.is_failing = True
            is_shown = any(e.has_session for e in self._watches if e.client == watch.client)
            async with within(self._disconnect if is_shown else timeouts.JAX_DISCONNECT_UNSEEN):
                await self._loop.sock_sendall(ending.local, watch.reset_upload())
                while not (ending.has_disconnected or ending.has_hung_up):
                    await _news(ending)

    async def _wait_for_uploads(self, ending: _Ending) -> None:
        """Waits until no upload of the same client is about to fail."""
        while not ending.has_hung_up and any(
            each.is_failing or each.watch.has_uploads
            for each in self._endings
            if each is not ending and each.watch.client == ending.watch.client
        ):
            await _news(ending)

    def _on_readable(self, ending: _Ending) -> None:
        try:
            data = ending.local.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            ending.watch.sent(memoryview(data))
        else:
            ending.has_hung_up = True
            self._loop.remove_reader(ending.local.fileno())
        ending.news.set()

    def _notify(self) -> None:
        for ending in self._endings:
            ending.news.set()


def _reset(stream: int) -> bytes:
    return encode_frame(FrameType.RST_STREAM, 0, stream, _CANCEL)


async def _news(ending: _Ending) -> None:
    await ending.news.wait()
    ending.news.clear()


def _process_of(local: socket.socket) -> int:
    """Returns the process at the other end of a Unix socket; 0: not known, as on macOS."""
    if local.family != socket.AF_UNIX or not hasattr(socket, "SO_PEERCRED"):
        return 0
    try:
        found = local.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    except OSError:
        return 0
    process: int = _CREDENTIALS.unpack(found)[0]
    return process
