"""Functions of `jax.experimental.colocated_python` on a proxy that runs them.

There are two slices of four devices. Files tell this process what the functions have done.
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.colocated_python import (
    colocated_cpu_devices,
    colocated_python,
    colocated_python_class,
)
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from harness.jax_checks.basics import fails, mesh
from harness.jax_checks.compared import JAX_RELEASE

SERVED: dict[str, Callable[[], None]] = {}
VALUES = np.arange(8, dtype=np.float32)


def served(function: Callable[[], None]) -> Callable[[], None]:
    SERVED[function.__name__] = function
    return function


def known(function: Callable[..., Any]) -> Any:
    """Returns a function whose results are like its first argument."""
    return colocated_python(function).specialize(out_specs_fn=lambda x, *_: x)


def cpu(index: int = 0) -> jax.Device:
    found: jax.Device = colocated_cpu_devices(jax.devices())[index]
    return found


def cpus() -> Mesh:
    found: Mesh = colocated_cpu_devices(mesh())
    return found


def put(values: Any = VALUES, where: Any = None) -> Any:
    return jax.device_put(values, where or cpu())


@served
def chips_have_cpu_devices_beside_them() -> None:
    found = colocated_cpu_devices(jax.devices())
    assert [d.id for d in found] == list(range(8, 16))
    assert {d.device_kind for d in found} == {"cpu"}
    for chip, beside in zip(jax.devices(), found, strict=True):
        assert (beside.slice_index, tuple(beside.coords)) == (chip.slice_index, tuple(chip.coords))
    assert len(jax.devices()) == len(jax.local_devices()) == 8
    assert cpus().axis_names == ("slice", "x")
    np.testing.assert_array_equal(jax.jit(lambda x: x + 1)(put()), VALUES + 1)


@served
def functions_run_in_another_process() -> None:
    @colocated_python
    def pid(x: Any) -> Any:
        return jax.device_put(np.full(x.shape, os.getpid()).astype(x.dtype), x.sharding)

    pids = {int(pid(put(np.zeros(1, np.int32)))[0]) for _ in range(3)}
    assert len(pids) == 1
    assert os.getpid() not in pids
    has_own = known(lambda x: x + sum(name.startswith("SPS_") for name in os.environ))
    np.testing.assert_array_equal(has_own(put()), VALUES)


@served
def arrays_of_any_sharding() -> None:
    @colocated_python
    def double(x: Any) -> Any:
        return x * 2

    one = Mesh(cpus().devices[1], ("x",))
    places = [
        SingleDeviceSharding(cpu(5)),
        SingleDeviceSharding(jax.devices()[2]),
        *(NamedSharding(cpus(), P(*spec)) for spec in ((), ("x",), (("slice", "x"),))),
        NamedSharding(one, P("x")),
        NamedSharding(mesh(), P(("slice", "x"))),
    ]
    for place in places:
        x = put(VALUES, place)
        for _ in range(3):  # JAX asks the first call for the types of its results
            # (Types of results cannot name devices that are not CPUs.)
            on_chips = place.device_set <= set(jax.devices())
            y = known(lambda x: x * 2)(x) if on_chips else double(x)
            assert y.sharding == x.sharding
            np.testing.assert_array_equal(y, 2 * VALUES)
    back = jax.device_put(double(put(VALUES, places[4])), NamedSharding(mesh(), P(("slice", "x"))))
    np.testing.assert_array_equal(jax.jit(lambda x: x + 1)(back), 2 * VALUES + 1)


@served
def arrays_of_any_type() -> None:
    same = colocated_python(lambda x: x)
    types = ["bool", "int8", "uint32", "float16", "bfloat16", "float8_e4m3fn", "int4", "complex64"]
    for name in types:
        values = np.arange(4).astype(jnp.dtype(name))
        result = same(put(values))
        assert result.dtype == values.dtype
        np.testing.assert_array_equal(np.asarray(result), values)
    with jax.enable_x64(True):
        wide = put(np.array([2.0**60 + 2**10, 1e-300]))
        np.testing.assert_array_equal(known(lambda x: x * 1.0)(wide), np.asarray(wide))
    for empty in (np.float32(3), np.zeros((0, 3), np.float32)):
        np.testing.assert_array_equal(same(put(empty)), empty)
    if JAX_RELEASE < (0, 10):
        return  # its client cannot send keys to such functions
    keys = jax.device_put(jax.random.key(7), cpu())
    assert jax.random.key_data(same(keys)).tolist() == jax.random.key_data(keys).tolist()


@served
def trees_of_arguments_and_results() -> None:
    @colocated_python
    def parts(pair: Any, *, scale: Any) -> Any:
        return {"sum": pair[0] + pair[1], "rest": [pair[0] * scale, pair[1].astype("int32")]}

    for _ in range(2):
        made = parts((put(), put(VALUES + 1)), scale=put(np.float32(3)))
        np.testing.assert_array_equal(made["sum"], 2 * VALUES + 1)
        np.testing.assert_array_equal(made["rest"][0], 3 * VALUES)
        np.testing.assert_array_equal(made["rest"][1], VALUES.astype(np.int32) + 1)
    nothing: Any = colocated_python(lambda: ()).specialize(devices=[cpu()])
    assert nothing() == ()
    place = put().sharding
    made_there = colocated_python(lambda: jax.device_put(np.float32(5), place))
    assert float(made_there.specialize(devices=[cpu()])()) == 5


@served
def programs_run_while_a_function_waits() -> None:
    with tempfile.TemporaryDirectory() as directory:
        go = f"{directory}/go"
        os.mkfifo(go)

        def wait(x: Any) -> Any:
            return x + len(Path(go).read_text())

        waiting = known(wait)(put())
        chip = jax.jit(lambda x: x + 1)(jax.device_put(VALUES, jax.devices()[0]))
        beside = jax.jit(lambda x: x + 2)(put())
        np.testing.assert_array_equal(chip, VALUES + 1)
        np.testing.assert_array_equal(beside, VALUES + 2)
        Path(go).write_text("12345")
        np.testing.assert_array_equal(waiting, VALUES + 5)


@served
def objects_keep_their_state() -> None:
    @colocated_python_class
    class Counter:
        def __init__(self, start: int) -> None:
            self.count = start

        def add(self, x: Any) -> Any:
            self.count += 1
            return x + self.count

    first: Any = Counter(10)
    second: Any = Counter(20)
    for number in range(1, 5):
        np.testing.assert_array_equal(first.add(put()), VALUES + 10 + number)
        np.testing.assert_array_equal(second.add(put()), VALUES + 20 + number)


@served
def errors_name_the_function() -> None:
    def refuse(x: Any) -> Any:
        raise ValueError(f"no {len(x)} values")

    text = ("ABORTED: colocated_python function 'refuse': ValueError: no 8 values",)
    fails(lambda: colocated_python(refuse)(put()), *text)
    failed = known(refuse)(put())
    fails(lambda: np.asarray(failed), *text)
    fails(lambda: jax.jit(lambda x: x + 1)(failed), *text)
    fails(lambda: known(lambda x: x)(failed), *text)
    fails(lambda: known(lambda x: x[:4])(put()), "float32[4] instead of float32[8]")
    fails(lambda: known(np.asarray)(put()), "returned ndarray, not a jax.Array")
    fails(lambda: known(lambda x: (x, x))(put()), "returned 2 arrays instead of 1")
    other = put(VALUES, cpu(1)).sharding
    fails(lambda: known(lambda x: jax.device_put(x, other))(put()), "on devices [9], not [8]")
    np.testing.assert_array_equal(known(lambda x: x + 1)(put()), VALUES + 1)


@served
def a_process_that_ends_is_replaced() -> None:
    fails(lambda: known(lambda _: os._exit(3))(put()), "has ended with code 3")
    np.testing.assert_array_equal(known(lambda x: x + 1)(put()), VALUES + 1)
    killed = known(lambda _: os.kill(os.getpid(), signal.SIGSEGV))
    fails(lambda: killed(put()), "has ended by signal 11")
    np.testing.assert_array_equal(known(lambda x: x + 1)(put()), VALUES + 1)


@served
def strings_are_not_arrays_of_users() -> None:
    text = np.array("text", np.dtypes.StringDType())
    fails(lambda: jax.device_put(text, cpu()), "arrays of type KIND_STRING are not supported")
