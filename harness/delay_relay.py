"""A relay that behaves like a slow line: it delays bytes, and limits their rate, in each direction.

The kernel of a test machine need not have `netem`. Not modelled: loss, and the slow start of TCP
on a line of such a delay, as both of the relay's connections are local.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeAlias

__all__ = ["Connect", "Line", "LineSpeed", "delay_relay"]

Streams: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect: TypeAlias = Callable[[], Awaitable[Streams]]

#: Bytes that are read at once: what a line takes in `_READ_S`, within these limits.
_LEAST_READ_BYTES, _MOST_READ_BYTES, _READ_S = 16 << 10, 256 << 10, 0.002
#: Seconds of bytes that wait for a line before its sender is stopped, like a router's queue.
_QUEUE_S = 0.05
#: Bytes under way in one direction of a connection on a line without a rate.
_MOST_UNDER_WAY = 64 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class LineSpeed:
    """How fast a line is, alike in both directions.

    Attributes:
      delay_s: Seconds from one end to the other; half a round trip.
      bytes_per_s: Shared by all connections; None: not limited.
    """

    delay_s: float
    bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        if self.delay_s < 0 or (self.bytes_per_s is not None and self.bytes_per_s <= 0):
            raise ValueError(f"a line cannot have this speed: {self}")

    @property
    def read_bytes(self) -> int:
        """Bytes that are read at once: few milliseconds' worth, as a slow line has short queues."""
        if self.bytes_per_s is None:
            return _MOST_READ_BYTES
        part = int(self.bytes_per_s * _READ_S)
        return max(_LEAST_READ_BYTES, min(part, _MOST_READ_BYTES))


class Line:
    """One direction of a line; bytes of all connections take it one after the other."""

    def __init__(self, speed: LineSpeed) -> None:
        self._speed = speed
        self.read_bytes = speed.read_bytes
        self._free_at = 0.0
        #: Bytes that it has taken.
        self.taken = 0

    def take(self, count: int, now: float) -> float:
        """Takes bytes; returns when the last of them arrives."""
        self.taken += count
        rate = self._speed.bytes_per_s
        self._free_at = max(self._free_at, now) + (count / rate if rate else 0.0)
        return self._free_at + self._speed.delay_s

    def blocked_s(self, now: float) -> float:
        """Returns the seconds for which a sender must wait."""
        return max(0.0, self._free_at - now - _QUEUE_S)


@contextlib.asynccontextmanager
async def delay_relay(
    connect: Connect, speed: LineSpeed, *, port: int = 0
) -> AsyncIterator[tuple[int, Line, Line]]:
    """Relays connections of a local port.

    Args:
      connect: Connects to the other end.
      speed: Of each direction.
      port: The port; 0: any.

    Yields:
      The port, and the lines of both directions: from its clients, and to them.
    """
    up, down = Line(speed), Line(speed)
    pairs: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        pairs.add(task)
        try:
            far_reader, far_writer = await connect()
            with contextlib.closing(writer), contextlib.closing(far_writer):
                async with asyncio.TaskGroup() as directions:
                    directions.create_task(_carry(reader, far_writer, up))
                    directions.create_task(_carry(far_reader, writer, down))
        except* (OSError, asyncio.CancelledError):
            # A connection that breaks ends the pair, as on a real line; asyncio would log the rest.
            pass
        finally:
            pairs.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", port, limit=2 * speed.read_bytes)
    try:
        yield server.sockets[0].getsockname()[1], up, down
    finally:
        server.close()
        for task in list(pairs):
            task.cancel()
        await asyncio.gather(*pairs, return_exceptions=True)


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, line: Line) -> None:
    loop = asyncio.get_running_loop()
    most = _MOST_UNDER_WAY // line.read_bytes
    under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(most)

    async def read() -> None:
        while True:
            if blocked_s := line.blocked_s(loop.time()):
                await asyncio.sleep(blocked_s)
                continue
            data = await reader.read(line.read_bytes)
            await under_way.put((line.take(len(data), loop.time()), data))
            if not data:
                return

    async def write() -> None:
        while True:
            arrives_at, data = await under_way.get()
            if (left_s := arrives_at - loop.time()) > 0:
                await asyncio.sleep(left_s)
            if not data:
                writer.write_eof()
                return
            writer.write(data)
            await writer.drain()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(read())
        tasks.create_task(write())
