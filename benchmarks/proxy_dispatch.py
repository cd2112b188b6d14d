"""What a dispatch through the proxy costs, and which part of it is the executor's and XLA's.

Three servers are measured in turn, in the same run, by the same client: the proxy as it is; the
same without executors (programs run on the session's thread, which loses all that executors are
for); and the null server, which runs nothing at all. Only the ratios between them mean much: the
machine's own speed cancels out.

    python -m benchmarks.proxy_dispatch [--rounds 3] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

VARIANTS = ("proxy", "no executor", "null server")
SLICES = "tpuv6e:2x2,tpuv6e:2x2"
MIB = 1 << 20
#: Name, unit, and whether more is better.
FIGURES = {
    "sync_rtt_us": ("sync round trip of jit(x+1), us", False),
    "async_1_per_s": ("async executes/s, 1 device", True),
    "async_8_per_s": ("async executes/s, 8 devices in 2 slices", True),
    "fetch_us": ("np.asarray(jit(x)), us", False),
    "put_us": ("small device_put, us", False),
    "up_mb_s": ("host to device, 64 MiB, MB/s", True),
    "down_mb_s": ("device to host, 64 MiB, MB/s", True),
}


def serve(variant: str, socket: str) -> None:
    """Serves one variant until the process is ended."""
    from shared_pathways_service.core.topology import InstanceType
    from shared_pathways_service.servers.proxy.engine import Engine
    from shared_pathways_service.servers.proxy.service import ProxyService
    from shared_pathways_service.servers.proxy.transport import GrpcTransport

    engine = Engine([InstanceType.parse(text) for text in SLICES.split(",")])
    if variant != "proxy":
        engine.slices._make_executor = _Inline  # type: ignore[assignment]  # noqa: SLF001
    if variant == "null server":
        compile_really = engine.compiler.compile

        def compile_to_nothing(program: bytes, options: bytes) -> Any:
            made = compile_really(program, options)
            if len(made.parameters) == 1 and len(made.results) == 1:
                made.run = lambda arrays: arrays
            return made

        engine.compiler.compile = compile_to_nothing  # type: ignore[method-assign]
    for index in range(2):
        engine.slices.place(index, 1, "local")
    transport = GrpcTransport(ProxyService(engine))
    transport.start(server_port=None, server_socket=socket, default_port=0, bind_address="")
    print("ready", flush=True)
    threading.Event().wait()


class _Inline:
    """Runs operations on the thread that puts them."""

    def __init__(self, _epoch: object) -> None: ...

    def put(self, operation: Any) -> None:
        if operation.epochs[-1].executor is self:
            operation._execute()  # noqa: SLF001

    def close(self) -> None: ...


def measure(socket: str) -> dict[str, float]:
    """Measures the server at a socket, with JAX in this process."""
    os.environ["IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS"] = "true"
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.extend import backend
    from jax.extend.backend import ifrt_proxy
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    target = f"grpc://unix:{socket}"
    options = ifrt_proxy.ClientConnectionOptions()
    backend.register_backend_factory("proxy", lambda: ifrt_proxy.get_client(target, options))
    jax.config.update("jax_platforms", "proxy")
    jax.config.update("jax_backend_target", target)
    step = jax.jit(lambda x: x + 1)
    scalar = step(jnp.zeros(()))
    mesh = Mesh(np.array(jax.devices()), ("x",))
    split = jax.device_put(np.zeros(8, np.float32), NamedSharding(mesh, PartitionSpec("x")))

    def chain(x: Any, count: int) -> float:
        step(x).block_until_ready()
        begin = time.perf_counter()
        for _ in range(count):
            x = step(x)
        x.block_until_ready()
        return count / (time.perf_counter() - begin)

    large = np.random.default_rng(0).random(16 * MIB, np.float32)
    on_device = jax.device_put(large)
    return {
        "sync_rtt_us": _each(lambda: step(scalar).block_until_ready(), 500) * 1e6,
        "async_1_per_s": chain(scalar, 3000),
        "async_8_per_s": chain(split, 1000),
        "fetch_us": _each(lambda: np.asarray(step(scalar)), 200) * 1e6,
        "put_us": _each(lambda: jax.device_put(np.zeros(4)).block_until_ready(), 200) * 1e6,
        "up_mb_s": 64.0 / _each(lambda: jax.device_put(large).block_until_ready(), 5),
        "down_mb_s": 64.0 / _each(lambda: np.asarray(on_device.copy()), 5),
    }


def _each(action: Callable[[], object], count: int) -> float:
    """Returns the median seconds of one call."""
    action()
    taken = []
    for _ in range(count):
        begin = time.perf_counter()
        action()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


def run_round(variant: str) -> dict[str, float]:
    """Starts a server and a client for one variant; returns the client's figures."""
    root = tempfile.mkdtemp(prefix="sps")
    socket = f"{root}/s"
    me = [sys.executable, "-m", "benchmarks.proxy_dispatch"]
    with subprocess.Popen(
        [*me, "--serve", variant, socket], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as server:
        assert server.stdout is not None
        server.stdout.readline()
        try:
            client = subprocess.run(
                [*me, "--measure", socket], capture_output=True, check=True, timeout=600
            )
        finally:
            server.kill()
            shutil.rmtree(root)
    figures: dict[str, float] = json.loads(client.stdout)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(*arguments.serve)
    if arguments.measure:
        print(json.dumps(measure(arguments.measure)))
        return
    rounds: dict[str, list[dict[str, float]]] = {variant: [] for variant in VARIANTS}
    for _ in range(arguments.rounds):
        for variant in VARIANTS:
            rounds[variant].append(run_round(variant))
    medians = {
        variant: {name: statistics.median(figures[name] for figures in all_) for name in FIGURES}
        for variant, all_ in rounds.items()
    }
    print(f"{'':42}" + "".join(f"{variant:>14}" for variant in VARIANTS) + f"{'proxy/null':>12}")
    for name, (title, more_is_better) in FIGURES.items():
        values = [medians[variant][name] for variant in VARIANTS]
        ratio = values[0] / values[-1] if more_is_better else values[-1] / values[0]
        print(f"{title:42}" + "".join(f"{value:14,.0f}" for value in values) + f"{ratio:12.2f}")
    if arguments.out:
        result = {"medians": medians, "rounds": rounds, "cpus": os.cpu_count()}
        arguments.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
