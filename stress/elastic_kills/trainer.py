"""A program that trains on eight CPU devices and records each step: made to be killed.

    python -m stress.elastic_kills.trainer RUN NOTES --steps 40 --period 3 --pace 0.03

A step is recorded when its loss is known and before it is reported to the manager, so all steps of
a saved state are recorded; a recorded step that the next process does not restore is recorded
again. The last line has the parameters at the end.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from harness.elastic import example_training
from harness.elastic.cpu_devices import use_cpu_devices
from shared_pathways_service import elastic

use_cpu_devices(8)

#: Numbers of the state that are there to be written: 4 MB.
LARGE = 1 << 20


def initial_state() -> dict[str, Any]:
    return {"small": example_training.initial_state(), "large": jnp.zeros(LARGE, jnp.float32)}


@jax.jit
def train_step(state: dict[str, Any], batch: jax.Array) -> tuple[dict[str, Any], jax.Array]:
    small, loss = example_training.train_step(state["small"], batch)
    return {"small": small, "large": 0.99 * state["large"] + loss}, loss


def digests(state: dict[str, Any]) -> dict[str, str]:
    """Returns a digest of each array's bits, by its path."""
    found = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        bits = jax.random.key_data(leaf) if is_key else leaf
        name = jax.tree_util.keystr(path, simple=True, separator=".")
        found[name] = hashlib.sha256(np.asarray(bits).tobytes()).hexdigest()
    return found


class Notes:
    """Lines of JSON in a file: each is one write, which a kill cannot tear."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def note(self, **data: object) -> None:
        os.write(self._file, json.dumps(data).encode() + b"\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("notes", type=Path)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--period", type=int, required=True, help="steps between two checkpoints")
    parser.add_argument("--pace", type=float, required=True, help="seconds of a step, at least")
    asked = parser.parse_args()
    notes = Notes(asked.notes)

    def train(attempt: elastic.Attempt) -> dict[str, str]:
        state = attempt.restore(initial_state)
        for batch in attempt.batches(example_training.dataset()):
            if attempt.progress.step >= asked.steps:
                break
            time.sleep(asked.pace)
            given = jax.device_put(np.asarray(batch, np.float32), attempt.over_batch())
            state, loss = train_step(state, given)
            notes.note(
                step=attempt.progress.step + 1,
                examples=[int(number) for number in batch],
                loss=float(loss),
            )
            attempt.step_done(state, loss)
        return digests(state)

    options = example_training.options(elastic_min_slice_count=-1, checkpoint_period=asked.period)
    with elastic.Manager(
        options=options, directory=asked.run, slice_key=example_training.slice_of, console=False
    ) as manager:
        notes.note(end=manager.run(train))


if __name__ == "__main__":
    main()
