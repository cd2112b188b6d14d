"""Programs over several hosts on the embedded service, while executors and hosts die."""

from __future__ import annotations

import json
import os
import signal

import psutil
import pytest

from harness.deadlines import wait_until
from harness.programs import pids, program, service, sps, status

pytestmark = pytest.mark.race

#: A client on two slices of two hosts each. It says when it is on its slices, and stays connected.
CLIENT = """
import queue, threading
from harness.deadlines import deadline
heard = queue.SimpleQueue()
with isc_pathways.connect(
    expected_tpu_instances={"tpuv6e:2x4": 2}, on_event=heard.put
) as connection:
    import jax, jax.numpy as jnp, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    from orbax.checkpoint._src.multihost.pathways import group_devices_by_worker

    slices = [[d for d in jax.devices() if d.slice_index == index] for index in range(2)]
    # As libraries that save checkpoints on hosts see them.
    by_host = group_devices_by_worker(jax.devices())
    assert {key: [d.id for d in found] for key, found in by_host.items()} == {
        (0, 0): [0, 1, 2, 3], (1, 0): [4, 5, 6, 7],
        (0, 1): [8, 9, 10, 11], (1, 1): [12, 13, 14, 15],
    }
    both = slices[0] + slices[1]
    original = np.arange(32, dtype=np.float32).reshape(16, 2)
    # Each device has a part, so the sum is a collective of all their hosts.
    total = jax.jit(lambda x: (x * x).sum())
    triple = jax.jit(lambda x: x * 3)
    expected = float((original * original).sum())

    def on(devices, x):
        # Is there when it returns: a loss after that loses it.
        sharding = NamedSharding(Mesh(np.array(devices), ("chip",)), P("chip"))
        return jax.device_put(x, sharding).block_until_ready()

    def sum_of(x):
        return float(np.asarray(total(x)))

    def await_event(kind, index):
        while True:
            event = heard.get(timeout=deadline(150))
            if event.kind == kind and event.data.get("virtual_index") == index:
                return event

    def until_right(devices):
        limit = time.monotonic() + deadline(120)
        while True:
            try:
                return sum_of(on(devices, original))
            except jax.errors.JaxRuntimeError as error:
                assert "DATA_LOSS" in str(error), error
                assert time.monotonic() < limit, error
                time.sleep(0.05)

    def error_of(x):
        try:
            return np.asarray(triple(x)).tolist()
        except jax.errors.JaxRuntimeError as error:
            return str(error)

    def keep_failing(devices):
        # It says why its program failed, which its caller waits for.
        failed = queue.SimpleQueue()

        def run(x):
            try:
                while True:
                    sum_of(x)
            except jax.errors.JaxRuntimeError as error:
                failed.put(str(error))

        threading.Thread(target=run, args=(on(devices, original),)).start()
        return failed

    lost, kept = on(slices[0], original), on(slices[1], original)
    failed = keep_failing(slices[0])
    say("computed", sums=[sum_of(lost), sum_of(kept), sum_of(on(both, original))],
        expected=expected)
    for number in range(LOSSES):
        unplaced = await_event("slice.unplaced", 0)
        placed = await_event("slice.placed", 0)
        sums = [until_right(slices[0]), sum_of(kept), until_right(both)]
        same = (np.asarray(triple(kept)) == original * 3).all()
        say("back", sums=sums, kept=bool(same), lost=error_of(lost), reason=unplaced.reason,
            failed=failed.get(timeout=deadline(150)), slice_id=placed.data["slice_id"])
        if number + 1 < LOSSES:
            lost, failed = on(slices[0], original), keep_failing(slices[0])
            say("again")
say("left")
"""


def client(*, losses: int) -> str:
    return CLIENT.replace("LOSSES", str(losses))


def _executors(slice_id: str) -> list[int]:
    """The executors of a slice's hosts, which all serve."""
    found = [one for one in status()["executors"] if one["slice"] == slice_id]
    assert all(one["state"] == "serving" for one in found), found
    return [one["pid"] for one in found]


def _held_by(virtual_index: int) -> str:
    [found] = [s["id"] for s in status()["slices"] if s.get("virtual_index") == virtual_index]
    return str(found)


def test_a_lost_executor_and_a_lost_host_are_replaced_without_a_new_connection() -> None:
    arguments = ("--engine", "distributed")
    with (
        service("tpuv6e:2x4=2", spares=1, arguments=arguments),
        program(client(losses=2)) as running,
    ):
        said = running.expect("computed")
        expected = said["expected"]
        assert said["sums"] == [expected] * 3

        # An executor dies: the spare takes the place of its slice, with new executors.
        slice_id = _held_by(0)
        first = _executors(slice_id)
        assert len(first) == 2
        others = _executors(_held_by(1))
        os.kill(first[1], signal.SIGKILL)
        said = running.expect("back")
        assert said["sums"] == [expected] * 3
        assert said["kept"], "an array of the other slice has changed"
        assert "DATA_LOSS" in str(said["lost"])
        cause = f"the executor of host 1 of {slice_id} was killed by signal 9 (out of memory?)"
        assert said["reason"] == cause
        assert cause in str(said["lost"])
        assert cause in said["failed"], "the program that waited has another reason"
        assert said["slice_id"] != slice_id, "the slice that failed, though another one was free"
        assert _executors(_held_by(1)) == others

        # A host dies, and its executor with it: a spare takes the place of its whole slice.
        running.expect("again")
        lost = _held_by(0)
        before = _executors(lost)
        os.kill(pids("worker", slice=lost)[0], signal.SIGKILL)
        said = running.expect("back")
        assert said["sums"] == [expected] * 3
        assert said["kept"], "an array of the other slice has changed"
        assert "DATA_LOSS" in str(said["lost"])
        assert said["reason"] in said["failed"]
        assert said["slice_id"] != lost
        wait_until(
            "the lost slice's executors to end",
            lambda: not any(psutil.pid_exists(pid) for pid in [*first, *before]),
        )

        running.expect("left")
        assert running.wait() == 0
        wait_until("all executors to end", lambda: not status()["executors"])


@pytest.mark.thorough
def test_a_slice_is_replaced_if_an_executor_does_not_answer() -> None:
    arguments = ("--engine", "distributed")
    with (
        service("tpuv6e:2x4=2", spares=1, arguments=arguments),
        program(client(losses=1)) as running,
    ):
        expected = running.expect("computed")["expected"]
        lost = _held_by(0)
        before = _executors(lost)
        # Its process is there, and its worker sees nothing wrong with it.
        os.kill(before[1], signal.SIGSTOP)
        said = running.expect("back")
        assert said["sums"] == [expected] * 3
        assert said["kept"], "an array of the other slice has changed"
        assert "DATA_LOSS" in str(said["lost"])
        assert f"cannot reach the executor on host 1 of {lost}: " in said["reason"]
        assert said["slice_id"] != lost, "the slice that failed, though another one was free"
        [event] = sps("events", "--kind=executor.lost", "--json").stdout.splitlines()
        assert json.loads(event)["reason"] == said["reason"]
        # (A killed process ends although it is stopped.)
        wait_until(
            "the lost slice's executors to end",
            lambda: not any(psutil.pid_exists(pid) for pid in before),
        )
        running.expect("left")
        assert running.wait() == 0
        wait_until("all executors to end", lambda: not status()["executors"])


#: As MaxText feeds a step: its elastic_utils counts the devices of a host by `task_id`, and
#: multihost_dataloading loads so many rows and cuts them for the local devices. One process feeds
#: all devices, so they are of one host for it; their real hosts have equal parts.
FEEDS = """
from collections import Counter
with isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x4": 2}):
    import jax, jax.numpy as jnp, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

    per_device_rows = 3
    mesh = Mesh(np.array(jax.devices()).reshape(2, 8), ("slice", "chip"))
    devices_per_host = next(iter(Counter(d.task_id for d in jax.devices()).values()))
    rows = per_device_rows * devices_per_host
    loaded = np.arange(rows * 2, dtype=np.float32).reshape(rows, 2)
    pieces = jax.device_put(np.split(loaded, len(mesh.local_devices)), mesh.local_devices)
    batch = jax.make_array_from_single_device_arrays(
        (jax.process_count() * rows, 2), NamedSharding(mesh, P(mesh.axis_names)), pieces
    )
    hosts = Counter()
    for shard in batch.addressable_shards:
        hosts[shard.device.slice_index, shard.device.virtual_task_index] += len(shard.data)
    say(
        "fed",
        counted=[devices_per_host, jax.process_count(), jax.local_device_count()],
        rows_of_hosts=sorted(hosts.values()),
        hosts=sorted(hosts),
        is_whole=bool((np.asarray(batch) == loaded).all()),
        total=float(jax.jit(lambda x: x.sum())(batch)),
    )
say("left")
"""


def test_a_batch_as_maxtext_forms_it_is_whole_and_equal_on_each_host() -> None:
    arguments = ("--engine", "distributed")
    with service("tpuv6e:2x4=2", spares=0, arguments=arguments), program(FEEDS) as running:
        said = running.expect("fed")
        devices, rows = 16, 48
        assert said["counted"] == [devices, 1, devices]
        assert said["hosts"] == [[0, 0], [0, 1], [1, 0], [1, 1]]
        assert said["rows_of_hosts"] == [rows // 4] * 4
        assert said["is_whole"]
        assert said["total"] == sum(range(rows * 2))
        running.expect("left")
