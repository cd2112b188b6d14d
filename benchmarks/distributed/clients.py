"""The measuring half: JAX on one proxy, which measures what it is asked for, as often as wanted.

    python -m benchmarks.distributed.clients ADDRESS

Each line of the input is the name of a measurement and its number of repetitions; the answer is its
figure. So processes with different proxies can take turns.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.proxy.clients import LARGE, median_seconds, raw_streams
from benchmarks.proxy.servers import MIB

#: Programs that are dispatched before one result is read.
DISPATCHED = 100


class Measurements:
    """Each public method is a measurement; `count` is how often something is done."""

    def __init__(self, address: str) -> None:
        from shared_pathways_service.jax_client import ProxyTarget, attach

        attach(ProxyTarget(address=address, transfer_dir=None), timeout=60)
        import jax
        import numpy as np

        self._jax = jax
        devices = jax.devices()
        self._slices = [
            np.array([d for d in devices if d.slice_index == index])
            for index in sorted({d.slice_index for d in devices})
        ]
        self._increment = jax.jit(lambda x: x + 1)
        self._scalar = self._increment(jax.device_put(np.float32(0), self._slices[0][0]))
        self._sharded = jax.device_put(
            np.zeros(len(self._slices[0]), np.float32), self._split(self._slices[0])
        )
        self._large = np.random.default_rng(0).random(LARGE // 4, np.float32)

    def executes_one(self, count: int) -> float:
        """Returns executes/s on one device."""
        return self._executes(self._scalar, count)

    def executes_slice(self, count: int) -> float:
        """Returns executes/s over all devices of the first slice."""
        return self._executes(self._sharded, count)

    def dispatched(self, count: int) -> float:
        """Returns executes/s on one device where every hundredth result is read."""

        def run() -> None:
            x = self._scalar
            for _ in range(DISPATCHED):
                x = self._increment(x)
            float(x)

        return DISPATCHED / median_seconds(run, count)

    def steps(self, count: int) -> float:
        """Returns steps/s of training over the first slice; each step's loss is read."""
        jax, jnp, devices = self._jax, self._jax.numpy, self._slices[0]
        images = jax.device_put(jnp.ones((64, 64)), self._split(devices))
        weights = jax.device_put(jnp.ones((64, 10)), self._everywhere(devices))

        def train(weights: Any, images: Any) -> Any:
            def loss(weights: Any) -> Any:
                return jnp.mean((images @ weights) ** 2)

            value, gradient = jax.value_and_grad(loss)(weights)
            return weights - 0.01 * gradient, value

        step = jax.jit(train)

        def run() -> None:
            nonlocal weights
            weights, value = step(weights, images)
            float(value)

        return 1 / median_seconds(run, count)

    def upload(self, count: int) -> float:
        """Returns the MB/s of an array that is put on the first slice, split over its devices."""
        split = self._split(self._slices[0])
        return _rate(lambda: self._jax.device_put(self._large, split).block_until_ready(), count)

    def fetch(self, count: int) -> float:
        """Returns the MB/s of fetching it."""
        import numpy as np

        on_devices = self._jax.device_put(self._large, self._split(self._slices[0]))
        # A copy each time: an array keeps what was fetched of it.
        copies = [on_devices.copy().block_until_ready() for _ in range(count + 1)]
        # With a program between two fetches, as every loop has one: until the next program JAX
        # lets go of nothing that was fetched.
        return _rate(
            lambda: np.asarray(copies.pop()),
            count,
            between=lambda: self._increment(self._scalar).block_until_ready(),
        )

    def reshard(self, count: int) -> float:
        """Returns the MB/s of moving it from the first slice to the second one."""
        first, second = (self._split(devices) for devices in self._slices[:2])
        there = self._jax.device_put(self._large, first).block_until_ready()
        return _rate(lambda: self._jax.device_put(there, second).block_until_ready(), count)

    def _executes(self, x: Any, count: int) -> float:
        self._increment(x).block_until_ready()
        began = time.perf_counter()
        for _ in range(count):
            x = self._increment(x)
        x.block_until_ready()
        return count / (time.perf_counter() - began)

    def _split(self, devices: Any) -> Any:
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        return NamedSharding(Mesh(devices, ("x",)), PartitionSpec("x"))

    def _everywhere(self, devices: Any) -> Any:
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        return NamedSharding(Mesh(devices, ("x",)), PartitionSpec())


def raw_upload(socket: str, count: int) -> float:
    """Returns the MB/s of as many bytes over a bare gRPC stream."""
    with raw_streams(socket) as (take, _):
        return _rate(take, count)


def raw_fetch(socket: str, count: int) -> float:
    """Returns the same for the other direction."""
    with raw_streams(socket) as (_, bring):
        return _rate(bring, count)


def _rate(
    move: Callable[[], object], count: int, between: Callable[[], object] = lambda: None
) -> float:
    return LARGE / MIB / median_seconds(move, count, between)


if __name__ == "__main__":
    measurements = Measurements(sys.argv[1])
    print("ready", flush=True)
    for line in sys.stdin:
        name, count = line.split()
        print(getattr(measurements, name)(int(count)), flush=True)
