"""Functions of `jax.experimental.colocated_python`."""

from __future__ import annotations

import functools
import os
from typing import Any

import jax
import numpy as np
from jax.experimental import colocated_python
from jax.sharding import SingleDeviceSharding

from harness.jax_checks.basics import check, fails, on

VALUES = np.arange(8, dtype=np.float32)


@colocated_python.colocated_python
def double(x: Any) -> Any:
    return x * 2


@colocated_python.colocated_python
def add_pid(x: Any) -> Any:
    return jax.device_put(np.asarray(x) + os.getpid(), x.sharding)


@colocated_python.colocated_python_class
class Doubler:
    def twice(self, x: Any) -> Any:
        return x * 2


@check
def functions_of_colocated_python_are_refused_by_name() -> None:
    known: Any = double.specialize(out_specs_fn=lambda x: x)
    refusal = ("UNIMPLEMENTED", "colocated_python function", "in your own process")
    for where in (SingleDeviceSharding(jax.devices()[1]), on(("slice", "x")), on()):
        x = jax.device_put(VALUES, where)
        fails(functools.partial(double, x), "colocated_python function 'double':", *refusal)
        fails(functools.partial(known, x), "colocated_python function 'double':", *refusal)
        fails(functools.partial(Doubler().twice, x), *refusal)
        np.testing.assert_array_equal(np.asarray(x), VALUES)
    nothing: Any = double.specialize(devices=jax.devices()[:1])
    fails(nothing, *refusal)


@check
def colocated_cpu_devices_are_those_of_this_process() -> None:
    cpus = colocated_python.colocated_cpu_devices(jax.devices())
    assert list(cpus) == jax.devices("cpu")
    here = jax.device_put(VALUES, cpus[3])
    ran = add_pid(here)
    assert ran.devices() == {cpus[3]}
    np.testing.assert_array_equal(np.asarray(ran), VALUES + os.getpid())
