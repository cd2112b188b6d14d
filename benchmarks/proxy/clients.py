"""The measuring half: each kind is its own process, and prints its figures as JSON.

python -m benchmarks.proxy.clients KIND [ARGUMENT…]
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.proxy.servers import DOWN_CHUNK, MIB, UP_CHUNK

LARGE = 64 * MIB
ARRAYS = 100_000
#: Results of one execution, of which all live on.
RESULTS = 100
#: Of a program with many.
ARGUMENTS = 1000


def dispatch(address: str) -> dict[str, float]:
    """Small programs: round trips in microseconds, executions a second."""
    jax = _jax_on(address)
    return _dispatch(jax)


def local() -> dict[str, float]:
    """The same directly on JAX's own CPU devices."""
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
    import jax

    jax.config.update("jax_platforms", "cpu")
    return _dispatch(jax)


def _dispatch(jax: Any) -> dict[str, float]:
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    step = jax.jit(lambda x: x + 1)
    scalar = step(jnp.zeros(()))
    mesh = Mesh(np.array(jax.devices()), ("x",))
    split = jax.device_put(np.zeros(8, np.float32), NamedSharding(mesh, PartitionSpec("x")))
    return {
        "sync_us": median_seconds(lambda: step(scalar).block_until_ready(), 500) * 1e6,
        "async_1": _chain(step, scalar, 4000),
        "async_8": _chain(step, split, 1500),
    }


def fetch(address: str) -> dict[str, float]:
    """Small results, brought home."""
    jax = _jax_on(address)
    import jax.numpy as jnp
    import numpy as np

    step = jax.jit(lambda x: x + 1)
    scalar = step(jnp.zeros(()))
    return {"fetch_us": median_seconds(lambda: np.asarray(step(scalar)), 300) * 1e6}


def tenant(address: str, start: str) -> dict[str, float]:
    """Executions a second for ten seconds, from a moment of the clock on."""
    jax = _jax_on(address)
    import jax.numpy as jnp

    step = jax.jit(lambda x: x + 1)
    x = step(jnp.zeros(()))
    _chain(step, x, 200)
    time.sleep(max(0.0, float(start) - time.time()))
    count = 0
    begin = time.perf_counter()
    while time.perf_counter() - begin < 10.0:
        for _ in range(200):
            x = step(x)
        x.block_until_ready()
        count += 200
    return {"async_1": count / (time.perf_counter() - begin)}


def transfers(address: str, transfer_dir: str = "") -> dict[str, float]:
    """Large arrays there and back, in MB/s."""
    jax = _jax_on(address, transfer_dir)
    import numpy as np

    large = np.random.default_rng(0).random(LARGE // 4, np.float32)
    on_device = jax.device_put(large)
    up = median_seconds(lambda: jax.device_put(large).block_until_ready(), 9)
    step = jax.jit(lambda x: x + 1)
    scalar = step(np.float32(0)).block_until_ready()
    # A copy each time: an array keeps what was fetched of it. And a program between two of them, as
    # every loop has one: until the next one JAX lets go of nothing that was brought here.
    copies = [on_device.copy().block_until_ready() for _ in range(9 + 1)]
    down = median_seconds(
        lambda: np.asarray(copies.pop()), 9, between=lambda: step(scalar).block_until_ready()
    )
    return {"up": LARGE / MIB / up, "down": LARGE / MIB / down}


def streams(socket: str) -> dict[str, float]:
    """The same bytes over bare gRPC, in MB/s."""
    with raw_streams(socket) as (take, bring):
        up = median_seconds(take, 9)
        down = median_seconds(bring, 9)
    return {"up": LARGE / MIB / up, "down": LARGE / MIB / down}


@contextlib.contextmanager
def raw_streams(socket: str) -> Iterator[tuple[Callable[[], object], Callable[[], object]]]:
    """Yields what moves the bytes of a large array over bare gRPC: up, and down."""
    import grpc

    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(f"unix:{socket}", options=options) as channel:
        take: Any = channel.stream_unary("/raw/Take")
        bring: Any = channel.unary_stream("/raw/Bring")
        chunk = bytes(UP_CHUNK)

        def chunks() -> Iterator[bytes]:
            for _ in range(LARGE // UP_CHUNK):
                yield chunk

        def bring_all() -> None:
            assert sum(map(len, bring(str(LARGE).encode()))) == LARGE // DOWN_CHUNK * DOWN_CHUNK

        yield lambda: take(chunks()), bring_all


def files(directory: str) -> dict[str, float]:
    """The same bytes written to a directory, in MB/s."""
    import numpy as np

    large = np.random.default_rng(0).random(LARGE // 4, np.float32).data.cast("B")
    path = Path(directory, "bench")

    def write() -> None:
        # As JAX's client does: a new file each time.
        with path.open("wb", buffering=0) as file:
            file.write(large)
        path.unlink()

    return {"up": LARGE / MIB / median_seconds(write, 9)}


def arrays(address: str, server: str) -> dict[str, float]:
    """The memory of a live small array in the proxy, in bytes."""
    jax = _jax_on(address)
    import jax.numpy as jnp
    import psutil

    process = psutil.Process(int(server))
    step = jax.jit(lambda x: [x + i for i in range(RESULTS)])
    x = jnp.zeros(())
    jax.block_until_ready(step(x))
    before = process.memory_info().rss
    kept = [step(x) for _ in range(ARRAYS // RESULTS)]
    jax.block_until_ready(kept)
    return {"bytes": (process.memory_info().rss - before) / ARRAYS}


def lists(count: str, address: str = "", server: str = "") -> dict[str, float]:
    """A list of small arrays: seconds of each step, and seconds of the proxy's processor."""
    if address:
        jax = _jax_on(address)
    else:
        import jax

        jax.config.update("jax_platforms", "cpu")
    import numpy as np

    rows = [np.full(4, number, np.float32) for number in range(int(count))]
    add = jax.jit(lambda *xs: [x + 1 for x in xs])
    few = jax.device_put(rows[:ARGUMENTS])
    jax.block_until_ready(add(*few))
    jax.device_get(few[:10])
    found: dict[str, float] = {}

    def timed(step: str, function: Callable[[], Any]) -> Any:
        used, begin = _processor_seconds(server), time.perf_counter()
        result = jax.block_until_ready(function())
        found[step] = time.perf_counter() - begin
        found[f"proxy_cpu_{step}"] = _processor_seconds(server) - used
        return result

    arrays = timed("put", lambda: jax.device_put(rows))
    fetched = timed("fetch", lambda: jax.device_get(arrays))
    timed("program", lambda: add(*few))
    found["wrong"] = float(not all(map(np.array_equal, fetched, rows)))
    return found


def _processor_seconds(pid: str) -> float:
    if not pid:
        return 0.0
    import psutil

    times = psutil.Process(int(pid)).cpu_times()
    return float(times.user + times.system)


def _jax_on(address: str, transfer_dir: str = "") -> Any:

    from shared_pathways_service.jax_client import ProxyTarget, attach

    directory = Path(transfer_dir) if transfer_dir else None
    attach(ProxyTarget(address=address, transfer_dir=directory), timeout=60)
    import jax

    return jax


def _chain(step: Callable[[Any], Any], x: Any, count: int) -> float:
    step(x).block_until_ready()
    begin = time.perf_counter()
    for _ in range(count):
        x = step(x)
    x.block_until_ready()
    return count / (time.perf_counter() - begin)


def median_seconds(
    action: Callable[[], object], count: int, between: Callable[[], object] = lambda: None
) -> float:
    """Returns the median seconds of one call, after a first one; `between` is not timed."""
    action()
    taken = []
    for _ in range(count):
        between()
        begin = time.perf_counter()
        action()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


KINDS: dict[str, Callable[..., dict[str, float]]] = {
    kind.__name__: kind
    for kind in (dispatch, local, fetch, tenant, transfers, streams, files, arrays, lists)
}

if __name__ == "__main__":
    figures = KINDS[sys.argv[1]](*sys.argv[2:])
    print(json.dumps(figures), flush=True)
