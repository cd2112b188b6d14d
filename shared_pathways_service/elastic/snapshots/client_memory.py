"""Stores snapshots in the memory of this process, where they survive the proxy."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from shared_pathways_service.elastic.trees import Tree, put

__all__ = ["ClientMemory", "HostArray"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostArray:
    """An array in the memory of this process; of PRNG keys, the bits and the implementation."""

    data: np.ndarray[Any, Any]
    key_impl: Any = None

    def put(self, sharding: jax.sharding.Sharding) -> jax.Array:
        """Puts it on devices."""
        if self.key_impl is None:
            return put(self.data, sharding)
        # Through one of the target devices: JAX's default device may be on a lost slice.
        bits: Any = self.data
        with jax.default_device(next(iter(sharding.device_set))):
            return put(jax.random.wrap_key_data(bits, impl=self.key_impl), sharding)


class ClientMemory:
    """Stores states as numpy arrays, at the cost of one fetch of the state."""

    place: Final = "client"

    def keep(self, copies: Tree) -> _Fetched:
        """Fetches the copies, all at once."""
        leaves, structure = jax.tree.flatten(copies)
        impls = [_key_impl(leaf) for leaf in leaves]
        bits = [
            leaf if impl is None else jax.random.key_data(leaf)
            for leaf, impl in zip(leaves, impls, strict=True)
        ]
        for array in bits:
            if isinstance(array, jax.Array):
                array.copy_to_host_async()
        fetched = [
            HostArray(data=np.asarray(array), key_impl=impl)
            for array, impl in zip(bits, impls, strict=True)
        ]
        return _Fetched(
            arrays=jax.tree.unflatten(structure, fetched),
            nbytes=sum(one.data.nbytes for one in fetched),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Fetched:
    arrays: Tree
    nbytes: int

    @property
    def on_devices(self) -> bool:
        return False

    def restore(self, like: Tree) -> Tree:
        return jax.tree.map(lambda one, leaf: one.put(leaf.sharding), self.arrays, like)

    def fetch(self) -> Tree:
        return jax.tree.map(lambda one: one.data, self.arrays)


def _key_impl(leaf: Any) -> Any:
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.key_impl(leaf)
    return None
