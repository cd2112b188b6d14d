"""Each kind of operation on each element type: equal to the CPU, or refused with the same words.

`small_types` has those with which the CPU hardly computes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from harness.jax_checks.basics import check, fails
from harness.jax_checks.compared import Devices, Told, compared, mesh, tell
from harness.jax_checks.values import ML_DTYPES, NUMPY_DTYPES

#: XLA's CPU is wrong, and crashes: over several devices, and at a concatenation. Proxies refuse it.
_TWO_BITS = ("int2", "uint2")
_ROW = [0, 1, 1, 0, 1, 0, 1, 1]

OPERATIONS: Mapping[str, Callable[[Any], Any]] = {
    "add": lambda x: x + x,
    "compare": lambda x: (x == x[::-1], x < x[::-1]),
    "select": lambda x: jnp.where(x == x[0], x, x[::-1]),
    "reduce": lambda x: (jnp.sum(x), jnp.max(x), jnp.min(x), jnp.any(x)),
    "scan": jnp.cumsum,
    "sort": lambda x: (jnp.sort(x), jnp.argsort(x)),
    "dot": lambda x: (x @ x, jnp.outer(x, x)),
    "gather": lambda x: (x[jnp.array([3, 0, 7])], x[2:5]),
    "scatter": lambda x: x.at[jnp.array([3, 0])].set(x[1]),
    "convert": lambda x: (x.astype(jnp.float32), x.astype(jnp.int32), x.astype(jnp.bool_)),
    "back": lambda x: x.astype(jnp.float32).astype(x.dtype),
    "bits": lambda x: jax.lax.bitcast_convert_type(x, x.dtype),
    "concatenate": lambda x: jnp.concatenate([x, x]),
    "pad": lambda x: jnp.pad(x, 2),
}
#: Within `shard_map` over an axis of four devices.
COLLECTIVES: Mapping[str, Callable[[Any], Any]] = {
    "psum": lambda x: jax.lax.psum(x, "b"),
    "pmax": lambda x: jax.lax.pmax(x, "b"),
    "all_gather": lambda x: jax.lax.all_gather(x, "b").reshape(-1),
    "ppermute": lambda x: jax.lax.ppermute(x, "b", [(i, (i + 1) % 4) for i in range(4)]),
    "all_to_all": lambda x: jax.lax.all_to_all(jnp.tile(x, 2), "b", 0, 0, tiled=True),
    "psum_scatter": lambda x: jax.lax.psum_scatter(jnp.tile(x, 2), "b", tiled=True),
}


@compared
def operations_on_every_dtype(devices: Devices) -> Told:
    arrays = _arrays(lambda row: jax.device_put(row, devices[3]))
    others = {name: array for name, array in arrays.items() if name not in _TWO_BITS}
    return {
        name: _of_all(devices, operation, others if name == "concatenate" else arrays)
        for name, operation in OPERATIONS.items()
    }


@compared
def collectives_of_every_dtype(devices: Devices) -> Told:
    spread = NamedSharding(mesh(devices), P("b"))
    arrays = _arrays(lambda row: jax.device_put(row, spread))

    def mapped(operation: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return jax.shard_map(operation, mesh=spread.mesh, in_specs=P("b"), out_specs=P("b"))

    others = {name: array for name, array in arrays.items() if name not in _TWO_BITS}
    return {
        name: _of_all(devices, mapped(operation), others) for name, operation in COLLECTIVES.items()
    }


@check
def integers_of_two_bits_with_which_xla_computes_wrongly() -> None:
    """What the comparisons above leave out is refused by name, and the array can be read after."""
    spread = NamedSharding(mesh(jax.devices()), P("b"))
    for name in _TWO_BITS:
        row = np.array(_ROW).astype(np.dtype(name))
        put, word = jax.device_put(row, spread), name.replace("nt", "")
        for operation in COLLECTIVES.values():
            mapped = jax.shard_map(operation, mesh=spread.mesh, in_specs=P("b"), out_specs=P("b"))
            why = f"programs over several devices with {word} are not supported"
            fails(functools.partial(jax.jit(mapped), put), "UNIMPLEMENTED", why)
        joined = jax.jit(OPERATIONS["concatenate"])
        why = f"concatenations of {word} are not supported"
        fails(functools.partial(joined, row), "UNIMPLEMENTED", why)
        np.testing.assert_array_equal(np.asarray(put), row)


def _arrays(put: Callable[[np.ndarray], Any]) -> dict[str, Any]:
    types = [np.dtype(dtype) for dtype in (*NUMPY_DTYPES, *ML_DTYPES)]
    with jax.enable_x64(True):
        return {str(dtype): put(np.array(_ROW).astype(dtype)) for dtype in types}


def _of_all(
    devices: Devices, operation: Callable[[Any], Any], arrays: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns what an operation gives for each array: in one program, if XLA takes them all."""
    with jax.enable_x64(True):
        traced = functools.partial(_traced, operation)
        shapes = {n: tell(devices, functools.partial(traced, x)) for n, x in arrays.items()}
        told = {name: shape for name, shape in shapes.items() if shape is not None}
        possible = {name: array for name, array in arrays.items() if name not in told}
        together = jax.jit(lambda every: {n: operation(x) for n, x in every.items()})
        found = tell(devices, lambda: together(possible))
        if isinstance(found, dict):
            return told | found
        # XLA refuses one of them.
        one = jax.jit(operation)
        return told | {n: tell(devices, functools.partial(one, x)) for n, x in possible.items()}


def _traced(operation: Callable[[Any], Any], array: Any) -> None:
    jax.eval_shape(operation, array)
