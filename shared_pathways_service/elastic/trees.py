"""Copies and places pytrees of arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Sharding

__all__ = ["Placement", "Tree", "copy_on_devices", "describe", "place", "put"]

#: Any pytree of arrays.
Tree: TypeAlias = Any
#: The placement of a state: one sharding for all, a pytree of them, or a function that makes that
#: from the state's shapes (a pytree of `jax.ShapeDtypeStruct`).
Placement = Sharding | Tree | Callable[[Tree], Tree]


def describe(shapes: Tree, placement: Placement) -> Tree:
    """Returns shapes, dtypes and shardings of a state."""
    shardings = placement(shapes) if callable(placement) else placement
    if isinstance(shardings, Sharding):
        only = shardings
        shardings = jax.tree.map(lambda _: only, shapes)
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        shapes,
        shardings,
    )


def put(array: Any, where: Sharding | jax.Device) -> jax.Array:
    """Puts an array on devices."""
    placed: jax.Array = jax.device_put(array, where)
    return placed


def place(tree: Tree, like: Tree) -> Tree:
    """Places a state."""
    return jax.device_put(tree, jax.tree.map(lambda leaf: leaf.sharding, like))


def copy_on_devices(tree: Tree) -> Tree:
    """Copies arrays on their devices, without waiting: the originals may be donated at once."""
    leaves, structure = jax.tree.flatten(tree)
    together: dict[frozenset[jax.Device], list[int]] = {}
    for number, leaf in enumerate(leaves):
        if isinstance(leaf, jax.Array):
            together.setdefault(frozenset(leaf.sharding.device_set), []).append(number)
        else:
            leaves[number] = np.copy(leaf)
    # One program per set of devices, and so one request each, independent of the number of arrays.
    for numbers in together.values():
        for number, copied in zip(numbers, _copies([leaves[n] for n in numbers]), strict=True):
            leaves[number] = copied
    return jax.tree.unflatten(structure, leaves)


@jax.jit
def _copies(leaves: list[jax.Array]) -> list[jax.Array]:
    return [jnp.copy(leaf) for leaf in leaves]
