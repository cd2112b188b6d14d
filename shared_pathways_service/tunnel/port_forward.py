"""A port-forward that was taken over from aiohttp, as a protocol of asyncio."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

from shared_pathways_service.tunnel.frames import DATA, Channels
from shared_pathways_service.tunnel.websocket import (
    CLOSE,
    KEY_BYTES,
    PING,
    PONG,
    FrameBuffer,
    FrameReader,
    control_frame,
)
from shared_pathways_service.tunnel.websocket_upgrade import Upgraded

__all__ = ["PortForward"]

#: Bytes of the buffer for received data: as much as sockets and TLS deliver at once.
_READ_BYTES = 256 << 10


class PortForward(asyncio.BufferedProtocol):
    """One WebSocket to a port of a pod.

    Its callbacks may be called as soon as it is made.

    Args:
      remote: The connection; its owner closes it at the end.
      message_bytes: Limit of the data in a message.

    Raises:
      TunnelError: aiohttp has closed the connection.

    Attributes:
      remote: The connection.
      transport: The connection, as asyncio has it.
      early: The data that had arrived before.
      out: Builds messages; may be reused when the transport has sent everything.
    """

    def __init__(self, remote: Upgraded, message_bytes: int) -> None:
        self._frames = FrameReader()
        self._channels = Channels()
        self._in = memoryview(bytearray(_READ_BYTES))
        self.out = FrameBuffer(message_bytes, DATA)
        self.remote = remote
        self.transport, early = remote.hand_to(self)
        self.early = memoryview(early)
        # The transport must not keep references to our buffer, which is reused. (The two kinds of
        # transports interpret the limit as "more than" and as "at least".)
        has_tls = self.transport.get_extra_info("sslcontext") is not None
        self.transport.set_write_buffer_limits(high=1 if has_tls else 0, low=0)

    def send(self, data: bytes | memoryview) -> None:
        """Sends a frame."""
        if not self.transport.is_closing():
            self.transport.write(data)

    def send_control(self, opcode: int, payload: bytes = b"") -> None:
        """Sends a control frame."""
        self.send(control_frame(opcode, payload, os.urandom(KEY_BYTES)))

    def bodies(self, data: memoryview) -> Iterator[memoryview | None]:
        """Parses received data, and answers control frames.

        Yields:
          Bytes of the port, as views of `data`; None as the last one if the far end closes.

        Raises:
          TunnelError: The pod's side could not reach the port, or lost it.
          WebSocketViolation: The server violates the protocol.
        """
        for piece in self._frames.feed(data):
            if piece.opcode == PING:
                self.send_control(PONG, bytes(piece.payload))
            elif piece.opcode == CLOSE:
                self.send_control(CLOSE, bytes(piece.payload))
                yield None
                return
            elif piece.opcode != PONG and (body := self._channels.receive(piece)):
                yield body

    def received(self, data: memoryview) -> None:
        """Takes received data, which changes afterwards."""
        raise NotImplementedError

    # ---- of asyncio

    def get_buffer(self, sizehint: int) -> memoryview:
        """Returns the buffer for received data, which must hold all that aiohttp's TLS has."""
        if sizehint > len(self._in):
            self._in = memoryview(bytearray(sizehint))
        return self._in

    def buffer_updated(self, nbytes: int) -> None:
        """Passes received data on."""
        self.received(self._in[:nbytes])

    def eof_received(self) -> None:
        """The far end hung up; `connection_lost` follows."""
