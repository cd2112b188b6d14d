"""The agent's end of the socket pair."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Mapping
from typing import Any

from shared_pathways_service.agent.messages import Decoder, MessageError, encode
from shared_pathways_service.patience import timeouts
from shared_pathways_service.patience.within import within

__all__ = ["Channel"]

#: Bytes that may be buffered for a client that does not read. Further messages are dropped; the
#: next message that fits contains the whole state again.
_BACKLOG = 8 << 20


class Channel:
    """Exchanges messages with the client; never blocks on a client that does not read."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, descriptor: int) -> Channel:
        """Takes over the inherited descriptor, which children of this process do not inherit."""
        sock = socket.socket(fileno=descriptor)
        sock.set_inheritable(False)
        reader, writer = await asyncio.open_unix_connection(sock=sock)
        return cls(reader, writer)

    def send(self, message: Mapping[str, Any]) -> None:
        """Sends a message if the client is still connected."""
        transport = self._writer.transport
        if not transport.is_closing() and transport.get_write_buffer_size() < _BACKLOG:
            self._writer.write(encode(message))

    async def messages(self) -> AsyncIterator[dict[str, Any]]:
        """Yields the client's messages until it closes its end, or sends an invalid message."""
        decoder = Decoder()
        with contextlib.suppress(ConnectionError, MessageError):
            while data := await self._reader.read(1 << 16):
                for message in decoder.feed(data):
                    yield message

    async def close(self) -> None:
        """Flushes the last messages and closes."""
        with contextlib.suppress(ConnectionError, TimeoutError):
            async with within(timeouts.AGENT_LAST_MESSAGES):
                await self._writer.drain()
                self._writer.close()
                await self._writer.wait_closed()
        self._writer.transport.abort()
