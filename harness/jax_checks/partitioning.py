"""Custom partitioning: functions of the client by which XLA splits an operation."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from harness.jax_checks.compared import (
    Case,
    Devices,
    Told,
    compared,
    mesh,
    tell_all,
    under,
)

F32 = np.float32
Seen = list[Any]


@contextlib.contextmanager
def partitioner(kind: str) -> Iterator[None]:
    config: Any = jax.config  # (Which attributes are typed depends on the release.)
    before = config.jax_use_shardy_partitioner
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
    """Returns a case with a program's result, and the calls of its functions."""

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
