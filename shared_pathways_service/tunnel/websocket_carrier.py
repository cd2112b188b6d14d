"""A carrier of a link over the API server's port-forward."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Sequence

from shared_pathways_service.errors import TunnelError
from shared_pathways_service.patience import timeouts
from shared_pathways_service.tunnel.frames import DATA
from shared_pathways_service.tunnel.link.carriers import CarrierOwner
from shared_pathways_service.tunnel.link.link_frames import Buffer
from shared_pathways_service.tunnel.port_forward import PortForward
from shared_pathways_service.tunnel.websocket import KEY_BYTES, FrameBuffer, WebSocketViolation
from shared_pathways_service.tunnel.websocket_upgrade import Upgraded

__all__ = ["WebSocketCarrier", "is_address_of_this_machine"]

#: Bytes of one message: what a link writes at once, as a rule.
_MESSAGE_BYTES = 512 << 10


class WebSocketCarrier(PortForward):
    """A WebSocket to the far end's port.

    Args:
      owner: Is notified.
      remote: The connection; closed at the end.

    Raises:
      TunnelError: The connection has ended already.
    """

    def __init__(self, owner: CarrierOwner, remote: Upgraded) -> None:
        self._owner = owner
        self._is_lost = False
        self._finish_by: asyncio.TimerHandle | None = None
        self.is_full = False
        super().__init__(remote, _MESSAGE_BYTES)
        self._local = self.transport.get_extra_info("sockname")

    def start(self) -> None:
        """Begins to report to the owner."""
        self._owner.carrier_opened(self)
        self.received(self.early)

    @property
    def is_stale(self) -> bool:
        """Whether this machine has lost the connection's address, so that no byte can come."""
        return bool(self._local) and not is_address_of_this_machine(self._local[0])

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
                    self.send(out.frame(filled, os.urandom(KEY_BYTES)))
                    out, filled = self._buffer(), 0
        if filled:
            self.send(out.frame(filled, os.urandom(KEY_BYTES)))

    def close(self) -> None:
        """Closes it at once: the link sends again what is lost with it."""
        if self._finish_by is None:
            self.transport.abort()

    def finish(self) -> None:
        """Waits until the far end closes its side, as it does after the end of a session.

        (A CLOSE of ours could overtake, in the API server, what was written before.)
        """
        if self._finish_by is None and not self._is_lost:
            loop = asyncio.get_running_loop()
            self._finish_by = loop.call_later(timeouts.CARRIER_FINISH.s, self.transport.abort)

    def received(self, data: memoryview) -> None:
        """Passes bytes of the far end on."""
        parts: list[memoryview] = []
        error: Exception | None = None
        try:
            for body in self.bodies(data):
                if body is None:
                    error = ConnectionError("the pod's side closed the connection")
                    break
                parts.append(body)
        except TunnelError as failure:
            error = ConnectionError(failure.cause or str(failure))
        except WebSocketViolation as failure:
            error = failure
        if parts and self._finish_by is None and not self._is_lost:
            self._owner.carrier_received(self, parts)
        if error is not None:
            self._lose(error)

    # ---- of asyncio

    def connection_lost(self, exc: Exception | None) -> None:
        """It has ended; may be called twice."""
        self.remote.lost(exc)
        self.remote.close()
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
        return FrameBuffer(_MESSAGE_BYTES, DATA) if self.is_full else self.out

    def _lose(self, error: Exception) -> None:
        if self._is_lost:
            return
        self._is_lost = True
        if self._finish_by is not None:
            self._finish_by.cancel()
        self.transport.abort()
        self._owner.carrier_lost(self, error)


def is_address_of_this_machine(address: str) -> bool:
    """Whether an interface of this machine has an IP address."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError as error:
        return error.errno != errno.EADDRNOTAVAIL
    return True
