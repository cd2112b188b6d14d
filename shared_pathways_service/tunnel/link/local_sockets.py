"""A local socket whose bytes travel over a link: JAX's at the near end, the proxy's at the far."""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections import deque
from collections.abc import Callable
from typing import Protocol as Interface

from shared_pathways_service.tunnel.link.http2_pings import FrameCutter, PingKeeper
from shared_pathways_service.tunnel.link.link_events import Arrived, Protocol
from shared_pathways_service.tunnel.link.link_frames import MAX_PAYLOAD_BYTES, Buffer
from shared_pathways_service.tunnel.link.link_state import Link

__all__ = ["Bridge", "BridgeOwner", "LocalFilter", "LocalWatch"]

#: Bytes of the first read. Each full one doubles the next, up to a frame; a small one halves it.
_FIRST_READ_BYTES = 16 << 10
#: Buffers in one system call (IOV_MAX is 1024).
_BUFFERS = 512


class BridgeOwner(Interface):
    """What a bridge reports."""

    def bridge_moved(self) -> None:
        """The link has something to send."""

    def bridge_closed(self, connection: int) -> None:
        """The bridge has closed its socket and ended its part of the connection."""


class LocalFilter(Interface):
    """Reads what passes a connection of HTTP/2, and may add, change or delay frames.

    Attributes:
      on_ready: Called when `ready` has bytes.
      replies: Frames for the local side; the caller takes them.
    """

    on_ready: Callable[[], None]
    replies: list[bytes]

    @property
    def is_full(self) -> bool:
        """Whether the local side is not to be read."""

    def from_local(self, data: Buffer) -> list[Buffer]:
        """Takes what the local side sent; returns what the peer is to get."""

    def from_peer(self, payloads: list[Buffer]) -> list[Buffer]:
        """Takes whole frames; returns whole frames for the local side."""

    def ready(self) -> list[Buffer]:
        """Returns what was delayed, for the peer."""

    def finish(self) -> list[Buffer]:
        """Returns all that was kept when the local side sends no more."""


class LocalWatch(Interface):
    """Follows a connection of HTTP/2, and ends it.

    Attributes:
      from_jax: Cuts what the local side sent, if that is known to be HTTP/2.
    """

    from_jax: FrameCutter

    @property
    def is_of_jax(self) -> bool:
        """Whether JAX's client is the local side."""

    def sent(self, data: memoryview) -> None:
        """Takes what the local side sent and `from_jax` did not get."""

    def written(self, data: memoryview) -> None:
        """Takes what was written to the local side."""

    def take_over(self, local: socket.socket) -> None:
        """Closes the socket, now or later."""


class Bridge:
    """Connects one local socket with one connection of a link, with bounded buffers.

    Args:
      link: The end of the link.
      connection: The connection's number.
      protocol: The connection's protocol.
      local: Non-blocking, and connected or about to be; closed by the bridge.
      owner: Is notified.
      is_client: Whether the local side is the client of the protocol.
      passes: Reads what passes.
      watch: Gets the socket at the end, instead of closing it.
    """

    def __init__(
        self,
        link: Link,
        connection: int,
        protocol: Protocol,
        local: socket.socket,
        owner: BridgeOwner,
        *,
        is_client: bool,
        passes: LocalFilter | None = None,
        watch: LocalWatch | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._link = link
        self._connection = connection
        self._local = local
        self._fd = local.fileno()
        self._owner = owner
        self._watch = watch
        self._cutter: FrameCutter | None = None
        if protocol is Protocol.HTTP2:
            self._cutter = watch.from_jax if watch else FrameCutter(has_preface=is_client)
        self._pings = PingKeeper()
        self._filter = passes
        if passes is not None:
            passes.on_ready = self._on_filter_ready
        self._outbox = bytearray()  # of the filter, until the link has room
        self._read_bytes = _FIRST_READ_BYTES
        self._pending: deque[tuple[memoryview, int]] = deque()  # with the end of their message
        self._is_reading = self._is_writing_blocked = False
        self._has_local_ended = self._has_peer_ended = False
        self._is_closed = False

    def start(self, early: bytes = b"") -> None:
        """Begins to read.

        Args:
          early: What was read from the socket already.
        """
        if early:
            self._send(early)
        self.resume()

    def resume(self) -> None:
        """Reads on if the link has room."""
        self._drain()
        self._close_if_done()
        if self._is_reading or self._has_local_ended or self._is_closed or self._is_held:
            return
        if self._link.room(self._connection):
            self._is_reading = True
            self._loop.add_reader(self._fd, self._on_readable)

    def arrived(self, event: Arrived) -> None:
        """Passes messages on to the local side."""
        payloads = (
            event.payloads if self._filter is None else self._filter.from_peer(event.payloads)
        )
        payloads = self._pings.arrived(payloads) if self._cutter else payloads
        for payload in payloads:
            self._pending.append((memoryview(payload), 0))
        # An empty view marks where the message is delivered.
        self._pending.append((memoryview(b""), event.end))
        self._flush()

    def peer_ended(self) -> None:
        """Ends the local side's reading when it has everything."""
        self._has_peer_ended = True
        self._flush()

    def answer_pings(self, now: float) -> None:
        """Answers the PINGs that wait too long for the peer's answer."""
        for answer in self._pings.answers(now):
            self._pending.append((memoryview(answer), 0))
        if self._pending:
            self._flush()

    def close(self) -> None:
        """Closes the local socket, or hands it over."""
        if self._is_closed:
            return
        self._is_closed = True
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        if self._watch is None:
            self._local.close()
        else:
            self._keep_from_filter()
            self._watch.sent(memoryview(self._outbox))
            self._watch.take_over(self._local)
        self._owner.bridge_closed(self._connection)

    # ---- from the local side

    def _on_readable(self) -> None:
        room = self._link.room(self._connection)
        if not room or self._is_held:
            self._is_reading = False
            self._loop.remove_reader(self._fd)
            return
        size = min(self._read_bytes, room, self._link.piece_bytes)
        try:
            data = self._local.recv(size)
        except BlockingIOError:
            return
        except OSError as error:
            self._break(f"the local connection broke: {error.strerror}")
            return
        if not data:
            self._end_local()
            return
        if len(data) == size:
            self._read_bytes = min(2 * self._read_bytes, MAX_PAYLOAD_BYTES)
        elif len(data) < self._read_bytes // 4:
            self._read_bytes = max(_FIRST_READ_BYTES, self._read_bytes // 2)
        self._send(data)
        self._owner.bridge_moved()

    @property
    def _is_held(self) -> bool:
        return bool(self._outbox) or (self._filter is not None and self._filter.is_full)

    def _send(self, data: bytes) -> None:
        if self._filter is None:
            self._pass(data)
            return
        self._outbox += b"".join(self._filter.from_local(data))
        self._drain()
        if self._filter.replies:
            self._pending.extend((memoryview(reply), 0) for reply in self._filter.replies)
            self._filter.replies.clear()
            self._flush()

    def _on_filter_ready(self) -> None:
        if self._filter is not None and not self._is_closed:
            self._outbox += b"".join(self._filter.ready())
            self.resume()
            self._owner.bridge_moved()

    def _drain(self) -> None:
        """Sends what the filter returned, as far as the link has room."""
        while self._outbox and (room := self._link.room(self._connection)):
            data = bytes(self._outbox[: min(room, self._link.piece_bytes)])
            del self._outbox[: len(data)]
            self._pass(data)
        if self._has_local_ended and not self._outbox:
            self._link.end(self._connection)

    def _pass(self, data: bytes) -> None:
        if self._cutter is None:
            if self._watch is not None:
                self._watch.sent(memoryview(data))
            self._link.send(self._connection, data, is_whole=True)
            return
        view = memoryview(data)
        whole = self._cutter.cut(view)
        now = self._loop.time()
        for payload in self._cutter.pings:
            self._pings.asked(payload, now)
        self._cutter.pings.clear()
        if whole:
            self._link.send(self._connection, view[:whole], is_whole=True)
        if whole < len(data):
            self._link.send(self._connection, view[whole:], is_whole=False)

    def _end_local(self) -> None:
        self._has_local_ended = True
        self._is_reading = False
        self._loop.remove_reader(self._fd)
        self._keep_from_filter()
        self._drain()
        self._owner.bridge_moved()
        self._close_if_done()

    def _keep_from_filter(self) -> None:
        if self._filter is not None:
            self._outbox += b"".join(self._filter.finish())

    # ---- to the local side

    def _flush(self) -> None:
        if self._is_closed:
            return
        try:
            self._write()
        except BlockingIOError:
            if not self._is_writing_blocked:
                self._is_writing_blocked = True
                self._loop.add_writer(self._fd, self._flush)
            return
        except OSError as error:
            self._break(f"the local connection broke: {error.strerror}")
            return
        if self._is_writing_blocked:
            self._is_writing_blocked = False
            self._loop.remove_writer(self._fd)
        if self._has_peer_ended:
            self._shut_down()
            self._close_if_done()

    def _write(self) -> None:
        """Writes all that is pending; raises `BlockingIOError` if the local side is not ready."""
        is_delivered = False
        try:
            while self._pending:
                buffers = [view for view, _ in itertools.islice(self._pending, _BUFFERS)]
                sent = self._local.sendmsg(buffers) if any(buffers) else 0
                is_delivered = self._drop_written(sent) or is_delivered
        finally:
            if is_delivered:
                self._owner.bridge_moved()

    def _drop_written(self, sent: int) -> bool:
        """Removes what was written; returns whether a message is delivered."""
        delivered = 0
        while self._pending and len(self._pending[0][0]) <= sent:
            view, end = self._pending.popleft()
            sent -= len(view)
            if self._watch is not None:
                self._watch.written(view)
            delivered = end or delivered
        if sent:
            view, end = self._pending[0]
            self._pending[0] = (view[sent:], end)
            if self._watch is not None:
                self._watch.written(view[:sent])
        if delivered:
            self._link.delivered(self._connection, delivered)
        return bool(delivered)

    def _shut_down(self) -> None:
        if self._watch is not None and self._watch.is_of_jax and not self._has_local_ended:
            # (It would end all uploads at once.)
            self._end_local()
            return
        try:
            self._local.shutdown(socket.SHUT_WR)
        except OSError:
            # (The local side has hung up already.)
            self._end_local()

    def _close_if_done(self) -> None:
        has_ended = self._has_local_ended and self._has_peer_ended
        if has_ended and not (self._is_closed or self._pending or self._outbox):
            self.close()

    def _break(self, reason: str) -> None:
        self._link.reset(self._connection, reason)
        self.close()
        self._owner.bridge_moved()
