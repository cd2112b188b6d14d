"""States with leaves of every kind, saved and restored; and the checks by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from shared_pathways_service.elastic.checkpoints.checkpoints import (
    Checkpoints,
)
from shared_pathways_service.elastic.progress import Progress
from shared_pathways_service.events import Event

CHECKS: dict[str, Callable[[str], None]] = {}


def check(function: Callable[[str], None]) -> Callable[[str], None]:
    CHECKS[function.__name__] = function
    return function


class Told(list[Event]):
    """Collects events, and says of each kind which steps it was told of."""

    def steps(self, kind: str) -> list[int | None]:
        return [event.step for event in self if event.kind == kind]

    def only(self, kind: str) -> Event:
        [event] = [event for event in self if event.kind == kind]
        return event


def mesh(devices: int) -> Mesh:
    return Mesh(np.array(jax.devices()[:devices]), ("x",))


def state_of(step: int, devices: int = 12) -> dict[str, Any]:
    """Returns a state with a leaf of every kind; its values tell the step."""
    over = NamedSharding(mesh(devices), PartitionSpec("x"))
    everywhere = NamedSharding(mesh(devices), PartitionSpec())
    numbers = np.random.default_rng(step).standard_normal((48, 500)).astype(np.float32)
    params = {
        "w": jax.device_put(numbers, over),
        "b": jax.device_put(np.full(7, step, jnp.bfloat16), everywhere),
    }
    return {
        "params": params,
        "optimizer": optax.adam(1e-3).init(params),
        "key": jax.device_put(jax.random.key(step), everywhere),
        "accumulated": [jax.device_put(numbers * 2, over), jnp.int32(step)],
        "host": np.arange(step, step + 5),
        "count": step,
    }


def like(state: Any) -> Any:
    def shape_of(leaf: Any) -> Any:
        if isinstance(leaf, jax.Array):
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
        return leaf

    return jax.tree.map(shape_of, state)


def assert_same(found: Any, wanted: Any) -> None:
    def compare(one: Any, other: Any) -> None:
        if isinstance(other, jax.Array):
            assert one.dtype == other.dtype
            assert one.sharding.is_equivalent_to(other.sharding, one.ndim)
            if jnp.issubdtype(other.dtype, jax.dtypes.prng_key):
                one, other = jax.random.key_data(one), jax.random.key_data(other)
        else:
            assert type(one) is type(other)
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))

    assert str(jax.tree.structure(found)) == str(jax.tree.structure(wanted))
    jax.tree.map(compare, found, wanted)


def progress_of(step: int) -> Progress:
    return Progress(step=step, epoch=step // 4, loss=1 / step, data={"position": step * 24})


def save(directory: str, *steps: int, **options: Any) -> Told:
    told = Told()
    with Checkpoints(directory, on_event=told.append, **options) as checkpoints:
        for step in steps:
            checkpoints.save(state_of(step), progress_of(step))
    return told


def assert_restores(directory: str, step: int, told: Told | None = None, **options: Any) -> None:
    told = Told() if told is None else told
    with Checkpoints(directory, on_event=told.append, **options) as checkpoints:
        found = checkpoints.restore(like(state_of(1)))
        assert found is not None
        assert found[1] == progress_of(step)
        assert_same(found[0], state_of(step))


def largest_file(directory: str, step: int) -> Path:
    files = [path for path in Path(directory, str(step)).rglob("*") if path.is_file()]
    return max(files, key=lambda path: path.stat().st_size)
