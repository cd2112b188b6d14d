"""An honest client on a machine that is short of processor time: nothing of it is given up."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.deadlines import deadline
from harness.embedded import embedded
from harness.programs import pids, program

pytestmark = [pytest.mark.long, pytest.mark.heavy, pytest.mark.race, pytest.mark.real_starts]

ROUNDS, ARRAYS = 3, 300
#: Beside the processors there are.
BUSY = 4

FETCHES = f"""
import numpy as np, jax, jax.numpy as jnp
with isc_pathways.connect(expected_tpu_instances={{"tpuv6e:2x2": 2}}) as connection:
    say("connected")
    wait_for("go")
    work = jax.jit(lambda x: jax.lax.fori_loop(0, 300, lambda _, y: y @ y, x))
    matrices = [jax.device_put(jnp.eye(256), device) for device in connection.devices]
    arrays = [
        jax.device_put(np.full((64, 64), i, np.float32), connection.devices[i % 8])
        for i in range({ARRAYS})
    ]
    failed = []
    for number in range({ROUNDS}):
        # (An array keeps what was fetched of it.)
        moved = jax.block_until_ready([array + number for array in arrays])
        running = [work(matrix) for matrix in matrices]
        for array in moved:
            array.copy_to_host_async()
        for i, array in enumerate(moved):
            try:
                assert (np.asarray(array) == i + number).all()
            except jax.errors.JaxRuntimeError as error:
                failed.append(str(error))
        jax.block_until_ready(running)
    say("done", failed=failed)
"""


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """Runs processes that compute and do nothing else."""
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            process = stack.enter_context(
                subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"])
            )
            stack.callback(process.kill)
        yield


def starve(pid: int) -> None:
    """Gives all threads of a process, and those that they start, the lowest priority."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, int(thread.name), 19)


def test_many_fetches_while_every_device_computes_and_the_machine_is_busy() -> None:
    with embedded(2), program(FETCHES) as client:
        client.expect("connected")
        [proxy] = pids("proxy")
        starve(proxy)
        with busy(BUSY + (os.cpu_count() or 1)):
            client.tell("go")
            # (Where the kernel groups no sessions, the busy processes leave it little.)
            assert client.expect("done", deadline(480.0))["failed"] == []
        assert client.wait() == 0
