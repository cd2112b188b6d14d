"""Programs that a callback runs: on devices of the proxy, and on those of the local CPU."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental import io_callback
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from harness.jax_checks.compared import JAX_RELEASE

NESTED_CHECKS: dict[str, Callable[[], None]] = {}
F32 = np.float32
SCALAR = jax.ShapeDtypeStruct((), F32)
Function = Callable[[Any], Any]


def check(function: Callable[[], None]) -> Callable[[], None]:
    NESTED_CHECKS[function.__name__] = function
    return function


CALLS: dict[str, Callable[[Function, Any], Any]] = {
    "pure": lambda function, x: jax.pure_callback(function, SCALAR, x),
    "io": lambda function, x: io_callback(function, SCALAR, x),
    "ordered io": lambda function, x: io_callback(function, SCALAR, x, ordered=True),
}


def split(devices: Any) -> Any:
    return NamedSharding(Mesh(np.array(devices), ("d",)), P("d"))


def total(place: Any, value: Any) -> float:
    """Runs a program on a device, or over those of a sharding; returns 28 times the value."""
    x = jax.device_put(np.arange(8, dtype=F32) * value, place)
    return float(jax.jit(lambda x: x.sum())(x))


def nested(place: Any, value: Any) -> np.ndarray:
    return np.asarray(total(place, np.asarray(value)), F32)


def on_one_device(call: Function, x: Any) -> Any:
    """Calls on the first device, with collectives before and after."""
    return jax.jit(lambda x: (x * call(x.sum() / 28)).sum())(x)


def on_each_device(call: Function, x: Any) -> Any:
    """Calls on each device, which waits for the others afterwards."""

    def part(x: Any) -> Any:
        return jax.lax.psum((x * call(x[0] * 0 + 1)).sum(), "d")

    return jax.jit(
        jax.shard_map(part, mesh=x.sharding.mesh, in_specs=P("d"), out_specs=P(), check_vma=False)
    )(x)


@check
def a_callback_of_a_program_over_several_devices_runs_other_programs() -> None:
    """On one device, on the local CPU, and over another slice or another set of slices."""
    devices = jax.devices("proxy")
    x = jax.device_put(np.arange(8, dtype=F32), split(devices[:4]))
    places = {
        "the first": devices[0],
        "the last": devices[3],
        "another slice": devices[5],
        "the local CPU": jax.devices("cpu")[0],
        "all of another slice": split(devices[4:8]),
        "both slices": split(devices),
    }
    for where, kind, place in itertools.product((on_one_device, on_each_device), CALLS, places):
        if (where, kind) == (on_one_device, "ordered io") and JAX_RELEASE < (0, 10, 2):
            continue  # XLA refuses what JAX lowers it to, on the CPU as well
        function = functools.partial(nested, places[place])
        got = where(functools.partial(CALLS[kind], function), x)
        assert float(got) == 28 * 28, (where.__name__, kind, place, got)


@check
def a_callback_runs_programs_over_several_devices_of_the_local_cpu() -> None:
    x = jax.device_put(np.arange(8, dtype=F32), split(jax.devices("proxy")[:4]))
    function = functools.partial(nested, split(jax.devices("cpu")))
    for where in (on_one_device, on_each_device):
        assert float(where(functools.partial(CALLS["pure"], function), x)) == 28 * 28


@check
def a_callback_without_results_runs_programs_over_the_same_devices() -> None:
    """XLA does not wait for it. (On the CPU it does, and the two wait for each other.)"""
    devices = jax.devices("proxy")
    x = jax.device_put(np.arange(8, dtype=F32), split(devices[:4]))
    for where, calls in ((on_one_device, 1), (on_each_device, 4)):
        for place in (split(devices[:4]), split(devices[2:4]), split(devices)):
            seen: list[float] = []

            def note(value: Any, place: Any = place, seen: list[float] = seen) -> None:
                seen.append(total(place, np.asarray(value)))

            def call(value: Any, note: Any = note) -> Any:
                jax.debug.callback(note, value)
                return value

            assert float(where(call, x)) == 28
            jax.effects_barrier()
            assert seen == [28.0] * calls, (where.__name__, place)


@check
def a_callback_of_a_program_on_one_device_runs_programs_over_all() -> None:
    devices = jax.devices("proxy")
    for kind, call in CALLS.items():
        function = functools.partial(nested, split(devices))
        x = jax.device_put(F32(1), devices[1])
        got = jax.jit(lambda x, call=call, function=function: call(function, x) + x)(x)
        assert float(got) == 29, kind


@check
def callbacks_run_programs_that_call_back() -> None:
    """Four deep, each on one device: of them all, over several, or one twice."""
    devices = jax.devices("proxy")
    order = [devices[0], devices[0], devices[4], devices[1]]

    def deeper(depth: int, value: Any) -> np.ndarray:
        if depth == len(order):
            return np.asarray(value, F32)
        x = jax.device_put(np.asarray(value, F32), order[depth])
        function = functools.partial(deeper, depth + 1)
        return np.asarray(jax.jit(lambda x: CALLS["pure"](function, x) + 1)(x))

    function = functools.partial(deeper, 0)
    x = jax.device_put(np.arange(8, dtype=F32), split(devices[:4]))
    got = on_one_device(functools.partial(CALLS["pure"], function), x)
    assert float(got) == 28 * 5
