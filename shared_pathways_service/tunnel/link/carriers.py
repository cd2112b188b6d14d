"""A carrier over a plain TCP connection, as the far end sees every carrier."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol as Interface

from shared_pathways_service.patience import timeouts
from shared_pathways_service.tunnel.link.link_frames import Buffer

__all__ = ["Carrier", "CarrierOwner", "TcpCarrier"]

#: Bytes that are read at once.
_READ_BYTES = 256 << 10
#: Bytes that wait in this process for the kernel.
_WRITE_BYTES = 64 << 10


class Carrier(Interface):
    """An ordered stream of bytes to the other end."""

    @property
    def is_full(self) -> bool:
        """Whether it accepts no more bytes now; its owner is notified when it does."""

    @property
    def is_stale(self) -> bool:
        """Whether it cannot transport anything any more, though it is open."""

    def write(self, buffers: Sequence[Buffer]) -> None:
        """Sends bytes; the buffers must not change any more."""

    def close(self) -> None:
        """Closes it at once, if it is not finishing; the owner is notified when it is closed."""

    def finish(self) -> None:
        """Closes it when the other end has taken what was written, or after some seconds."""


class CarrierOwner(Interface):
    """What a carrier reports."""

    def carrier_opened(self, carrier: Carrier) -> None:
        """It accepts bytes."""

    def carrier_received(self, carrier: Carrier, parts: Sequence[memoryview]) -> None:
        """Bytes came; their buffer is reused afterwards."""

    def carrier_writable(self, carrier: Carrier) -> None:
        """It accepts bytes again."""

    def carrier_lost(self, carrier: Carrier, error: Exception | None) -> None:
        """It is closed."""


class TcpCarrier(asyncio.BufferedProtocol):
    """A TCP connection, either dialled or accepted.

    Args:
      owner: Is notified.
    """

    def __init__(self, owner: CarrierOwner) -> None:
        self._owner = owner
        self._buffer = memoryview(bytearray(_READ_BYTES))
        self._transport: asyncio.Transport | None = None
        self._is_closed = False
        self._finish_by: asyncio.TimerHandle | None = None
        self.is_full = False

    @property
    def is_stale(self) -> bool:
        """False: a far end waits for the near end's dials."""
        return False

    @property
    def was_connected(self) -> bool:
        """Whether its connection was made."""
        return self._transport is not None

    def write(self, buffers: Sequence[Buffer]) -> None:
        """Sends bytes."""
        if not self._is_ending:
            assert self._transport is not None
            self._transport.writelines(buffers)
            if self._transport.get_write_buffer_size() > _WRITE_BYTES:
                # Has it call `pause_writing`, which some releases of Python forget after
                # `writelines` (CVE-2024-12254).
                self._transport.set_write_buffer_limits(high=_WRITE_BYTES)

    def close(self) -> None:
        """Closes it at once: the link sends again what is lost with it."""
        self._is_closed = True
        if self._transport is not None and self._finish_by is None:
            self._transport.abort()

    def finish(self) -> None:
        """Sends the end of the stream after what was written, and waits for the other end's.

        (The kernel discards what the other end has not read yet when a socket is closed in which
        bytes wait to be read. So these are read meanwhile, and dropped.)
        """
        if self._is_ending:
            return
        assert self._transport is not None
        loop = asyncio.get_running_loop()
        self._finish_by = loop.call_later(timeouts.CARRIER_FINISH.s, self._transport.abort)
        try:
            self._transport.write_eof()
        except OSError:
            # The other end has closed it.
            self._transport.abort()

    @property
    def _is_ending(self) -> bool:
        is_finishing = self._finish_by is not None
        return self._transport is None or self._transport.is_closing() or is_finishing

    # ---- of asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begins."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self._is_closed:
            transport.abort()
            return
        transport.set_write_buffer_limits(high=_WRITE_BYTES)
        self._owner.carrier_opened(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """Returns the buffer."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Passes bytes on."""
        if self._finish_by is None:
            self._owner.carrier_received(self, (self._buffer[:nbytes],))

    def eof_received(self) -> None:
        """The other end sends no more, and so acknowledges nothing: what waits is of no use."""
        if self._finish_by is None:
            self.close()

    def pause_writing(self) -> None:
        """The kernel's buffer is full."""
        self.is_full = True

    def resume_writing(self) -> None:
        """The kernel's buffer has room."""
        self.is_full = False
        if self._finish_by is None:
            self._owner.carrier_writable(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """It has ended."""
        if self._finish_by is not None:
            self._finish_by.cancel()
        self._owner.carrier_lost(self, exc)
