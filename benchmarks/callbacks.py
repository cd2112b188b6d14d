"""What Python callbacks inside programs cost, on an embedded service.

    python -m benchmarks.callbacks --out benchmarks/results/callbacks.json

Three ratios, each of medians over rounds that take turns, so that both sides meet the same machine:
- the round trip of a callback without data to a small program's (wanted: 3 at most);
- the digits example with `jax.debug.print` in each step to the same without (wanted: 1.1 at most);
- a small program after the first callback to the same before it (aim: 1, no cost).
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from harness.own_service import own_service
from harness.results import exit_code, measured, write_result
from shared_pathways_service import isc_pathways

ROUNDS = 7
#: Of a round.
CALLS = 200
EPOCHS = 3
#: Ratios of each round, and what is printed and kept.
Figures: TypeAlias = tuple[dict[str, list[float]], dict[str, float]]
#: At most.
WANTED = {"callback_to_small_program": 3.0, "print_in_each_step": 1.1, "small_program_after": 1.1}


def seconds_of(call: Callable[[], Any], count: int = CALLS) -> float:
    """Returns the median time of a call."""
    taken = []
    for _ in range(count):
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def round_trips() -> Figures:
    import jax
    import jax.numpy as jnp

    def calling(x: Any) -> Any:
        jax.debug.callback(nothing)
        return x + 1

    def nothing() -> None:
        pass

    x = jnp.zeros(4)
    small, empty = jax.jit(lambda x: x + 1), jax.jit(calling)
    small(x).block_until_ready()
    before = [seconds_of(lambda: small(x).block_until_ready()) for _ in range(ROUNDS)]
    empty(x).block_until_ready()
    rounds = [
        (
            seconds_of(lambda: small(x).block_until_ready()),
            seconds_of(lambda: empty(x).block_until_ready()),
        )
        for _ in range(ROUNDS)
    ]
    after, callback = (statistics.median(column) for column in zip(*rounds, strict=True))
    ratios = {"callback_to_small_program": [b / a for a, b in rounds]}
    return ratios, {
        "small_program_before_us": statistics.median(before) * 1e6,
        "small_program_us": after * 1e6,
        "callback_us": callback * 1e6,
        "callback_to_small_program": statistics.median(ratios["callback_to_small_program"]),
        "small_program_after": after / statistics.median(before),
    }


def digits() -> Figures:
    """Trains as the example does, with and without a print in each step."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec
    from sklearn.datasets import load_digits

    # (mypy knows the examples as programs, not as modules.)
    example: Any = importlib.import_module("examples.train_digits")

    devices = np.array(jax.devices()).reshape(2, -1)
    mesh = Mesh(devices, ("slice", "chip"))
    everywhere = NamedSharding(mesh, PartitionSpec())
    split = NamedSharding(mesh, PartitionSpec(("slice", "chip")))
    data = load_digits()
    images, labels = (data.data / 16).astype(np.float32), data.target.astype(np.int32)

    def stepping(prints: bool) -> Any:
        def step(params: Any, state: Any, batch: Any) -> Any:
            value, gradients = jax.value_and_grad(example.loss)(params, batch)
            if prints:
                jax.debug.print("loss {}", value)
            updates, state = example.optimizer.update(gradients, state, params)
            return optax.apply_updates(params, updates), state, value

        return jax.jit(step)

    def train(step: Any) -> float:
        rng = np.random.default_rng(0)
        params = jax.device_put(example.initial_params(jax.random.key(0)), everywhere)
        state = jax.device_put(example.optimizer.init(params), everywhere)
        steps, began = 0, time.perf_counter()
        for _ in range(EPOCHS):
            losses = []
            for batch in example.shuffled(images, labels, rng):
                params, state, value = step(params, state, jax.device_put(batch, split))
                losses.append(value)
            float(jnp.mean(jnp.stack(jax.device_get(losses))))
            steps += len(losses)
        jax.effects_barrier()
        return (time.perf_counter() - began) / steps

    plain, printing = stepping(False), stepping(True)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        train(plain), train(printing)
        rounds = [(train(plain), train(printing)) for _ in range(ROUNDS)]
    assert out.getvalue().count("loss") == (ROUNDS + 1) * EPOCHS * (len(images) // 128)
    ratios = {"print_in_each_step": [b / a for a, b in rounds]}
    return ratios, {
        "step_us": statistics.median(a for a, _ in rounds) * 1e6,
        "printing_step_us": statistics.median(b for _, b in rounds) * 1e6,
        "print_in_each_step": statistics.median(ratios["print_in_each_step"]),
    }


@measured()
def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    out = parser.parse_args().out
    with (
        own_service("tpuv6e:2x2=2", 0),
        isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x2": 2}),
    ):
        (trips, of_trips), (prints, of_prints) = round_trips(), digits()
    result = {**of_trips, **of_prints}
    result["load"] = os.getloadavg()[0]
    for name, wanted in WANTED.items():
        print(f"{name}: {result[name]:.2f} (wanted: {wanted} at most)")
    write_result("callbacks", result, out, trips | prints)
    return exit_code(name for name, wanted in WANTED.items() if result[name] > wanted)


if __name__ == "__main__":
    sys.exit(main())
