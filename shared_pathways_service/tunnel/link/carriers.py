"""A carrier over a plain TCP connection, as the far end sees every carrier."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol as Interface

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

    def write(self, buffers: Sequence[Buffer]) -> None:
        """Sends bytes; the buffers must not change any more."""

    def close(self) -> None:
        """Closes it; the owner is notified when it is closed."""


class CarrierOwner(Interface):
    """What a carrier reports."""

    def carrier_opened(self, carrier: Carrier) -> None:
        """It accepts bytes."""

    def carrier_received(self, carrier: Carrier, data: memoryview) -> None:
        """Bytes came; the buffer is reused afterwards."""

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
        self.is_full = False

    def write(self, buffers: Sequence[Buffer]) -> None:
        """Sends bytes."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(buffers)

    def close(self) -> None:
        """Closes it at once: the link sends again what is lost with it."""
        if self._transport is not None:
            self._transport.abort()

    # ---- of asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begins."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=_WRITE_BYTES)
        self._owner.carrier_opened(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        """Returns the buffer."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Passes bytes on."""
        self._owner.carrier_received(self, self._buffer[:nbytes])

    def pause_writing(self) -> None:
        """The kernel's buffer is full."""
        self.is_full = True

    def resume_writing(self) -> None:
        """The kernel's buffer has room."""
        self.is_full = False
        self._owner.carrier_writable(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """It has ended."""
        self._owner.carrier_lost(self, exc)
