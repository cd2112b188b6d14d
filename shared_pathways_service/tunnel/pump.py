"""Connects one local socket and one port-forward, with bounded buffers in both directions.

Each direction has one buffer, and reads more only when its content has been passed on: a fast
sender waits, as on a plain connection. The local socket is read and written directly, which saves a
copy in each direction compared with asyncio's transports.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import select
import socket
from collections.abc import Iterator

from shared_pathways_service.errors import TunnelError
from shared_pathways_service.patience import timeouts
from shared_pathways_service.patience.factor import Timeout
from shared_pathways_service.tunnel.counters import TunnelCounters
from shared_pathways_service.tunnel.link.near_uploads import UploadWatch
from shared_pathways_service.tunnel.liveness import Liveness, Verdict
from shared_pathways_service.tunnel.port_forward import PortForward
from shared_pathways_service.tunnel.websocket import CLOSE, KEY_BYTES, PING, WebSocketViolation
from shared_pathways_service.tunnel.websocket_upgrade import Upgraded

__all__ = ["Broken", "Pump", "PumpTimes"]

#: Bytes of each buffer: as much as sockets and TLS deliver at once.
_BUFFER = 256 << 10
#: Pieces in one system call (IOV_MAX is 1024).
_PIECES = 512
_NORMAL_CLOSURE = (1000).to_bytes(2, "big")


class Broken(Exception):  # noqa: N818 - reads as what happened
    """The port-forward ended unexpectedly."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PumpTimes:
    """Times of a pump.

    Attributes:
      ping_s: Seconds between two pings.
      pong: Time for the answer to a ping, while the connection is not blocked.
      half_closed: Time without a byte from the pod, after the local side has ended its sending.
        (The port-forward has no half-close, and a dead TCP peer looks the same.)
      drain: Time without a byte read by the local side, after the pod's side has ended.
      closing: Time for the far end to receive the remaining data and hang up.
    """

    ping_s: float = 20.0
    pong: Timeout = timeouts.TUNNEL_PONG
    half_closed: Timeout = timeouts.TUNNEL_HALF_CLOSED
    drain: Timeout = timeouts.TUNNEL_DRAIN
    closing: Timeout = timeouts.TUNNEL_CLOSE


class Pump(PortForward):
    """Forwards bytes between the two until one of them ends.

    Args:
      local: Connected and non-blocking; the caller closes it afterwards.
      remote: The caller closes it afterwards.
      times: The timeouts.
      watch: Follows what passes.
      counters: The counters of bytes.

    Raises:
      TunnelError: The remote connection has already ended.
    """

    def __init__(
        self,
        local: socket.socket,
        remote: Upgraded,
        times: PumpTimes,
        watch: UploadWatch,
        counters: TunnelCounters | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._local = local
        # The loop gets the descriptor: for a socket it formats texts that cost system calls.
        self._fd = local.fileno()
        self._times = times
        self._uploads = watch
        self._counters = counters or TunnelCounters()
        self._pending: list[memoryview] = []  # in the buffer, for the local socket
        self._is_reading_paused = False
        self._is_writing_paused = False
        self._idle_since = now = self._loop.time()
        self._liveness = Liveness(times.ping_s, times.pong, now)
        self._has_local_ended = False
        self._has_remote_ended = False
        self._failure: Exception | None = None
        self._lost = self._loop.create_future()
        self._news = asyncio.Event()
        self._is_done = False
        super().__init__(remote, _BUFFER)

    async def run(self) -> None:
        """Pumps until either side ends.

        Raises:
          TunnelError: The pod's side could not reach the port, or lost it.
          Broken: The port-forward broke.
        """
        try:
            self.received(self.early)
            # (Answers to the early part may have filled the outgoing buffer.)
            if not (self._has_remote_ended or self._is_writing_paused):
                self._loop.add_reader(self._fd, self._on_local_readable)
            await self._watch()
            await self._close_politely()
        finally:
            self._loop.remove_reader(self._fd)
            self._loop.remove_writer(self._fd)
            if not self._lost.done():
                self.transport.abort()
                # A second cancellation must not cancel `_lost`, for which aiohttp also waits.
                await asyncio.wait({self._lost})
        if self._failure is not None:
            raise self._failure

    async def _watch(self) -> None:
        """Waits for the end, and handles timeouts."""
        while not self._is_done:
            self._news.clear()
            now = self._loop.time()
            verdict = self._liveness.check(now, is_blocked=self._is_blocked())
            if verdict is Verdict.PING:
                self.send_control(PING)
            elif verdict is Verdict.GONE:
                self._end_remote(Broken(f"no answer to a ping within {self._times.pong.s:g} s"))
                continue
            due = self._liveness.due_at
            if (patience := self._timeout_s()) is not None:
                due = min(due, self._idle_since + patience)
                if now >= self._idle_since + patience:
                    self._finish()
                    continue
            timer = self._loop.call_at(due, self._news.set)
            await self._news.wait()
            timer.cancel()

    def _timeout_s(self) -> float | None:
        if self._has_remote_ended:
            return self._times.drain.s
        return self._times.half_closed.s if self._has_local_ended else None

    def _is_blocked(self) -> bool:
        return bool(self._pending) or self._is_writing_paused

    async def _close_politely(self) -> None:
        """Sends a close message, and lets remaining data arrive before the far end hangs up."""
        if self._has_remote_ended or self._lost.done():
            return
        self._has_remote_ended = True
        self.send_control(CLOSE, _NORMAL_CLOSURE)
        await asyncio.wait({self._lost}, timeout=self._times.closing.s)

    def _finish(self) -> None:
        self._is_done = True
        self._news.set()

    # ---- from the pod

    def connection_lost(self, exc: Exception | None) -> None:
        """The far end has ended, expectedly or not."""
        if self._lost.done():
            return
        self._lost.set_result(None)
        self.remote.lost(exc)
        self._end_remote(
            Broken(str(exc) if exc else "the connection was closed without a close message")
        )

    def received(self, data: memoryview) -> None:
        """Passes received data on to the local side."""
        if self._liveness.on_data():
            self._news.set()
        if self._has_remote_ended:
            return
        arrived: list[memoryview] = []
        has_ended, failure = False, None
        try:
            for body in self.bodies(data):
                if body is None:
                    has_ended = True
                else:
                    arrived.append(body)
        except (TunnelError, WebSocketViolation) as error:
            has_ended, failure = True, error
        # Data before the end belongs to the local side, whatever the end is.
        self._pending += arrived
        self._flush()
        if has_ended:
            self._end_remote(failure)

    def _end_remote(self, failure: Exception | None) -> None:
        if self._has_remote_ended:
            return
        self._has_remote_ended = True
        self._failure = failure
        self._idle_since = self._loop.time()
        self._loop.remove_reader(self._fd)
        self._is_done = not self._pending
        self._news.set()

    # ---- to the local side

    def _flush(self) -> None:
        """Writes pending data; stops reading from the pod if the local side does not accept it."""
        try:
            while self._pending:
                sent = self._local.sendmsg(self._pending[:_PIECES])
                self._counters.received_bytes += sent
                for piece in _first(self._pending, sent):
                    self._uploads.written(piece)
                self._pending = _rest(self._pending, sent)
                self._idle_since = self._loop.time()
        except BlockingIOError:
            if not self._is_reading_paused:
                self._is_reading_paused = True
                self.transport.pause_reading()
                self._loop.add_writer(self._fd, self._on_local_writable)
        except OSError:
            self._pending.clear()
            self._finish()

    def _on_local_writable(self) -> None:
        self._flush()
        if self._pending:
            return
        self._is_reading_paused = False
        self._loop.remove_writer(self._fd)
        if self._has_remote_ended:
            self._finish()
        else:
            self._liveness.on_unblocked(self._loop.time())
            self.transport.resume_reading()

    # ---- from the local side

    def _on_local_readable(self) -> None:
        try:
            length = self._local.recv_into(self.out.space)
        except BlockingIOError:
            return
        except OSError:
            self._finish()
            return
        if length:
            self._counters.sent_bytes += length
            self._uploads.sent(self.out.space[:length])
            self.send(self.out.frame(length, os.urandom(KEY_BYTES)))
            return
        self._loop.remove_reader(self._fd)
        self._has_local_ended = True
        self._idle_since = self._loop.time()
        self._is_done = self._is_done or _is_closed(self._local)
        self._news.set()

    def pause_writing(self) -> None:
        """Stops reading from the local side, because the far end does not accept more."""
        self._is_writing_paused = True
        self._loop.remove_reader(self._fd)

    def resume_writing(self) -> None:
        """Continues reading from the local side."""
        self._is_writing_paused = False
        self._liveness.on_unblocked(self._loop.time())
        if not (self._has_local_ended or self._has_remote_ended or self._is_done):
            self._loop.add_reader(self._fd, self._on_local_readable)


def _first(pieces: list[memoryview], size: int) -> Iterator[memoryview]:
    for piece in pieces:
        if size <= 0:
            return
        yield piece[:size]
        size -= len(piece)


def _rest(pieces: list[memoryview], sent: int) -> list[memoryview]:
    for index, piece in enumerate(pieces):
        if sent < len(piece):
            return [piece[sent:], *pieces[index + 1 :]]
        sent -= len(piece)
    return []


def _is_closed(local: socket.socket) -> bool:
    """Whether the other end has closed, not only ended its sending; TCP cannot tell."""
    poll = select.poll()
    poll.register(local, 0)
    return any(events & select.POLLHUP for _, events in poll.poll(0))
