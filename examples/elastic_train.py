"""Trains on handwritten digits, on three slices of which one may go and come back meanwhile.

    python examples/elastic_train.py --directory /tmp/run                # 2 to 3 slices
    python examples/elastic_train.py --directory /tmp/run --slices 3     # waits for all, as MaxText
    python examples/elastic_train.py --directory /tmp/run --kill-at 150  # takes a slice away

Run it again with the same directory and it goes on where it ended, also after a kill -9. Without a
cluster the service runs on this machine; where JAX is on a proxy already (JAX_PLATFORMS=proxy, as
in a PathwaysJob) the program uses that one's slices.
"""

import argparse
import contextlib
import os
from collections.abc import Iterator
from typing import Any

# jaxlib warns each time that a slice is asked which is down.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import grain
import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from shared_pathways_service import elastic, isc_pathways
from shared_pathways_service.testing import faults

SEED = 0
LAYERS = (64, 128, 10)
BATCH_SIZE = 96  # two and three slices of four devices divide it

Params = list[tuple[jax.Array, jax.Array]]
State = dict[str, Any]

optimizer = optax.adam(2e-3)


class Digits:
    """Examples one by one, as Grain reads them."""

    def __init__(self, images: np.ndarray, labels: np.ndarray) -> None:
        self.images = images
        self.labels = labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        return {"image": self.images[index], "label": self.labels[index]}


def read_digits() -> tuple[Digits, Digits]:
    """Returns the examples to train on, and those to test with."""
    digits = load_digits()
    images, held_out, labels, held_out_labels = train_test_split(
        (digits.data / 16).astype(np.float32),
        digits.target.astype(np.int32),
        test_size=0.2,
        random_state=SEED,
        stratify=digits.target,
    )
    return Digits(images, labels), Digits(held_out, held_out_labels)


def initial_state() -> State:
    keys = jax.random.split(jax.random.key(SEED), len(LAYERS))
    scaled = jax.nn.initializers.he_normal()
    params = [
        (scaled(key, (fan_in, fan_out)), jnp.zeros(fan_out))
        for key, fan_in, fan_out in zip(keys[1:], LAYERS[:-1], LAYERS[1:], strict=True)
    ]
    return {"params": params, "optimizer": optimizer.init(params), "key": keys[0]}


def logits(params: Params, images: jax.Array) -> jax.Array:
    *hidden, (weights, bias) = params
    for w, b in hidden:
        images = jax.nn.relu(images @ w + b)
    return images @ weights + bias


# Outside of `train`: each attempt finds it compiled, on slices that it has been on before.
@jax.jit
def train_step(state: State, batch: dict[str, jax.Array]) -> tuple[State, jax.Array]:
    def loss(params: Params) -> jax.Array:
        told = logits(params, batch["image"])
        losses = optax.softmax_cross_entropy_with_integer_labels(told, batch["label"])
        return jnp.mean(losses)

    value, gradients = jax.value_and_grad(loss)(state["params"])
    updates, moments = optimizer.update(gradients, state["optimizer"], state["params"])
    params = optax.apply_updates(state["params"], updates)
    return {**state, "params": params, "optimizer": moments}, value


@jax.jit
def accuracy(params: Params, images: jax.Array, labels: jax.Array) -> jax.Array:
    return jnp.mean(logits(params, images).argmax(axis=-1) == labels)


def train(attempt: elastic.Attempt, steps: int) -> float:
    """Trains to a step, from wherever training is; returns the accuracy on unseen examples."""
    digits, held_out = read_digits()
    state = attempt.restore(initial_state)
    # Each example once an epoch, in an order of the epoch's own.
    examples = grain.MapDataset.source(digits).shuffle(seed=SEED)
    for batch in attempt.batches(examples):
        if attempt.progress.step >= steps:
            break
        state, loss = train_step(state, jax.device_put(batch, attempt.over_batch()))
        attempt.step_done(state, loss)
    return float(accuracy(state["params"], held_out.images, held_out.labels))


@contextlib.contextmanager
def slices_of_a_service() -> Iterator[isc_pathways.Connection | None]:
    """Connects, unless JAX has slices already; ends with the connection."""
    if "proxy" in os.environ.get("JAX_PLATFORMS", ""):
        yield None
        return
    # One of the three may be missing when training begins.
    with isc_pathways.connect(
        expected_tpu_instances={"tpuv6e:2x2": 3}, elastic_slices=1
    ) as connection:
        yield connection


def main() -> None:
    parser = argparse.ArgumentParser(description="Elastic training on handwritten digits.")
    parser.add_argument("--directory", default="runs/digits", help="ledger and checkpoints")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--slices", default="2:3", help="MIN:MAX, or N to wait for all")
    parser.add_argument("--checkpoint-period", type=int, default=100, help="steps")
    parser.add_argument("--snapshot-period", type=int, default=0, help="steps; 0: none")
    parser.add_argument("--kill-at", type=int, help="step of this run at which slice 1 is killed")
    parser.add_argument("--down-for", type=float, default=5.0, help="seconds that it is gone")
    asked = parser.parse_args()

    options = elastic.Options(
        run_name="digits",
        slices=asked.slices,
        global_batch_size=BATCH_SIZE,
        checkpoint_period=asked.checkpoint_period,
        snapshot_period=asked.snapshot_period,
        poll_interval=1.0,
    )
    with contextlib.ExitStack() as stack:
        connection = stack.enter_context(slices_of_a_service())
        on_event = reconnect = None
        if connection is not None:
            reconnect = elastic.reconnect_with(connection)
            if asked.kill_at is not None:
                slices = stack.enter_context(faults.EmbeddedSlices(connection.proxy_job_name))
                fault = faults.kill(1, down_for=asked.down_for)
                at_step = faults.on_event(fault, "elastic.step", asked.kill_at)
                on_event = faults.Plan(slices, at_step).on_event
        manager = stack.enter_context(
            elastic.Manager(
                options=options, directory=asked.directory, reconnect=reconnect, on_event=on_event
            )
        )
        reached = manager.run(lambda attempt: train(attempt, asked.steps))
    print(f"held-out accuracy: {reached:.4f}")


if __name__ == "__main__":
    main()
