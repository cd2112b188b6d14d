"""A program that restores what there is, and then saves one checkpoint after the other."""

from __future__ import annotations

import json
import os
import sys

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from shared_pathways_service.elastic.checkpoints.checkpoints import Checkpoints
from shared_pathways_service.elastic.progress import Progress
from shared_pathways_service.events import Event

WORDS = 1 << 20


def numbers_of(step: int) -> np.ndarray:
    return np.random.default_rng(step).integers(0, 1 << 16, WORDS, dtype=np.int32)


def say(**data: object) -> None:
    sys.stdout.write(json.dumps(data) + "\n")
    sys.stdout.flush()


def main(directory: str, steps: int) -> None:
    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), PartitionSpec("x"))

    def on_event(event: Event) -> None:
        say(kind=event.kind, step=event.step, reason=event.reason)

    with Checkpoints(directory, keep=1, on_event=on_event) as checkpoints:
        like = {"x": jax.ShapeDtypeStruct((WORDS,), np.int32, sharding=sharding)}
        found = checkpoints.restore(like)
        step = 0
        if found is not None:
            step = found[1].step
            np.testing.assert_array_equal(found[0]["x"], numbers_of(step))
        say(kind="restored", step=step)
        for next_step in range(step + 1, step + 1 + steps):
            checkpoints.save(
                {"x": jax.device_put(numbers_of(next_step), sharding)}, Progress(step=next_step)
            )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
