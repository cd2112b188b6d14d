"""Errors that users make: the same exception type and the same first line as on the CPU."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import checkify, io_callback
from jax.sharding import NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from harness.jax_checks.compared import (
    CLIENTS_OWN,
    Case,
    Devices,
    Told,
    compared,
    mesh,
    tell_all,
)


@compared
def errors_of_arguments(devices: Devices) -> Told:
    square = jnp.ones((8, 8))
    to_numpy: Any = square
    text: Any = "abc"
    at = {spec: NamedSharding(mesh(devices), P(*spec)) for spec in ("", "a", "b", "ab")}
    eight = NamedSharding(mesh(devices), P(("a", "b")))
    pieces = [jax.device_put(np.ones(1, np.float32), device) for device in devices]
    wrong = [jax.device_put(np.ones(1, np.int32), devices[0]), *pieces[1:]]
    doubles = [jax.device_put(np.ones(2, np.float32), device) for device in devices]

    def assemble(arrays: list[Any]) -> Any:
        return jax.make_array_from_single_device_arrays((8,), eight, arrays)

    def guarded() -> Any:
        with jax.transfer_guard("disallow"):
            return jax.jit(lambda x: x)(np.ones(3))

    return tell_all(
        devices,
        {
            "shapes": lambda: jnp.ones((2, 3)) @ jnp.ones((2, 3)),
            "broadcast": lambda: jnp.ones(3) + jnp.ones(4),
            "reshape": lambda: square.reshape(3, 3),
            "condition": lambda: jax.jit(lambda x: 1 if x > 0 else 2)(1.0),
            "truth": lambda: bool(jnp.ones(2)),
            "scalar": lambda: float(jnp.ones(3)),
            "iteration": lambda: list(jnp.float32(3)),
            "dtype": lambda: jnp.ones(3, dtype="nope"),
            "not an array": lambda: jnp.sin(text),
            "gradient": lambda: jax.grad(lambda x: x)(jnp.ones(3)),
            "loop": lambda: jax.lax.while_loop(lambda c: c < 3, lambda c: c + 1.0, jnp.int32(0)),
            "sort": lambda: jax.lax.sort(jnp.ones(3), dimension=4),
            "uneven": lambda: jax.device_put(np.ones(7), at["b"]),
            "rank": lambda: jax.device_put(np.ones(8), at["ab"]),
            "axis": lambda: NamedSharding(mesh(devices), P("nope")),
            "axis twice": lambda: NamedSharding(mesh(devices), P("a", "a")),
            "memory": lambda: jax.device_put(
                1.0, SingleDeviceSharding(devices[0], memory_kind="x")
            ),
            "other device": lambda: jax.device_put(1.0, devices[8]),
            "other platform": lambda: jax.devices("nope"),
            "too few pieces": lambda: assemble(pieces[:4]),
            "larger pieces": lambda: assemble(doubles),
            "pieces elsewhere": lambda: assemble(pieces[::-1]),
            "pieces of another type": lambda: assemble(wrong),
            "callback": lambda: jax.make_array_from_callback(
                (8, 8), at["ab"], lambda _: np.ones((3, 3))
            ),
            "pmap": lambda: jax.pmap(lambda x: x, devices=devices)(np.ones(9)),
            "shard_map": lambda: jax.jit(
                jax.shard_map(lambda x: x, mesh=mesh(devices), in_specs=P("a"), out_specs=P("a"))
            )(np.ones(7)),
            "in_shardings": lambda: jax.jit(lambda x: x, in_shardings=at["a"])(
                jax.device_put(square, at["b"])
            ),
            "donated index": lambda: jax.jit(lambda x: x, donate_argnums=3)(1.0),
            "guard": guarded,
            "objects": lambda: jax.device_put(np.array([object()]), devices[0]),
            "words": lambda: jax.device_put(np.array(["a"]), devices[0]),
            "dates": lambda: jax.device_put(np.array(["2020-01-01"], "datetime64[D]"), devices[0]),
            "pickled": lambda: pickle.loads(pickle.dumps(square)),
            "copied": lambda: copy.deepcopy(square),
            "dlpack": lambda: np.from_dlpack(to_numpy),
            "pointer": lambda: square.unsafe_buffer_pointer() > 0,
        },
    )


@compared
def errors_of_programs(devices: Devices) -> Told:
    split = NamedSharding(mesh(devices), P("a", "b"))
    huge = (1 << 16, 1 << 16, 1 << 12)

    def call(target: str, version: int) -> Any:
        shape = jax.ShapeDtypeStruct((2, 2), np.float32)
        foreign = jax.ffi.ffi_call(target, shape, custom_call_api_version=version)
        return jax.jit(foreign)(np.ones((2, 2), np.float32))

    def nans() -> Any:
        with jax.debug_nans(True):
            return jax.jit(jnp.log)(-1.0)

    def option(name: str, value: str) -> Any:
        return jax.jit(lambda x: x, compiler_options={name: value})(1.0)

    def throw(checked: Any, *arguments: Any) -> None:
        error, _ = jax.jit(checked)(*arguments)
        error.throw()

    positive = checkify.checkify(lambda x: checkify.check(x > 0, "{x} is not positive", x=x))
    logarithm = checkify.checkify(jnp.log, errors=checkify.float_checks)
    item = checkify.checkify(lambda x, i: x[i], errors=checkify.index_checks)
    return tell_all(
        devices,
        {
            "option": lambda: option("nope", "1"),
            "value of an option": lambda: option("xla_cpu_enable_fast_math", "blah"),
            "custom call": lambda: call("no_such_target", 4),
            "old custom call": lambda: call("no_such_target", 1),
            "custom call of other arguments": lambda: call("lapack_spotrf_ffi", 4),
            "too large": jax.jit(lambda: jnp.zeros(huge, jnp.float32)),
            "too large, split": jax.jit(lambda: jnp.zeros(huge, jnp.float32), out_shardings=split),
            "checked": lambda: throw(positive, -1.0),
            "checked numbers": lambda: throw(logarithm, -1.0),
            "checked index": lambda: throw(item, jnp.arange(3), 9),
            "nans": nans,
            "division by zero": lambda: jnp.int32(1) // jnp.int32(0),
            "not positive": lambda: jnp.linalg.cholesky(-jnp.eye(3)),
            "eigenvalues": lambda: jnp.linalg.eigvals(jnp.eye(3)),
            "after all that": lambda: jax.jit(lambda x: x * 2)(
                jax.device_put(np.ones((8, 8)), split)
            ),
        },
    )


_NOT_LISTED = (
    "JaxRuntimeError",
    (
        "UNIMPLEMENTED: a proxy for cpu does not run custom call 'no_such_target': it runs only "
        "XLA's operations and jaxlib's kernels. Instead: jax.numpy and jax.lax, or jit the "
        "function for this machine's CPU, or, for a library of your own (jax.ffi), an embedded "
        "service that was started with `sps serve --allow-ffi-libraries DIR`, and "
        "proxy_options=['ffi_targets:NAME=LIBRARY:SYMBOL']"
    ),
)
CLIENTS_OWN["errors_of_programs"] = {
    "custom call": _NOT_LISTED,
    "old custom call": _NOT_LISTED,
    "custom call of other arguments": (
        "JaxRuntimeError",
        "INVALID_ARGUMENT: custom call lapack_spotrf_ffi: its attributes must be ['uplo'], not []",
    ),
}


@compared
def host_callbacks(devices: Devices) -> Told:
    scalar = jax.ShapeDtypeStruct((), np.float32)

    def same(x: Any) -> np.ndarray:
        return np.asarray(x)

    def debugging(x: Any) -> Any:
        jax.debug.callback(lambda _: None, x)
        return x

    def in_order(x: Any) -> Any:
        jax.debug.callback(lambda _: None, x, ordered=True)
        return x

    programs: dict[str, Callable[[Any], Any]] = {
        "debug.callback": debugging,
        "in order": in_order,
        "pure_callback": lambda x: jax.pure_callback(same, scalar, x),
        "io_callback": lambda x: io_callback(same, scalar, x),
        "io_callback in order": lambda x: io_callback(same, scalar, x, ordered=True),
    }

    def call(program: Callable[[Any], Any]) -> Case:
        return lambda: jax.jit(program)(1.0)

    cases: dict[str, Case] = {name: call(program) for name, program in programs.items()}
    cases |= {"effects": jax.effects_barrier, "after that": lambda: jax.jit(jnp.sin)(1.0)}
    return tell_all(devices, cases)
