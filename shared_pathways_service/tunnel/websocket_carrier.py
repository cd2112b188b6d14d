"""A carrier of a link over the API server's port-forward."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

from shared_pathways_service.errors import TunnelError
from shared_pathways_service.tunnel.frames import DATA, Channels
from shared_pathways_service.tunnel.link.carriers import FINISH_S, CarrierOwner
from shared_pathways_service.tunnel.link.link_frames import Buffer
from shared_pathways_service.tunnel.websocket import (
    CLOSE,
    KEY_BYTES,
    PING,
    PONG,
    FrameBuffer,
    FrameReader,
    WebSocketViolation,
    control_frame,
)
from shared_pathways_service.tunnel.websocket_upgrade import Upgraded

__all__ = ["WebSocketCarrier"]

#: Bytes that are read at once.
_READ_BYTES = 256 << 10
#: Bytes of one message: what a link writes at once, as a rule.
_MESSAGE_BYTES = 512 << 10


class WebSocketCarrier(asyncio.BufferedProtocol):
    """A WebSocket to the far end's port.

    Args:
      owner: Is notified.
      remote: The connection; closed at the end.
    """

    def __init__(self, owner: CarrierOwner, remote: Upgraded) -> None:
        self._owner = owner
        self._remote = remote
        self._frames = FrameReader()
        self._channels = Channels()
        self._in = memoryview(bytearray(_READ_BYTES))
        self._out = FrameBuffer(_MESSAGE_BYTES, DATA)
        self._is_lost = False
        self._finish_by: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self.is_full = False

    def start(self) -> None:
        """Takes the connection over.

        Raises:
          TunnelError: It has ended already.
        """
        self._transport, early = self._remote.hand_to(self)
        # The transport must not keep references to our buffer, which is reused. (The two kinds of
        # transports interpret the limit as "more than" and as "at least".)
        has_tls = self._transport.get_extra_info("sslcontext") is not None
        self._transport.set_write_buffer_limits(high=1 if has_tls else 0, low=0)
        self._owner.carrier_opened(self)
        self._receive(memoryview(early))

    def write(self, buffers: Sequence[Buffer]) -> None:
        """Sends bytes, as a rule in one message."""
        out, filled = self._buffer(), 0
        for buffer in buffers:
            view = memoryview(buffer)
            while view:
                taken = view[: len(out.space) - filled]
                out.space[filled : filled + len(taken)] = taken
                filled += len(taken)
                view = view[len(taken) :]
                if filled == len(out.space):
                    self._send(out.frame(filled, os.urandom(KEY_BYTES)))
                    out, filled = self._buffer(), 0
        if filled:
            self._send(out.frame(filled, os.urandom(KEY_BYTES)))

    def close(self) -> None:
        """Closes it at once: the link sends again what is lost with it."""
        if self._finish_by is None:
            self._abort()

    def finish(self) -> None:
        """Waits until the far end closes its side, as it does after the end of a session.

        (A CLOSE of ours could overtake, in the API server, what was written before.)
        """
        if self._finish_by is None and not self._is_lost:
            loop = asyncio.get_running_loop()
            self._finish_by = loop.call_later(FINISH_S, self._abort)

    # ---- of asyncio

    def get_buffer(self, sizehint: int) -> memoryview:
        """Returns the buffer for received data, which must hold all that aiohttp's TLS has."""
        if sizehint > len(self._in):
            self._in = memoryview(bytearray(sizehint))
        return self._in

    def buffer_updated(self, nbytes: int) -> None:
        """Passes received data on."""
        self._receive(self._in[:nbytes])

    def eof_received(self) -> None:
        """The API server hung up; `connection_lost` follows."""

    def connection_lost(self, exc: Exception | None) -> None:
        """It has ended; may be called twice."""
        self._remote.lost(exc)
        self._remote.close()
        self._lose(exc or ConnectionError("the API server closed the connection"))

    def pause_writing(self) -> None:
        """The kernel's buffer is full."""
        self.is_full = True

    def resume_writing(self) -> None:
        """The kernel's buffer has room."""
        self.is_full = False
        if not self._is_lost and self._finish_by is None:
            self._owner.carrier_writable(self)

    # ---- internals

    def _buffer(self) -> FrameBuffer:
        # (The transport may still refer to ours.)
        return FrameBuffer(_MESSAGE_BYTES, DATA) if self.is_full else self._out

    def _send(self, data: bytes | memoryview) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _receive(self, data: memoryview) -> None:
        try:
            for piece in self._frames.feed(data):
                if self._is_lost:
                    return
                if piece.opcode == PING:
                    self._send(control_frame(PONG, bytes(piece.payload), os.urandom(KEY_BYTES)))
                elif piece.opcode == CLOSE:
                    raise ConnectionError("the pod's side closed the connection")
                elif piece.opcode != PONG and (body := self._channels.receive(piece)):
                    if self._finish_by is not None:
                        continue
                    self._owner.carrier_received(self, body)
        except TunnelError as error:
            self._lose(ConnectionError(error.cause or str(error)))
        except (ConnectionError, WebSocketViolation) as error:
            self._lose(error)

    def _abort(self) -> None:
        if self._transport is None:
            self._remote.close()
        else:
            self._transport.abort()

    def _lose(self, error: Exception) -> None:
        if self._is_lost:
            return
        self._is_lost = True
        if self._finish_by is not None:
            self._finish_by.cancel()
        self._abort()
        self._owner.carrier_lost(self, error)
