"""Python functions that XLA calls while it compiles: shardings of values, custom partitioning."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import compiler
from jax._src.interpreters import mlir
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jaxlib import xla_client
from jaxlib.mlir import ir

from harness.jax_checks.compared import (
    Case,
    Devices,
    Told,
    compared,
    mesh,
    tell_all,
)
from harness.jax_checks.partitioning import (
    F32,
    Seen,
    doubling,
    partitioner,
    split,
    with_each,
)

COMPILE_TIME_CHECKS: dict[str, Callable[[], None]] = {}


def check(function: Callable[[], None]) -> Callable[[], None]:
    COMPILE_TIME_CHECKS[function.__name__] = function
    return function


def inspected(program: Callable[[Any, Callable[[Any], None]], Any], x: Any) -> Case:
    """Returns a case with a program's result and the shardings of its calls."""

    def run() -> Any:
        seen: Seen = []
        result = jax.block_until_ready(jax.jit(lambda x: program(x, seen.append))(x))
        return result, [str(sharding) for sharding in seen]

    return run


def inspect(x: Any, note: Callable[[Any], None]) -> Any:
    jax.debug.inspect_array_sharding(x, callback=note)
    return x


@compared
def compile_time_shardings(devices: Devices) -> Told:
    x = split(devices, "a", "b")

    def one(x: Any, note: Any) -> Any:
        y = x * 2
        inspect(y, note)
        return y.sum()

    def several(x: Any, note: Any) -> Any:
        inspect({"rows": x.sum(1), "columns": x.sum(0), "whole": x.sum()}, note)
        inspect(x.T, note)
        inspect((x > 3).astype(jnp.bfloat16), note)
        return x

    def constrained(x: Any, note: Any) -> Any:
        y = jax.lax.with_sharding_constraint(x, NamedSharding(mesh(devices), P(("b", "a"), None)))
        inspect(y, note)
        return y

    def in_a_loop(x: Any, note: Any) -> Any:
        def body(x: Any, _: Any) -> Any:
            inspect(x, note)
            return x.T * 2 - x, None

        return jax.lax.scan(body, x, None, length=3)[0]

    def differentiated(x: Any, note: Any) -> Any:
        return jax.grad(lambda x: one(jnp.sin(x), note))(x)

    def mapped(x: Any, note: Any) -> Any:
        return jax.vmap(lambda x: one(x, note))(x)

    def in_shard_map(x: Any, note: Any) -> Any:
        return jax.shard_map(
            lambda x: inspect(x + 1, note) - 1,
            mesh=mesh(devices),
            in_specs=P("a", "b"),
            out_specs=P("a", "b"),
        )(x)

    programs = {
        "one": one,
        "several": several,
        "constrained": constrained,
        "loop": in_a_loop,
        "gradient": differentiated,
        "vmap": mapped,
        "shard_map": in_shard_map,
    }
    cases = {name: inspected(program, x) for name, program in programs.items()}
    cases["replicated"] = inspected(one, split(devices))
    cases["one device"] = inspected(one, jax.device_put(np.ones((8, 8), F32), devices[1]))
    cases["outside"] = lambda: inspected_outside(x)
    return tell_all(devices, with_each(cases))


def inspected_outside(x: Any) -> list[str]:
    seen: Seen = []
    inspect(x, seen.append)
    return [str(sharding) for sharding in seen]


@compared
def compile_time_shardings_with_other_callbacks(devices: Devices) -> Told:
    x = split(devices, "a", "b")

    def both(x: Any, note: Any) -> Any:
        out = jax.ShapeDtypeStruct((), F32)
        inspect(x, note)
        total = jax.pure_callback(lambda total: np.asarray(total) * 2, out, x.sum())
        inspect(x * total, note)
        return x * total

    return tell_all(devices, {"both": inspected(both, x)})


@compared
def compile_time_errors(devices: Devices) -> Told:
    x = split(devices, "a", "b")

    def fail(*_: Any) -> None:
        raise KeyError("no such thing")

    def program(x: Any, _note: Any) -> Any:
        inspect(x + 1, fail)
        return x

    doubled = doubling(partition=fail)
    nothing = doubling(partition=lambda *_: None)
    mesh_, spec = mesh(devices), NamedSharding(mesh(devices), P())
    wrong = doubling(partition=lambda *_: (mesh_, lambda x: x[:1], spec, (spec,)))
    cases = {
        "inspected": inspected(program, x),
        "partition": lambda: jax.jit(doubled)(x),
        "no partition": lambda: jax.jit(nothing)(x),
        "partition of another shape": lambda: jax.jit(wrong)(x),
        "afterwards": lambda: jax.jit(doubling())(x),
    }
    return tell_all(devices, with_each(cases))


def proxied() -> Any:
    jax.devices()  # (Until JAX has made its clients, "proxy" means the platform of the proxy.)
    return split(jax.devices("proxy"), "a", "b")


def told_by(function: Callable[[Any], Any]) -> str:
    """Returns the error of a program that calls the function, and has a use of its result."""
    return error_of(lambda: jax.jit(lambda x: function(x) + 1)(proxied()))


def error_of(function: Callable[[], Any]) -> str:
    try:
        function()
    except jax.errors.JaxRuntimeError as error:
        return str(error)
    raise AssertionError("it did not fail")


@check
def an_error_while_shardings_are_chosen_is_the_compilations() -> None:
    """XLA ends the process where a function for GSPMD raises anything: not the proxy."""

    def fail(*_: Any) -> None:
        raise KeyError("no such thing")

    for name in ("infer_sharding_from_operands", "propagate_user_sharding"):
        for function in (fail, lambda *_: None):
            with partitioner("gspmd"):
                text = told_by(doubling(**{name: function}))
            assert text.startswith("INTERNAL: custom_partitioner: Traceback"), text
            assert ("KeyError: 'no such thing'" in text) == (function is fail), text
    np.testing.assert_array_equal(jax.jit(doubling())(proxied()), np.asarray(proxied()) * 2)


@check
def functions_run_where_jax_compiles() -> None:
    """On the thread that compiles, with its configuration; and they may run programs themselves."""
    seen: Seen = []
    x = proxied()

    def note(_: Any) -> None:
        table = jax.device_put(np.ones(4, F32), jax.devices("proxy")[0])
        total = float(jax.jit(lambda t: jnp.sum(t * 2))(table))
        config: Any = jax.config  # (Which attributes are typed depends on the release.)
        seen.append((threading.current_thread(), config.jax_enable_x64, total))

    with jax.enable_x64(True):
        jax.block_until_ready(jax.jit(lambda x: inspect(x * 2, note))(x))
    assert seen == [(threading.current_thread(), True, 8.0)]


@check
def a_program_whose_function_is_gone_is_refused() -> None:
    """An address says nothing then, and the proxy follows none."""
    lowered = jax.jit(lambda x: inspect(x * 5, lambda _: None)).lower(proxied())
    text = lowered.as_text()
    del lowered
    gc.collect()
    client = jax.devices("proxy")[0].client
    with mlir.make_ir_context():
        module = ir.Module.parse(text)
        options = compiler.get_compile_options(1, 8, np.arange(8).reshape(1, 8))
        devices = xla_client.DeviceList(tuple(jax.devices("proxy")))
        told = error_of(
            lambda: compiler.backend_compile_and_load(client, module, devices, options, ())
        )
    assert "custom call 'InspectSharding'" in told, told


@check
def functions_are_called_for_each_program() -> None:
    """No cache between them: neither JAX's, nor the proxy's."""
    seen: Seen = []
    for _ in range(2):
        jax.jit(lambda x: inspect(x * 3, seen.append))(proxied())
    assert len(seen) == 2
    program = jax.jit(lambda x: inspect(x * 4, seen.append))
    for _ in range(2):
        program(proxied())
    assert len(seen) == 3
