"""JAX on a proxy behind a slow line: times in round trips, transfers as a part of the line's rate.

    python -m benchmarks.slow_links [--upload-mb 200] [--steps 200] [--rounds 3] [--out result.json]

A relay delays and limits the bytes between JAX and a proxy that is started here, without a
cluster. "plain": JAX's own connections take the line, as with kubectl's port-forward. "link": the
carriers of a resumable link do, and small host buffers are sent early. "to the first result" is
what connect() spends on the line itself: from JAX's first look at its devices to the first value
of a compiled program. In each round all lines take turns; the figures are medians.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import socket
import statistics
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.delay_relay import LineSpeed, delay_relay
from harness.own_service import ROOT, own_directories
from harness.processes import ServerProcess
from harness.results import measured, write_result
from shared_pathways_service.tunnel.link.carriers import CarrierOwner, TcpCarrier
from shared_pathways_service.tunnel.link.connectors import connector_of
from shared_pathways_service.tunnel.link.far_end import FarEnd
from shared_pathways_service.tunnel.link.near_end import LinkState, NearEnd

#: Round trips in seconds; bytes per second of 20 Mbit/s.
ROUND_TRIPS_S = (0.05, 0.15)
BYTES_PER_S = 20e6 / 8
#: What the upload's figure is called.
UPLOAD = "upload, part of the rate"

CLIENT = """
import json, statistics, sys, time
import jax, jax.numpy as jnp, numpy as np

STEPS, UPLOAD_BYTES = int(sys.argv[1]), int(sys.argv[2])
took = {}

class timed:
    def __init__(self, name): self.name = name
    def __enter__(self): self.began = time.monotonic()
    def __exit__(self, *_): took[self.name] = time.monotonic() - self.began

with timed("devices"):
    jax.devices()
step = jax.jit(lambda w: (w * 0.9 + 0.1, (w * w).sum()))
with timed("first result"):
    w, loss = step(np.ones((64, 64), np.float32))
    float(loss)

each = []
with timed("loss read every step"):
    for _ in range(STEPS):
        began = time.monotonic()
        w, loss = step(w)
        float(loss)
        each.append(time.monotonic() - began)
took["one step that reads its loss"] = statistics.median(each)

with timed("loss read every 10 steps"):
    for i in range(STEPS):
        w, loss = step(w)
        if i % 10 == 9:
            float(loss)

with timed("losses copied asynchronously, read 10 steps later"):
    losses = []
    for _ in range(STEPS):
        w, loss = step(w)
        loss.copy_to_host_async()
        losses.append(loss)
        if len(losses) > 10:
            float(losses.pop(0))
    for loss in losses:
        float(loss)

shapes = [(n, 16) for n in range(8, 16)]
with timed("8 arrays initialised eagerly"):
    jax.block_until_ready([jnp.ones(shape) * 0.5 for shape in shapes])
with timed("8 arrays initialised in one jit"):
    jax.block_until_ready(jax.jit(lambda: [jnp.ones(shape) * 0.25 for shape in shapes])())

small = [np.full((8, 8), i, np.float32) for i in range(20)]
with timed("20 arrays put and awaited one by one"):
    for a in small:
        jax.device_put(a).block_until_ready()
with timed("20 arrays put together"):
    on_device = jax.block_until_ready(jax.device_put(small))
with timed("20 arrays read one by one"):
    for a in on_device:
        np.asarray(a)
on_device = jax.block_until_ready(jax.device_put(small))
with timed("20 arrays read together"):
    jax.device_get(on_device)

large = np.random.default_rng(0).random(UPLOAD_BYTES // 4, np.float32)
with timed("upload"):
    jax.device_put(large).block_until_ready()
print(json.dumps(took))
"""


class Owner:
    """Waits until the link is up."""

    def __init__(self) -> None:
        self.is_up = asyncio.Event()

    def is_final(self, error: Exception) -> bool:
        """Raises the error of a dial, which all are local."""
        raise error

    def link_changed(self, state: LinkState, reason: str) -> None:
        """Notes that the link is up."""
        if state is LinkState.UP:
            self.is_up.set()
        elif state is not LinkState.OVER:
            print(f"the link is {state.value}: {reason}", file=sys.stderr)

    def dial_failed(self, attempt: int, reason: str) -> None:
        """Does nothing, as the error was raised."""


@contextlib.asynccontextmanager
async def plain(proxy: Path, speed: LineSpeed) -> AsyncIterator[int]:
    """JAX's connections over the line; yields their port."""
    async with delay_relay(lambda: asyncio.open_unix_connection(str(proxy)), speed) as relay:
        yield relay[0]


@contextlib.asynccontextmanager
async def link(proxy: Path, speed: LineSpeed) -> AsyncIterator[int]:
    """A link's carriers over the line; yields the port of its near end."""
    token, owner, loop = b"of the benchmark's tenant", Owner(), asyncio.get_running_loop()
    async with contextlib.AsyncExitStack() as stack:
        far = FarEnd(token, connector_of(f"unix:{proxy}"))
        far_port = await far.start("127.0.0.1", 0)
        stack.push_async_callback(far.close)
        line = delay_relay(lambda: asyncio.open_connection("127.0.0.1", far_port), speed)
        line_port = (await stack.enter_async_context(line))[0]

        async def dial(owner: CarrierOwner) -> None:
            await loop.create_connection(lambda: TcpCarrier(owner), "127.0.0.1", line_port)

        near = NearEnd(dial, token, owner)
        near.start()
        stack.push_async_callback(near.close)
        port = stack.enter_context(listening_near_end(near))
        await owner.is_up.wait()
        yield port


@contextlib.contextmanager
def listening_near_end(near: NearEnd) -> Iterator[int]:
    """Hands connections to a local port over to a near end; yields the port."""
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)

        def accept() -> None:
            local, _ = listener.accept()
            local.setblocking(False)
            local.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            near.accept(local)

        loop.add_reader(listener, accept)
        try:
            yield listener.getsockname()[1]
        finally:
            loop.remove_reader(listener)


WAYS = {"plain": plain, "link": link}


async def measure(
    way: str, proxy: Path, round_trip_s: float, steps: int, upload: int
) -> dict[str, float]:
    """Runs the client behind a line; returns seconds."""
    speed = LineSpeed(delay_s=round_trip_s / 2, bytes_per_s=BYTES_PER_S)
    async with WAYS[way](proxy, speed) as port:
        client = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", CLIENT, str(steps), str(upload)),
            stdout=asyncio.subprocess.PIPE,
            cwd=ROOT,
            env={
                **os.environ,
                "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS": "true",
                "JAX_PLATFORMS": "proxy",
                "JAX_BACKEND_TARGET": f"grpc://127.0.0.1:{port}",
            },
        )
        printed, _ = await client.communicate()
    if client.returncode:
        raise SystemExit(f"the client ended with {client.returncode}")
    took: dict[str, float] = json.loads(printed)
    return took


def as_ratios(took: dict[str, float], round_trip_s: float, upload: int) -> dict[str, float]:
    """Returns round trips, and the part of the line's rate that an upload reached."""
    rate = upload / took.pop("upload") / BYTES_PER_S
    took["to the first result"] = took.pop("devices") + took.pop("first result")
    return {name: seconds / round_trip_s for name, seconds in took.items()} | {UPLOAD: rate}


def medians(rounds: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Returns the median of each figure of one line, as it is kept."""
    found = {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}
    rate = found.pop(UPLOAD)
    ratios = {name: round(ratio, 2) for name, ratio in found.items()}
    return {"round trips": ratios, UPLOAD: round(rate, 3)}


def show(result: dict[str, Any]) -> None:
    """Prints a table with a column per line."""
    print(f"{'round trips':52}" + "".join(f"{name:>14}" for name in result))
    for name in next(iter(result.values()))["round trips"]:
        print(f"{name:52}" + "".join(f"{r['round trips'][name]:14.2f}" for r in result.values()))
    print(f"{UPLOAD:52}" + "".join(f"{line[UPLOAD]:14.2f}" for line in result.values()))


@measured()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--upload-mb", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    upload = arguments.upload_mb * 1_000_000
    found: dict[str, list[dict[str, float]]] = {}
    with own_directories() as scratch:
        proxy = scratch / "proxy"
        flags = (f"--server_socket={proxy}", "--virtual_slices=tpuv6e:2x2")
        with ServerProcess("shared_pathways_service.servers.proxy", flags):
            for _, round_trip_s, way in itertools.product(
                range(arguments.rounds), ROUND_TRIPS_S, WAYS
            ):
                took = asyncio.run(measure(way, proxy, round_trip_s, arguments.steps, upload))
                ratios = as_ratios(took, round_trip_s, upload)
                found.setdefault(f"{way} {round_trip_s * 1000:.0f} ms", []).append(ratios)
    result = {line: medians(rounds) for line, rounds in found.items()}
    show(result)
    repeats = {
        f"{name}, {line}": [one[name] for one in rounds]
        for line, rounds in found.items()
        for name in rounds[0]
    }
    parameters = {"steps": arguments.steps, "upload_mb": arguments.upload_mb}
    write_result("slow_links", parameters | result, arguments.out, repeats)


if __name__ == "__main__":
    main()
