"""Flax's two kinds of modules, trained with optax over two slices."""

from __future__ import annotations

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx, serialization
from flax.training import train_state
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from tests.e2e.libraries.comparing import Devices, Told, assert_same, compared, mesh, put

STEPS = 6
FEATURES, HIDDEN, CLASSES, BATCH = 8, 32, 4, 16


def batches() -> list[tuple[Any, Any]]:
    random = np.random.default_rng(3)
    images = random.normal(size=(STEPS, BATCH, FEATURES)).astype(np.float32)
    labels = (images[..., :CLASSES] * 3).argmax(-1)
    return list(zip(images, labels, strict=True))


def optimizer() -> optax.GradientTransformation:
    schedule = optax.warmup_cosine_decay_schedule(0.0, 3e-2, 2, STEPS)
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule))


def cross_entropy(logits: Any, labels: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


class LinenNet(nn.Module):
    @nn.compact
    def __call__(self, x: Any, *, train: bool) -> Any:
        wide = nn.with_partitioning(nn.initializers.lecun_normal(), (None, "chip"))
        narrow = nn.with_partitioning(nn.initializers.lecun_normal(), ("chip", None))
        x = nn.Dense(HIDDEN, kernel_init=wide)(x)
        x = nn.BatchNorm(use_running_average=not train, momentum=0.9)(x)
        x = nn.Dropout(0.25, deterministic=not train)(nn.relu(x))
        return nn.Dense(CLASSES, kernel_init=narrow)(x)


class LinenState(train_state.TrainState):
    batch_stats: Any


@compared
def linen(devices: Devices) -> Told:
    where = mesh(devices)
    net = LinenNet()

    def init(key: Any) -> LinenState:
        variables = net.init(key, jnp.ones((BATCH, FEATURES)), train=False)
        params, stats = variables["params"], variables["batch_stats"]
        create: Any = LinenState.create
        state: LinenState = create(
            apply_fn=net.apply, params=params, tx=optimizer(), batch_stats=stats
        )
        return state

    key = put(where, jax.random.key(0))
    shardings = nn.get_sharding(jax.eval_shape(init, key), where)
    state = jax.jit(init, out_shardings=shardings)(key)

    @functools.partial(jax.jit, donate_argnums=0, out_shardings=(shardings, None))
    def step(state: Any, images: Any, labels: Any, key: Any) -> Any:
        def loss(params: Any) -> Any:
            variables = {"params": params, "batch_stats": state.batch_stats}
            rngs = {"dropout": jax.random.fold_in(key, state.step)}
            logits, updates = net.apply(
                variables, images, train=True, rngs=rngs, mutable=["batch_stats"]
            )
            return cross_entropy(logits, labels), updates["batch_stats"]

        (value, stats), gradients = jax.value_and_grad(loss, has_aux=True)(state.params)
        return state.apply_gradients(grads=gradients, batch_stats=stats), value

    losses = []
    for images, labels in batches():
        state, value = step(state, put(where, images, "slice"), put(where, labels, "slice"), key)
        losses.append(value)
    kernel = state.params["Dense_0"]["kernel"].value
    assert kernel.sharding == NamedSharding(where, P(None, "chip"))
    assert {shard.data.shape for shard in kernel.addressable_shards} == {(FEATURES, HIDDEN // 4)}
    # As bytes and back.
    parts = {"params": state.params, "batch_stats": state.batch_stats}
    blank = jax.tree.map(jnp.zeros_like, parts)
    restored = serialization.from_bytes(blank, serialization.to_bytes(parts))
    assert_same(jax.tree.map(np.asarray, restored), jax.tree.map(np.asarray, parts))
    images, _ = batches()[0]
    logits = net.apply(nn.unbox(parts), put(where, images, "slice"), train=False)
    return {
        "losses": jnp.stack(losses),
        "kernel": kernel,
        "mean": state.batch_stats["BatchNorm_0"]["mean"],
        "logits": logits,
        "step": state.step,
    }


class NnxNet(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        init = nnx.initializers.lecun_normal()
        wide = nnx.with_partitioning(init, (None, "chip"))
        narrow = nnx.with_partitioning(init, ("chip", None))
        self.inner = nnx.Linear(FEATURES, HIDDEN, kernel_init=wide, rngs=rngs)
        self.norm = nnx.BatchNorm(HIDDEN, momentum=0.9, rngs=rngs)
        self.dropout = nnx.Dropout(0.25, rngs=rngs)
        self.outer = nnx.Linear(HIDDEN, CLASSES, kernel_init=narrow, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.outer(self.dropout(nnx.relu(self.norm(self.inner(x)))))


def pinned(modules: Any) -> Any:
    """Has all that modules hold lie where it is said to, for XLA would choose otherwise."""
    state = nnx.state(modules)
    placed = jax.lax.with_sharding_constraint(state, nnx.get_partition_spec(state))
    nnx.update(modules, placed)
    return modules


@compared
def nnx_modules(devices: Devices) -> Told:
    where = mesh(devices)

    @nnx.jit
    def create() -> Any:
        net = NnxNet(nnx.Rngs(0, dropout=1))
        return pinned((net, nnx.Optimizer(net, optimizer(), wrt=nnx.Param)))

    with jax.set_mesh(where):
        net, trained = create()

        @nnx.jit
        def step(net: NnxNet, trained: Any, images: Any, labels: Any) -> Any:
            value, gradients = nnx.value_and_grad(lambda n: cross_entropy(n(images), labels))(net)
            trained.update(net, gradients)
            pinned((net, trained))
            return value

        losses = [
            step(net, trained, put(where, images, "slice"), put(where, labels, "slice"))
            for images, labels in batches()
        ]
        net.eval()
        images, _ = batches()[0]
        logits = net(put(where, images, "slice"))
    kernel = net.inner.kernel[...]
    assert kernel.sharding == NamedSharding(where, P(None, "chip"))
    # Taken apart and put together again, as for a checkpoint.
    graph, state = nnx.split(net)
    again = nnx.merge(graph, jax.tree.map(jnp.copy, state))
    np.testing.assert_array_equal(again(images), logits)
    return {
        "losses": jnp.stack(losses),
        "kernel": kernel,
        "mean": net.norm.mean[...],
        "logits": logits,
        "step": trained.step[...],
    }
