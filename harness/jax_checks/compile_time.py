"""Python functions that XLA calls while it compiles: shardings of values, custom partitioning."""

from __future__ import annotations

import contextlib
import functools
import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import compiler
from jax._src.interpreters import mlir
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import Mesh, NamedSharding
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
    under,
)

COMPILE_TIME_CHECKS: dict[str, Callable[[], None]] = {}
F32 = np.float32
Seen = list[Any]


def check(function: Callable[[], None]) -> Callable[[], None]:
    COMPILE_TIME_CHECKS[function.__name__] = function
    return function


@contextlib.contextmanager
def partitioner(kind: str) -> Iterator[None]:
    before = jax.config.jax_use_shardy_partitioner
    jax.config.update("jax_use_shardy_partitioner", kind == "shardy")
    try:
        yield
    finally:
        jax.config.update("jax_use_shardy_partitioner", before)


def with_each(cases: dict[Any, Case]) -> dict[Any, Case]:
    """Returns the cases with Shardy, and with GSPMD."""

    def run(kind: str, case: Case) -> Any:
        with partitioner(kind):
            return case()

    return {
        key: functools.partial(run, kind, case)
        for kind in ("shardy", "gspmd")
        for key, case in under(kind, cases).items()
    }


def split(devices: Devices, *axes: Any) -> Any:
    return jax.device_put(
        np.arange(64, dtype=F32).reshape(8, 8), NamedSharding(mesh(devices), P(*axes))
    )


def inspected(program: Callable[[Any, Callable[[Any], None]], Any], x: Any) -> Case:
    """Returns a case that tells a program's result, and the shardings it was called with."""

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


def doubling(note: Callable[..., None] | None = None, **functions: Any) -> Any:
    """Returns a function that doubles each element, on each device for itself."""
    note = note or (lambda *_: None)

    @custom_partitioning
    def double(x: Any) -> Any:
        return x * 2

    def partition(mesh: Mesh, args: Any, result: Any) -> Any:
        note("partition", [str(a.sharding) for a in args], str(result.sharding), result.shape)
        return mesh, lambda x: x * 2, result.sharding, (args[0].sharding,)

    def infer(_mesh: Mesh, args: Any, result: Any) -> Any:
        note("infer", [str(a.sharding) for a in args], result.shape)
        return args[0].sharding

    def propagate(_mesh: Mesh, user: Any) -> Any:
        note("propagate", str(user.sharding))
        return user.sharding

    for_gspmd = {"infer_sharding_from_operands": infer, "propagate_user_sharding": propagate}
    double.def_partition(
        **{"partition": partition, "sharding_rule": "i j -> i j", **for_gspmd, **functions}
    )
    return double


def partitioned(program: Callable[[Callable[..., None], Any], Any], x: Any) -> Case:
    """Returns a case that tells a program's result, and which functions were called with what."""

    def run() -> Any:
        seen: Seen = []
        result = jax.block_until_ready(
            jax.jit(lambda x: program(lambda *told: seen.append(told), x))(x)
        )
        specs = [str(getattr(r.sharding, "spec", "")) for r in jax.tree.leaves(result)]
        return result, specs, seen

    return run


@compared
def compile_time_partitioning(devices: Devices) -> Told:  # noqa: C901 - many small programs
    whole = mesh(devices)

    def one(note: Any, x: Any) -> Any:
        return doubling(note)(x + 1) - 1

    def twice(note: Any, x: Any) -> Any:
        double = doubling(note)
        return double(double(x)) + double(x.T).T

    def in_a_loop(note: Any, x: Any) -> Any:
        double = doubling(note)
        return jax.lax.scan(lambda x, _: (double(x) / 2 + 1, None), x, None, length=4)[0]

    def of_two_results(note: Any, x: Any) -> Any:
        @custom_partitioning
        def sums(x: Any, y: Any) -> Any:
            return (x + y).sum(0), (x * y).astype(jnp.bfloat16)

        def partition(mesh: Mesh, args: Any, results: Any) -> Any:
            note([str(r.sharding) for r in (*args, *results)])

            def lower(x: Any, y: Any) -> Any:
                return jax.lax.psum((x + y).sum(0), "a"), (x * y).astype(jnp.bfloat16)

            split = NamedSharding(mesh, P("a", None))
            return mesh, lower, (NamedSharding(mesh, P()), split), (split, split)

        def infer(mesh: Mesh, _args: Any, _results: Any) -> Any:
            return NamedSharding(mesh, P()), NamedSharding(mesh, P("a", None))

        sums.def_partition(
            partition, infer_sharding_from_operands=infer, sharding_rule="i j, i j -> j, i j"
        )
        return sums(x, x + 1)

    def of_static_arguments(note: Any, x: Any) -> Any:
        scale = custom_partitioning(lambda factor, x: x * factor, static_argnums=(0,))

        def partition(factor: int, mesh: Mesh, args: Any, result: Any) -> Any:
            note(factor, str(args[0].sharding))
            return mesh, lambda x: x * factor, result.sharding, (args[0].sharding,)

        def infer(factor: int, _mesh: Mesh, args: Any, _result: Any) -> Any:
            note(factor)
            return args[0].sharding

        scale.def_partition(
            partition,
            infer_sharding_from_operands=infer,
            sharding_rule=lambda factor, *_: "i j -> i j" if factor else "",
        )
        return scale(3, x)

    def with_large_constants(note: Any, x: Any) -> Any:
        table = np.arange(1 << 19, dtype=F32)  # two pieces of the protocol

        def partition(mesh: Mesh, args: Any, result: Any) -> Any:
            return mesh, lambda x: x + table[:1] + table[-1], result.sharding, (args[0].sharding,)

        del note
        return doubling(partition=partition)(x)

    programs = {
        "one": one,
        "twice": twice,
        "loop": in_a_loop,
        "two results": of_two_results,
        "static arguments": of_static_arguments,
        "constants": with_large_constants,
    }
    x = split(devices, "a", "b")
    cases = {name: partitioned(program, x) for name, program in programs.items()}
    cases["replicated"] = partitioned(one, split(devices))
    cases["over both axes"] = partitioned(one, split(devices, None, ("b", "a")))
    cases["one device"] = partitioned(one, jax.device_put(np.ones((8, 8), F32), devices[1]))
    cases["in a mesh"] = in_mesh(whole, partitioned(one, split(devices, "b")))
    return tell_all(devices, with_each(cases))


def in_mesh(mesh: Mesh, case: Case) -> Case:
    def run() -> Any:
        with mesh:
            return case()

    return run


def proxied() -> Any:
    jax.devices()  # (Before JAX has made its clients it takes "proxy" for what the proxy has.)
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
        seen.append((threading.current_thread(), jax.config.jax_enable_x64, total))

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
