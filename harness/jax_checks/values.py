"""Values of every kind, from their making to their end: the same as on the CPU."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax.sharding import NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from harness.jax_checks.compared import (
    CLIENTS_OWN,
    JAX_RELEASE,
    Case,
    Devices,
    Told,
    compared,
    mesh,
    tell,
    tell_all,
    under,
)
from harness.large_arrays import exercise

# fmt: off
NUMPY_DTYPES = [
    np.bool_, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64,
    np.float16, np.float32, np.float64, np.complex64, np.complex128,
]
ML_DTYPES = [
    ml_dtypes.int2, ml_dtypes.int4, ml_dtypes.uint2, ml_dtypes.uint4, ml_dtypes.bfloat16,
    ml_dtypes.float4_e2m1fn,
    ml_dtypes.float8_e3m4, ml_dtypes.float8_e4m3, ml_dtypes.float8_e4m3fn,
    ml_dtypes.float8_e4m3b11fnuz, ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2,
    ml_dtypes.float8_e5m2fnuz, ml_dtypes.float8_e8m0fnu,
]
# fmt: on


@compared
def every_dtype(devices: Devices) -> Told:
    everywhere, split = NamedSharding(mesh(devices), P()), NamedSharding(mesh(devices), P("b"))
    one: dict[str, list[Any]] = {}
    spread: dict[str, list[Any]] = {}

    def put(dtype: np.dtype) -> Any:
        row = np.array([0, 1, 1, 0, 1, 0, 1, 1]).astype(dtype)
        values = (row, np.array(1).astype(dtype), np.zeros((0, 3), dtype))
        alone = [jax.device_put(value, devices[3]) for value in values]
        wide = [jax.device_put(values[1], everywhere)]
        wide += [jax.device_put(value, split) for value in (row, np.zeros((8, 0), dtype))]
        one[str(dtype)], spread[str(dtype)] = alone, wide
        return alone, wide

    @jax.jit
    def twice(arrays: Any) -> Any:
        return jax.tree.map(lambda x: jnp.stack([x, x]), arrays)

    with jax.enable_x64(True):
        types = [np.dtype(dtype) for dtype in (*NUMPY_DTYPES, *ML_DTYPES)]
        told = tell_all(devices, {str(dtype): functools.partial(put, dtype) for dtype in types})
        assert len(one) == len(types)
        told["64 bits"] = tell(devices, lambda: jnp.arange(3) + 2**40)
        for name in ("int2", "uint2"):
            # XLA's CPU crashes, and the proxy refuses it.
            del one[name], spread[name]
        told["one device"] = tell(devices, lambda: twice(one))
        told["all devices"] = tell(devices, lambda: twice(spread))
    return told


@compared
def random_keys_of_every_kind(devices: Devices) -> Told:
    def keys(implementation: str) -> Any:
        key = jax.random.key(3, impl=implementation)
        split = jax.device_put(jax.random.split(key, 8), NamedSharding(mesh(devices), P("b")))
        numbers = jax.vmap(jax.random.bits)(split)
        folded = jax.jit(jax.random.fold_in, donate_argnums=0)(key, 1)
        return (
            jax.random.key_data(split),
            numbers,
            str(split.dtype),
            str(split.sharding.spec),
            jax.random.key_data(folded),
            key.is_deleted(),
            jax.random.split(folded, 0).shape,
        )

    names = ("threefry2x32", "unsafe_rbg")
    return tell_all(devices, {name: functools.partial(keys, name) for name in names})


@compared
def tokens(devices: Devices) -> Told:
    sharding = NamedSharding(mesh(devices), P("a", "b"))
    begin = jax.jit(lambda x: (jax.lax.create_token(x), x + 1))
    follow = jax.jit(lambda token, x: (jax.lax.after_all(token), x * 2))

    def chain(x: Any) -> Any:
        token, x = begin(x)
        for _ in range(3):
            token, x = follow(token, x)
        token.block_until_ready()
        return type(token).__name__, x

    compiled = follow.lower(jax.lax.create_token(), 1.0).compile()
    return tell_all(
        devices,
        {
            "alone": lambda: jax.lax.create_token().block_until_ready(),
            "one device": lambda: chain(jnp.ones(())),
            "all devices": lambda: chain(jax.device_put(np.ones((8, 8), np.float32), sharding)),
            "ahead of time": lambda: compiled(jax.lax.create_token(), 1.0)[1],
            "fetched": lambda: np.asarray(begin(1.0)[0]._buf),
            "effects": jax.effects_barrier,
        },
    )


@compared
def donation_and_aliases(devices: Devices) -> Told:
    values = np.ones((8, 8), np.float32)
    one = SingleDeviceSharding(devices[2])
    row = NamedSharding(mesh(devices), P("b"))
    step = jax.jit(lambda x: x + 1, donate_argnums=0)
    both = jax.jit(lambda x, y: (x + 1, y.sum()), donate_argnums=(0, 1))
    two = jax.jit(lambda x, y: (x + 1, y + 1), donate_argnums=(0, 1))

    def after(place: Any, use: Callable[[Any], Any]) -> Any:
        x = jax.device_put(values, place)
        step(x)
        return x.is_deleted(), tell(devices, lambda: use(x))

    def unused(place: Any) -> Any:
        x, y = jax.device_put(values, place), jax.device_put(values, place)
        result = both(x, y)
        return result, x.is_deleted(), y.is_deleted(), tell(devices, lambda: y)

    def alias(place: Any) -> Any:
        x = jax.device_put(values, place)
        others = [jax.jit(lambda x: x)(x), jax.device_put(x, place)]
        x.delete()
        return [(other.is_deleted(), tell(devices, other.sum)) for other in others]

    def view(place: Any) -> Any:
        x = jax.device_put(values, place)
        piece = x.addressable_data(0)
        x.delete()
        return piece.is_deleted(), tell(devices, piece.block_until_ready)

    def given(place: Any) -> Any:
        x = jax.device_put(values, place)
        return jax.device_put(x, row, donate=True), x.is_deleted()

    def of(place: Any) -> dict[str, Case]:
        return {
            "fetch": lambda: after(place, np.asarray),
            "put": lambda: after(place, lambda x: jax.device_put(x, row)),
            "unused": lambda: unused(place),
            "alias": lambda: alias(place),
            "view": lambda: view(place),
            "given": lambda: given(place),
        }

    keep = jax.jit(lambda x, y: (x + 1, y + 1), donate_argnums=0)
    first, second = (jax.device_put(values, one) for _ in range(2))
    return tell_all(
        devices,
        {
            **under("one", of(one)),
            **under("split", of(NamedSharding(mesh(devices), P("a", "b")))),
            **under("everywhere", of(NamedSharding(mesh(devices), P()))),
            # Over several devices these end the process, on the CPU.
            "again": lambda: after(one, step),
            "twice": lambda: two(first, first),
            "and not": lambda: keep(second, second),
        },
    )


_WHOLE = ("float32", (8, 8), np.ones((8, 8), np.float32).tobytes())
_DELETED = "INVALID_ARGUMENT: Array already deleted."
CLIENTS_OWN["donation_and_aliases"] = {
    ("one", "view"): (False, _WHOLE),
    ("everywhere", "view"): (False, _WHOLE),
    **({"again": (True, ("ValueError", _DELETED))} if JAX_RELEASE < (0, 11) else {}),
    "twice": ("JaxRuntimeError", _DELETED),
    "and not": ("JaxRuntimeError", _DELETED),
}


@compared
def deleted_arrays(devices: Devices) -> Told:
    values = np.ones((8, 8), np.float32)

    def of(place: Any) -> dict[str, Case]:
        def deleted() -> Any:
            x = jax.device_put(values, place)
            x.delete()
            return x

        def early() -> Any:
            x = jax.device_put(values, place) * 2
            x.copy_to_host_async()
            x.copy_to_host_async()
            fetched = np.asarray(x)
            x.delete()
            return fetched, x.is_deleted(), tell(devices, lambda: x + 1)

        def twice() -> Any:
            x = deleted()
            x.delete()
            return x.is_deleted(), x.shape, x.nbytes

        return {
            "early": early,
            "twice": twice,
            "asarray": lambda: np.asarray(deleted()),
            "add": lambda: deleted() + 1,
            "repr": lambda: repr(deleted()),
            "shards": lambda: deleted().addressable_shards[0].data,
            "data": lambda: deleted().addressable_data(0),
            "block": lambda: deleted().block_until_ready(),
            "index": lambda: deleted()[0, 0],
            "copy to host": lambda: deleted().copy_to_host_async(),
            "copy": lambda: deleted().copy(),
        }

    return tell_all(
        devices,
        {
            **under("one", of(devices[5])),
            **under("split", of(NamedSharding(mesh(devices), P("a", "b")))),
        },
    )


@compared
def large_arrays_when_they_are_small(devices: Devices) -> Told:
    told = exercise(3 << 20, devices)
    return {name: told[name] for name in ("wrong", "checksums", "bytes")}
