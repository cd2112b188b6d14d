"""`jax.experimental.colocated_python` through connect(): run where asked for, else refused."""

from __future__ import annotations

import psutil
import pytest

from harness.embedded import embedded, eventually, nothing_left
from harness.processes import is_gone
from harness.programs import program, service

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
error = fails(connection.start, "sidecar:true", "--allow-colocated-python")
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
        eventually(lambda: is_gone(process), "the process to end with its connection")


ON_EXECUTORS = (
    CALLS
    + """
@colocated_python
def leaves_processes(x):
    import os
    code = "import os, time; print(os.getpid(), flush=True); os.close(1); time.sleep(600)"
    reader, writer = os.pipe()
    for _ in range(2):
        if not os.fork():  # and another one, whose parent ends at once
            os.setsid()
            if not os.fork():
                os.dup2(writer, 1)
                os.execv("/usr/bin/env", ["env", "python3", "-c", code])
            os._exit(0)
        os.wait()
    os.close(writer)
    with os.fdopen(reader) as lines:
        left = [int(line) for line in lines]
    return jax.device_put(np.int32([os.getppid(), os.getpid(), *left]), x.sharding)

with isc_pathways.connect(proxy_options=["sidecar:true"], **ONE):
    x = numbers()
    assert double(x).tolist() == [2.0 * n for n in range(8)]
    say("ran", processes=leaves_processes(x).tolist())
    wait_for("end")
say("done")
"""
)


@pytest.mark.race
def test_on_executors_functions_and_what_they_leave_end_with_the_grant() -> None:
    flags = ("--engine=distributed", "--colocated_python=true")
    with embedded(1, 0, *flags), program(ON_EXECUTORS) as running:
        executor, process, ended, left = running.expect("ran")["processes"]
        assert psutil.Process(process).ppid() == executor
        assert "servers.executor" in " ".join(psutil.Process(executor).cmdline())
        worker = psutil.Process(executor).parent()
        # Their own parents have ended; the worker has adopted them.
        assert [psutil.Process(each).parent() for each in (ended, left)] == [worker] * 2
        psutil.Process(ended).kill()
        eventually(lambda: not psutil.pid_exists(ended), "an orphan that has ended to be reaped")
        running.tell("end")
        running.expect("done")
        assert running.wait() == 0, running.stderr
        eventually(lambda: not any(map(psutil.pid_exists, (executor, process, left))), "their ends")
        assert worker is not None
        assert worker.is_running()


ON_TWO_HOSTS = (
    CALLS
    + """
@colocated_python
def parents(x):
    import os
    return jax.device_put(np.int32([os.getppid()]), x.sharding)

with isc_pathways.connect(
    proxy_options=["sidecar:true"], expected_tpu_instances={"tpuv6e:2x4": 1}
):
    cpus = colocated_cpu_devices(jax.devices())
    mesh = jax.sharding.Mesh(np.array(cpus), ("x",))
    numbers = np.arange(16, dtype="float32")
    x = jax.device_put(numbers, jax.NamedSharding(mesh, jax.P("x")))
    for shard in x.addressable_shards:
        assert shard.data.tolist() == [2.0 * (shard.device.id - 8), 2.0 * (shard.device.id - 8) + 1]
    assert jax.jit(lambda x: (x + 1).sum())(x) == 136
    assert double(x).tolist() == (2 * numbers).tolist()
    chips = jax.device_put(double(x), jax.NamedSharding(jax.make_mesh((8,), ("x",)), jax.P("x")))
    assert jax.jit(lambda x: x.sum())(chips) == 240
    of = [int(parents(jax.device_put(np.float32([1]), cpus[i]))[0]) for i in (0, 3, 4, 7)]
    @colocated_python
    def proxys(x):
        import os
        return x * 0 + os.getppid()
    say("ran", executors=of, proxy=int(proxys(jax.device_put(np.zeros(8, "int32"), x.sharding))[0]))
    wait_for("end")
say("done")
"""
)


def test_each_host_runs_functions_of_its_devices_and_the_proxy_those_of_several() -> None:
    flags = ["--engine", "distributed", "--allow-colocated-python"]
    with service("tpuv6e:2x4=1", 0, flags), program(ON_TWO_HOSTS) as running:
        found = running.expect("ran")
        first, _, second, _ = executors = found["executors"]
        assert executors == [first, first, second, second]
        assert first != second
        for pid in (first, second):
            assert "servers.executor" in " ".join(psutil.Process(pid).cmdline())
        assert "servers.proxy" in " ".join(psutil.Process(found["proxy"]).cmdline())
        running.tell("end")
        running.expect("done")
        assert running.wait() == 0, running.stderr


def test_executors_refuse_it_before_anything_starts() -> None:
    with embedded(1, 0, "--engine=distributed"), program(REFUSED) as running:
        running.expect("done")
        assert running.wait() == 0, running.stderr
