"""Types with which XLA's CPU hardly computes: floats of six bits, integers of one bit.

Arrays of them are as on the CPU, and so are the programs that JAX makes arrays by. Most others fail
on the CPU, or end its process, and the proxy refuses them by name.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from harness.jax_checks.basics import check, fails
from harness.jax_checks.compared import (
    JAX_RELEASE,
    Case,
    Devices,
    Told,
    compared,
    mesh,
    tell_all,
    under,
)
from harness.jax_checks.element_types import COLLECTIVES, OPERATIONS
from harness.jax_checks.values import ML_DTYPES, NUMPY_DTYPES

#: JAX has floats of six bits from 0.11 on; ml_dtypes had no integers of one bit at first.
SIX_BITS = [ml_dtypes.float6_e2m3fn, ml_dtypes.float6_e3m2fn] if JAX_RELEASE >= (0, 11) else []
ONE_BIT = [getattr(ml_dtypes, name) for name in ("int1", "uint1") if hasattr(ml_dtypes, name)]
_SMALL = [np.dtype(dtype) for dtype in (*SIX_BITS, *ONE_BIT)]
_ROW = [0, 1, 1, 0, 1, 0, 1, 1]


@compared
def arrays_of_small_types(devices: Devices) -> Told:
    """Put, printed, copied, viewed and fetched."""
    told: Told = {}
    for dtype in _SMALL:
        told |= tell_all(devices, under(str(dtype), _arrays(devices, np.array(_ROW).astype(dtype))))
    return told


def _arrays(devices: Devices, row: np.ndarray) -> dict[str, Case]:
    square, split = row.reshape(2, 4), NamedSharding(mesh(devices), P("b"))
    parts = NamedSharding(mesh(devices), P("a", "b"))

    def put(value: Any, place: Any) -> Any:
        return jax.device_put(value, place)

    one, spread = functools.partial(put, row, devices[3]), functools.partial(put, row, split)
    return {
        "one device": one,
        "several devices": spread,
        "a square": lambda: put(square, parts),
        "a column": lambda: put(square[:, 1], devices[1]),
        "every second": lambda: put(row[::2], devices[1]),
        "a scalar": lambda: put(row[1], devices[3]),
        "no elements": lambda: put(row[:0].reshape(0, 3), devices[3]),
        "printed": lambda: (repr(one()), str(one()), repr(put(square, parts))),
        "fetched": lambda: jax.device_get([one(), spread()]),
        "copied": lambda: put(one(), devices[0]),
        "gathered": lambda: put(spread(), NamedSharding(mesh(devices), P())),
        "views": lambda: [shard.data for shard in put(square, parts).addressable_shards],
        "joined": lambda: jax.make_array_from_single_device_arrays(
            (8,), split, [shard.data for shard in spread().addressable_shards]
        ),
        "of a callback": lambda: jax.make_array_from_callback((8,), split, lambda at: row[at]),
        "deleted": lambda: one().delete(),
        "properties": lambda: (one().nbytes, one().itemsize, one().dtype.name, one().weak_type),
    }


@compared
def six_bit_floats_in_programs(devices: Devices) -> Told:
    """Converted to, and moved."""
    told: Told = {}
    with jax.enable_x64(True):
        for dtype in map(np.dtype, SIX_BITS):
            told |= tell_all(devices, under(str(dtype), _moving(devices, dtype)))
    return told


def _moving(devices: Devices, dtype: np.dtype) -> dict[Any, Case]:
    numbers = np.linspace(-9, 9, 24).reshape(4, 6)
    others = [np.dtype(other) for other in (*NUMPY_DTYPES, *ML_DTYPES)]
    own = numbers.astype(dtype)

    def convert(other: np.dtype) -> Any:
        with np.errstate(invalid="ignore"):
            values = numbers.astype(other)
        return jax.jit(lambda x: x.astype(dtype))(jax.device_put(values, devices[3]))

    def run(program: Callable[[Any], Any]) -> Case:
        return lambda: jax.jit(program)(jax.device_put(own, devices[3]))

    real = [other for other in others if other.kind != "c"]
    cases: dict[Any, Case] = {
        "array": lambda: jnp.array([1.0, 2.0], dtype=dtype),
        "array of an array": lambda: jnp.array(own),
        "as an array": lambda: jnp.asarray(own),
        "scalar": lambda: jnp.array(1, dtype=dtype),
        "zeros": lambda: jnp.zeros((2, 3), dtype),
        "ones": lambda: jnp.ones(3, dtype),
        "full": lambda: jnp.full((3,), 1.5, dtype),
        "printed": lambda: repr(jnp.array([1.0, 2.0], dtype=dtype)),
        "identity": run(lambda x: x),
        "donated": lambda: jax.jit(lambda x: x, donate_argnums=0)(jax.device_put(own, devices[3])),
        "several": run(lambda x: (x, x.T, x.reshape(6, 4))),
        "transposed": run(lambda x: x.T),
        "reshaped": run(lambda x: x.reshape(-1)),
        "sliced": run(lambda x: x[1:3, ::2]),
        "broadcast": run(lambda x: jnp.broadcast_to(x, (2, 4, 6))),
        "nested": run(jax.jit(jnp.transpose)),
        "of a sum": lambda: jnp.sum(numbers).astype(dtype),
    }
    return cases | {other: functools.partial(convert, other) for other in real}


@check
def one_bit_integers_are_no_arguments_of_programs() -> None:
    """JAX writes `int1` as a boolean and `uint1` as a type that StableHLO refuses.

    The CPU refuses them too (RuntimeProgramInputMismatch), but for several devices.
    """
    programs: list[Callable[[Any], Any]] = [
        lambda x: x,
        lambda x: x + x,
        lambda x: x.astype(jnp.int32),
        lambda x: x[jnp.array([3, 0])],
    ]
    for dtype in map(np.dtype, ONE_BIT):
        row = np.array(_ROW).astype(dtype)
        words = ("INVALID_ARGUMENT", "takes bool[8]", "not int1[8]") if dtype.name == "int1" else ()
        for place in (jax.devices()[3], NamedSharding(mesh(jax.devices()), P())):
            put = jax.device_put(row, place)
            for program in programs:
                fails(functools.partial(jax.jit(program), put), *words)
            np.testing.assert_array_equal(np.asarray(put), row)


#: Some end the process of XLA's CPU, the others fail there, or would need more than one device.
@check
def six_bit_floats_that_xla_does_not_compute_with() -> None:
    on_four = functools.partial(
        jax.shard_map, mesh=mesh(jax.devices()), in_specs=P("b"), out_specs=P("b"), check_vma=False
    )
    for dtype in map(np.dtype, SIX_BITS):
        row = np.array(_ROW).astype(dtype)
        word = "f6" + dtype.name.removeprefix("float6_").upper()

        def refused(program: Callable[..., Any], *arguments: Any, why: str = word) -> None:
            call = functools.partial(jax.jit(program), *arguments)
            fails(call, "UNIMPLEMENTED", f"{why} are not supported")

        for operation in OPERATIONS.values():
            refused(operation, row)
        for collective in COLLECTIVES.values():
            refused(on_four(collective), row, why=f"several devices and {word}")
        empty = functools.partial(jnp.zeros, (0, 3), dtype)
        fails(empty, "UNIMPLEMENTED", f"programs with empty arrays and {word} are not supported")
        refused(functools.partial(jnp.asarray, row))
        np.testing.assert_array_equal(np.asarray(jax.device_put(row)), row)
