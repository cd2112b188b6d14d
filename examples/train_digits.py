"""Trains a small network on handwritten digits, data-parallel over two slices.

    python examples/train_digits.py

But for the line that connects this is plain JAX. Without a cluster the service runs on this
machine; with `cluster=...` or `context=...` the same program runs on that one's slices.
"""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from shared_pathways_service import isc_pathways

SEED = 0
EPOCHS = 15
BATCH_SIZE = 128  # a multiple of the devices, which share each batch
LAYERS = (64, 128, 10)

Params = list[tuple[jax.Array, jax.Array]]
Batch = tuple[jax.Array, jax.Array]

optimizer = optax.adam(5e-3)


def initial_params(key: jax.Array) -> Params:
    keys = jax.random.split(key, len(LAYERS) - 1)
    scaled = jax.nn.initializers.he_normal()
    return [
        (scaled(key, (fan_in, fan_out)), jnp.zeros(fan_out))
        for key, fan_in, fan_out in zip(keys, LAYERS[:-1], LAYERS[1:], strict=True)
    ]


def logits(params: Params, images: jax.Array) -> jax.Array:
    *hidden, (weights, bias) = params
    for w, b in hidden:
        images = jax.nn.relu(images @ w + b)
    return images @ weights + bias


def loss(params: Params, batch: Batch) -> jax.Array:
    images, labels = batch
    losses = optax.softmax_cross_entropy_with_integer_labels(logits(params, images), labels)
    return jnp.mean(losses)


@jax.jit
def train_step(
    params: Params, state: optax.OptState, batch: Batch
) -> tuple[Params, optax.OptState, jax.Array]:
    value, gradients = jax.value_and_grad(loss)(params, batch)
    updates, state = optimizer.update(gradients, state, params)
    return optax.apply_updates(params, updates), state, value


@jax.jit
def accuracy(params: Params, batch: Batch) -> jax.Array:
    images, labels = batch
    return jnp.mean(logits(params, images).argmax(axis=-1) == labels)


def shuffled(
    images: np.ndarray, labels: np.ndarray, rng: np.random.Generator
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    order = rng.permutation(len(images))
    for start in range(0, len(order) - BATCH_SIZE + 1, BATCH_SIZE):
        chosen = order[start : start + BATCH_SIZE]
        yield images[chosen], labels[chosen]


def train() -> None:
    devices = sorted(jax.devices(), key=lambda d: (d.slice_index, d.id))
    for device in devices:
        print(f"{device}: slice_index={device.slice_index} coords={tuple(device.coords)}")
    slices = len({d.slice_index for d in devices})
    mesh = Mesh(np.array(devices).reshape(slices, -1), ("slice", "chip"))
    everywhere = NamedSharding(mesh, PartitionSpec())
    split = NamedSharding(mesh, PartitionSpec(("slice", "chip")))

    digits = load_digits()
    images, held_out_images, labels, held_out_labels = train_test_split(
        (digits.data / 16).astype(np.float32),
        digits.target.astype(np.int32),
        test_size=0.2,
        random_state=SEED,
        stratify=digits.target,
    )

    params = jax.device_put(initial_params(jax.random.key(SEED)), everywhere)
    state = jax.device_put(optimizer.init(params), everywhere)
    rng = np.random.default_rng(SEED)
    for epoch in range(1, EPOCHS + 1):
        losses = []
        for batch in shuffled(images, labels, rng):
            params, state, value = train_step(params, state, jax.device_put(batch, split))
            losses.append(value)  # not read yet: the steps queue up behind one another
        print(f"epoch {epoch:2}: loss {np.mean(jax.device_get(losses)):.4f}")

    held_out = jax.device_put((held_out_images, held_out_labels), everywhere)
    print(f"held-out accuracy: {accuracy(params, held_out):.4f}")


def main() -> None:
    with isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x2": 2}):
        train()


if __name__ == "__main__":
    main()
