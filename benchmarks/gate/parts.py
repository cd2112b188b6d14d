"""What the gate measures: each part is a process of its own, and prints its rounds as JSON.

    python -m benchmarks.gate.parts PART ROUNDS

In each round of a row a figure and its reference are measured one after the other. What a reference
does is none of this project's code: a bare gRPC server of grpcio, JAX on this machine's CPU, a
forwarder of asyncio's streams, SQLite.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import json
import os
import random
import resource
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks.proxy.clients import median_seconds, raw_streams
from benchmarks.proxy.running import less, running_proxy
from harness.own_service import ROOT, own_service
from harness.processor_time import seconds_by_process

#: A figure and its reference in seconds, of each round, by row.
Rounds: TypeAlias = dict[str, list[tuple[float, float]]]

MB = 1_000_000
#: Seconds of processor time within a second of a service that only waits, at most; and the seconds
#: within which it has prepared another proxy.
_QUIET_S = 0.04
_QUIET_LIMIT_S = 120.0


def interleaved(
    rounds: int, rows: dict[str, tuple[Callable[[], float], Callable[[], float]]]
) -> Rounds:
    """Measures each row and its reference in turn, in alternating order."""
    found: Rounds = {name: [] for name in rows}
    for number in range(rounds):
        for name, (figure, reference) in rows.items():
            if number % 2:
                second = reference()
                found[name].append((figure(), second))
            else:
                first = figure()
                found[name].append((first, reference()))
    return found


def proxy(rounds: int) -> Rounds:
    """JAX's round trip and upload through a proxy, to bare gRPC calls with as many bytes."""
    with running_proxy() as running, less("stream") as socket, raw_streams(socket) as (take, _):
        import grpc
        import numpy as np

        from shared_pathways_service.jax_client import ProxyTarget, attach

        attach(ProxyTarget(address=running.address), timeout=120)
        import jax

        channel = grpc.insecure_channel(f"unix:{socket}")
        send: Any = channel.stream_unary("/raw/Take")
        step = jax.jit(lambda x: x + 1)
        scalar = step(np.float32(1))
        large = np.random.default_rng(0).random(16 << 20, np.float32)  # the same 64 MiB
        try:
            return interleaved(
                rounds,
                {
                    "proxy round trip": (
                        lambda: median_seconds(lambda: step(scalar).block_until_ready(), 100),
                        lambda: median_seconds(lambda: send(iter([b"x"])), 100),
                    ),
                    "proxy upload": (
                        lambda: median_seconds(
                            lambda: jax.device_put(large).block_until_ready(), 2
                        ),
                        lambda: median_seconds(take, 2),
                    ),
                },
            )
        finally:
            channel.close()


def tunnel(rounds: int) -> Rounds:
    """Round trips, bytes and both at once through both ends of a link, to two plain forwarders."""
    return asyncio.run(_tunnel(rounds))


async def _tunnel(rounds: int) -> Rounds:
    rows = {
        "tunnel round trip": _pings,
        "tunnel bytes": _bytes,
        "tunnel round trip, beside an upload": _pings_beside,
    }
    found: Rounds = {row: [] for row in rows}
    async with contextlib.AsyncExitStack() as stack:
        echo = await stack.enter_async_context(_listening(_echo_or_take))
        first = await stack.enter_async_context(_listening(_forwarder(echo)))
        plain = await stack.enter_async_context(_listening(_forwarder(first)))
        link = await stack.enter_async_context(_link(echo))
        ways = [[await _opened(port, verb) for verb in (b"e", b"u")] for port in (link, plain)]
        for number in range(rounds):
            for row, measure in rows.items():
                pair = [0.0, 0.0]
                for index in (0, 1) if number % 2 else (1, 0):
                    pair[index] = await measure(*ways[index])
                found[row].append((pair[0], pair[1]))
        for way in ways:
            for _, writer in way:
                writer.close()
    return found


_Connection: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_UPLOAD_BYTES = 32 << 20


async def _opened(port: int, verb: bytes) -> _Connection:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(verb)
    return reader, writer


async def _ping(connection: _Connection) -> float:
    reader, writer = connection
    began = time.perf_counter()
    writer.write(bytes(64))
    await reader.readexactly(64)
    return time.perf_counter() - began


async def _pings(connection: _Connection, _: _Connection) -> float:
    return statistics.median([await _ping(connection) for _ in range(200)])


async def _pings_beside(connection: _Connection, upload: _Connection) -> float:
    transfer = asyncio.create_task(_upload(*upload))
    took = [await _ping(connection)]
    while not transfer.done():
        took.append(await _ping(connection))
    await transfer
    return statistics.median(took)


async def _upload(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    data = bytes(64 << 10)
    for _ in range(_UPLOAD_BYTES // len(data)):
        writer.write(data)
        await writer.drain()
    await reader.readexactly(1)


async def _bytes(connection: _Connection, _: _Connection) -> float:
    reader, writer = connection
    began = time.perf_counter()
    data = bytes(64 << 10)

    async def send() -> None:
        for _ in range(256):
            writer.write(data)
            await writer.drain()

    sending = asyncio.create_task(send())
    await reader.readexactly(256 * len(data))
    await sending
    return time.perf_counter() - began


_Serve: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def _listening(serve: _Serve) -> AsyncIterator[int]:
    tasks: set[asyncio.Task[None]] = set()

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            await serve(reader, writer)
        writer.close()

    server = await asyncio.start_server(served, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _echo_or_take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    verb, taken = await reader.readexactly(1), 0
    while data := await reader.read(64 << 10):
        if verb == b"e":
            writer.write(data)
            await writer.drain()
        elif not (taken := (taken + len(data)) % _UPLOAD_BYTES):
            writer.write(b"k")


def _forwarder(port: int) -> _Serve:
    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(64 << 10):
            writer.write(data)
            await writer.drain()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner, out = await asyncio.open_connection("127.0.0.1", port)
        try:
            await asyncio.gather(copy(reader, out), copy(inner, writer))
        finally:
            out.close()

    return forward


@contextlib.asynccontextmanager
async def _link(target: int) -> AsyncIterator[int]:
    from benchmarks.slow_links import Owner, listening_near_end
    from shared_pathways_service.tunnel.link.carriers import CarrierOwner, TcpCarrier
    from shared_pathways_service.tunnel.link.connectors import connector_of
    from shared_pathways_service.tunnel.link.far_end import FarEnd
    from shared_pathways_service.tunnel.link.near_end import NearEnd

    token, loop = b"of the gate's tenant", asyncio.get_running_loop()
    async with contextlib.AsyncExitStack() as stack:
        far = FarEnd(token, connector_of(f"127.0.0.1:{target}"))
        port = await far.start("127.0.0.1", 0)
        stack.push_async_callback(far.close)

        async def dial(owner: CarrierOwner) -> None:
            await loop.create_connection(lambda: TcpCarrier(owner), "127.0.0.1", port)

        owner = Owner()
        near = NearEnd(dial, token, owner)
        near.start()
        stack.push_async_callback(near.close)
        near_port = stack.enter_context(listening_near_end(near))
        await owner.is_up.wait()
        yield near_port


def manager(rounds: int) -> Rounds:
    """A tenant's placement by a resource manager, to a gRPC call and as many commits of SQLite."""
    from harness.processes import Service
    from shared_pathways_service.protocol import resource_manager_pb2 as pb

    made = 0
    with (
        tempfile.TemporaryDirectory(prefix="sps-") as directory,
        less("stream") as socket,
        raw_streams(socket),
        Service(Path(directory, "service")) as service,
        _commits(Path(directory, "reference")) as commit,
    ):
        import grpc

        service.start_ready_workers("slice-0")
        channel = grpc.insecure_channel(f"unix:{socket}")
        send: Any = channel.stream_unary("/raw/Take")

        def placed() -> None:
            nonlocal made
            made += 1
            with service.tenant(f"tenant-{made}") as tenant:
                tenant.expect("placement")
                tenant.send(pb.TenantMessage(bye=pb.TenantBye()))
                while tenant.next() is not None:
                    pass

        def reference() -> None:
            # A call to ask, a call to end, and a commit for each of the two.
            for _ in range(2):
                send(iter([b"x"]))
                commit()

        try:
            return interleaved(
                rounds,
                {
                    "resource manager, placement": (
                        lambda: median_seconds(placed, 15),
                        lambda: median_seconds(reference, 15),
                    )
                },
            )
        finally:
            channel.close()


@contextlib.contextmanager
def _commits(path: Path) -> Iterator[Callable[[], None]]:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("CREATE TABLE kept (value BLOB)")
        yield lambda: connection.execute("INSERT INTO kept VALUES (?)", (bytes(500),)).close()


def core(rounds: int) -> Rounds:
    """Events of the resource manager's core, to a loop over a heap and a dictionary."""
    from benchmarks.rm_core import Load

    load = Load(1_000, 0, 1)
    load.run(500)

    def events() -> float:
        first = len(load.events)
        began = time.process_time()
        load.run(1_000)
        return (time.process_time() - began) / (len(load.events) - first)

    def reference() -> float:
        drawn, heap, known = random.Random(1), list[tuple[float, int]](), dict[int, float]()
        began = time.process_time()
        for number in range(20_000):
            key = drawn.randrange(1_000)
            known[key] = drawn.random()
            heapq.heappush(heap, (known[key], number))
            if len(heap) > 500:
                heapq.heappop(heap)
        return (time.process_time() - began) / 1_000

    return interleaved(rounds, {"resource manager, event of its core": (events, reference)})


def elastic(rounds: int) -> Rounds:
    """What elastic training does after a step, to a small program whose result is read."""
    from harness.elastic.cpu_devices import use_cpu_devices

    use_cpu_devices(4)
    import jax
    import jax.numpy as jnp

    from shared_pathways_service import elastic

    found: Rounds = {}
    step = jax.jit(lambda x: x + 1)

    def train(attempt: elastic.Attempt) -> None:
        nonlocal found
        state = attempt.restore({"x": jnp.ones(12)}, attempt.over_batch())
        scalar = step(1.0)
        found = interleaved(
            rounds,
            {
                "elastic step_done": (
                    lambda: median_seconds(lambda: attempt.step_done(state, 1.0), 300),
                    lambda: median_seconds(lambda: float(step(scalar)), 300),
                )
            },
        )

    options = elastic.Options(snapshot_period=10**9, checkpoint_period=10**9)
    with (
        tempfile.TemporaryDirectory() as directory,
        elastic.Manager(options=options, directory=directory, console=False) as running,
    ):
        running.run(train)
    return found


def connect(rounds: int) -> Rounds:
    """connect() to a running service, to the start of a Python process that imports JAX.

    Once in seconds, and once in processor time of what works for the connection: this process, its
    agent, the proxy and the servers. That hardly depends on what else the machine does, while the
    seconds have what connect() only waits for.
    (Both read many modules. Compared with a process that imports few, connect() takes twice as long
    while the machine's memory is busy.)
    """
    import jax

    from shared_pathways_service import isc_pathways

    step = jax.jit(lambda x: x + 1)

    def connected(service: int) -> tuple[float, float]:
        before = seconds_by_process(os.getpid())
        began = time.perf_counter()
        with isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x2": 1}):
            step(1.0).block_until_ready()
            took = time.perf_counter() - began
            after = seconds_by_process(os.getpid())
            # (The service prepares the next proxy meanwhile.)
            next_ones = seconds_by_process(service).keys() - before.keys()
        used = sum(spent for pid, spent in after.items() if pid not in next_ones)
        return took, used - sum(before.values())

    def started() -> tuple[float, float]:
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run([sys.executable, "-c", "import jax"], check=True, cwd=ROOT)
        took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
        return took, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime

    found: Rounds = {"connect()": [], "connect(), processor time": []}
    with own_service("tpuv6e:2x2=1", spares=0) as service:
        _until_quiet(service)
        # (The first one compiles, and imports what later ones have.)
        connected(service)
        for _ in range(rounds):
            _until_quiet(service)
            reference, figure = started(), connected(service)
            for row, pair in zip(found.values(), zip(figure, reference, strict=True), strict=True):
                row.append(pair)
    return found


def _until_quiet(root: int) -> None:
    """Waits until a process and its descendants hardly work: a proxy is prepared, another ended."""
    end = time.monotonic() + _QUIET_LIMIT_S
    spent = sum(seconds_by_process(root).values())
    while time.monotonic() < end:
        time.sleep(1.0)
        before, spent = spent, sum(seconds_by_process(root).values())
        if abs(spent - before) <= _QUIET_S:
            return
    raise TimeoutError(f"the service still works after {_QUIET_LIMIT_S:.0f} s")


PARTS = {part.__name__: part for part in (connect, proxy, tunnel, manager, core, elastic)}

if __name__ == "__main__":
    # (What a library prints does not stand before the result.)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print(json.dumps(PARTS[sys.argv[1]](int(sys.argv[2]))), file=out, flush=True)
