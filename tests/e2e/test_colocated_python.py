"""`jax.experimental.colocated_python` through connect(): run where asked for, else refused."""

from __future__ import annotations

from pathlib import Path

from harness.embedded import embedded, eventually, nothing_left
from harness.programs import program

CALLS = """
import numpy as np, jax
from jax.experimental.colocated_python import colocated_cpu_devices, colocated_python
ONE = {"expected_tpu_instances": {"tpuv6e:2x2": 1}}

@colocated_python
def double(x):
    import os
    return jax.tree.map(lambda x: x * 2 + 0 * os.getpid(), x)

@colocated_python
def where(x):
    import os
    return jax.device_put(np.int32([os.getpid()]), x.sharding)

def numbers():
    return jax.device_put(np.arange(8, dtype="float32"), colocated_cpu_devices(jax.devices())[1])

def fails(function, *words):
    try:
        function()
    except Exception as error:
        assert all(word in str(error) for word in words), error
        return error
    raise AssertionError("it succeeded")
"""

SERVED = (
    CALLS
    + """
with isc_pathways.connect(proxy_options=["sidecar:true"], **ONE):
    x = numbers()
    assert double(x).tolist() == [2.0 * n for n in range(8)]
    process = int(where(x)[0])
    assert process != os.getpid()
    chips = jax.jit(lambda x: x + 1)(jax.device_put(double(x), jax.devices()[0]))
    assert chips.tolist() == [2.0 * n + 1 for n in range(8)]
    say("ran", process=process)
# The next connection does not ask for it.
with isc_pathways.connect(**ONE):
    on_chip = jax.device_put(np.ones(8, "float32"), jax.devices()[0])
    known = double.specialize(out_specs_fn=lambda x: x)
    fails(lambda: jax.block_until_ready(known(on_chip)), "'double'", "sidecar:true")
say("done")
"""
)

REFUSED = (
    CALLS
    + """
connection = isc_pathways.connect(proxy_options=["sidecar:true"], **ONE)
error = fails(connection.start, "sidecar:true", "engine distributed")
assert isinstance(error, errors.InvalidRequestError) and error.field == "proxy_options", error
say("done")
"""
)


def test_functions_run_in_a_process_of_the_connection_that_asks_for_it() -> None:
    with embedded(1), program(SERVED) as running:
        process = running.expect("ran")["process"]
        running.expect("done")
        assert running.wait() == 0, running.stderr
        eventually(nothing_left, "all proxies to be gone")
        assert not Path(f"/proc/{process}").exists()


def test_executors_refuse_it_before_anything_starts() -> None:
    with embedded(1, 0, "--engine=distributed"), program(REFUSED) as running:
        running.expect("done")
        assert running.wait() == 0, running.stderr
