"""The workers of `benchmarks.rm_scale`, in a process of their own.

    python -m benchmarks.rm_scale_workers ADDRESS STREAMS TYPE=COUNT …

A worker is one stream, as the protocol has it: hello, welcome, a beat every 10 s. STREAMS of them
share a connection. Their beats are spread evenly over the time between two of one worker. For each
line `SLICE` on standard input that slice's stream is broken off, and the line `SLICE SECONDS` says
when, by the monotonic clock; its worker comes back as another process would. When the manager
breaks the streams they dial again, as workers do.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc.aio

from shared_pathways_service.constants import PROTOCOL_MAX, PROTOCOL_MIN
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.protocol import resource_manager_pb2_grpc as pb_grpc

#: Workers that say hello at the same time, and seconds until one that was lost is back.
AT_ONCE = 50
AWAY_S = 0.2
#: Every channel with its own connection.
OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2000),
)


class Connection:
    """A connection that streams share; its return is waited for once, for all of them."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.stub: Any = pb_grpc.ResourceManagerStub(channel)
        self._channel = channel
        self._opening: asyncio.Future[None] | None = None

    async def open(self) -> None:
        """Waits until it is there."""
        if self._opening is None or self._opening.done():
            self._opening = asyncio.ensure_future(self._channel.channel_ready())
        await self._opening


class Worker:
    """One worker of one slice of one host."""

    def __init__(self, connection: Connection, slice_id: str, kind: str) -> None:
        self.slice_id = slice_id
        self._connection = connection
        self._stub = connection.stub
        self._kind = kind
        self._incarnation = ""
        self._welcomed_at: int | None = None
        self._beats = itertools.count(1)
        self._call: Any = None
        self._returning: asyncio.Task[None] | None = None

    async def start(self) -> float:
        """Joins as a new process; returns the seconds between two beats."""
        self._incarnation, self._welcomed_at = str(uuid.uuid4()), None
        return await self._join()

    async def beat(self) -> None:
        """Sends a heartbeat unless it is disconnected."""
        if self._call is not None:
            beat = pb.WorkerBeat(sequence=next(self._beats))
            await self._call.write(pb.WorkerMessage(beat=beat))

    async def lose(self) -> None:
        """Aborts its stream, and reconnects as another process would."""
        call, self._call = self._call, None
        print(f"{self.slice_id} {time.monotonic()}", flush=True)
        call.cancel()
        await asyncio.sleep(AWAY_S)
        await self.start()

    async def _join(self) -> float:
        call = self._stub.WorkerSession()
        hello = pb.WorkerHello(
            versions=pb.VersionRange(min=PROTOCOL_MIN, max=PROTOCOL_MAX),
            slice_id=self.slice_id,
            instance_type=self._kind,
            host_count=1,
            incarnation=self._incarnation,
            address="127.0.0.1:29005",
            host=f"host-of-{self.slice_id}",
            pid=1,
            welcomed_at=self._welcomed_at,
        )
        await call.write(pb.WorkerMessage(hello=hello))
        welcome = (await call.read()).welcome
        if self._welcomed_at is None:
            self._welcomed_at = welcome.last_generation
        self._call = call
        call.add_done_callback(self._ended)
        return float(welcome.beat_interval_s)

    def _ended(self, call: Any) -> None:
        if call is self._call:
            self._call = None
            self._returning = asyncio.ensure_future(self._return())

    async def _return(self) -> None:
        # (Ten thousand dials of one process in vain would keep it from the one that is not.)
        await self._connection.open()
        await again(self._join)


async def again(dial: Callable[[], Awaitable[Any]]) -> None:
    """Dials until it succeeds, with the pauses of the real worker and the real proxy."""
    delay = 0.1
    while True:
        await asyncio.sleep(delay * random.uniform(0.5, 1.0))
        # (A stream that breaks before its first answer gives none to look at.)
        with contextlib.suppress(grpc.aio.AioRpcError, AttributeError):
            await dial()
            return
        delay = min(2 * delay, 2.0)


async def beat(workers: Sequence[Worker], interval_s: float) -> None:
    """Has all of them beat, evenly spread; there may come more."""
    while True:
        began, round_of = time.monotonic(), list(workers)
        for number, worker in enumerate(round_of):
            due = began + number * interval_s / len(round_of)
            if (early := due - time.monotonic()) > 0:
                await asyncio.sleep(early)
            # (A worker that is lost at this moment cannot be written to.)
            with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await worker.beat()
        await asyncio.sleep(began + interval_s - time.monotonic())


async def run(address: str, streams: int, kinds: dict[str, int]) -> None:
    named = [(f"{kind.partition(':')[0]}-{n}", kind) for kind in kinds for n in range(kinds[kind])]
    async with contextlib.AsyncExitStack() as stack:
        workers = []
        for start in range(0, len(named), streams):
            channel = await stack.enter_async_context(
                grpc.aio.insecure_channel(address, options=OPTIONS)
            )
            connection = Connection(channel)
            workers += [Worker(connection, *one) for one in named[start : start + streams]]
        there: list[Worker] = []
        # Whoever is in first must beat before the last is.
        first = workers[:AT_ONCE]
        interval_s, *_ = await asyncio.gather(*[worker.start() for worker in first])
        there += first
        beating = asyncio.create_task(beat(there, interval_s))
        for start in range(AT_ONCE, len(workers), AT_ONCE):
            some = workers[start : start + AT_ONCE]
            await asyncio.gather(*[worker.start() for worker in some])
            there += some
        by_slice = {worker.slice_id: worker for worker in workers}
        print("ready", flush=True)
        loop = asyncio.get_running_loop()
        lines = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
        losses: set[asyncio.Task[None]] = set()
        while line := await lines.readline():
            task = asyncio.create_task(by_slice[line.decode().strip()].lose())
            losses.add(task)
            task.add_done_callback(losses.discard)
        beating.cancel()


def main() -> None:
    address, streams, *kinds = sys.argv[1:]
    counts = {kind: int(count) for kind, count in (word.split("=") for word in kinds)}
    asyncio.run(run(address, int(streams), counts))


if __name__ == "__main__":
    main()
