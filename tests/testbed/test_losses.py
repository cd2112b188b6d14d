"""Workers, the head and their pods go, and the tenants' work goes on."""

from __future__ import annotations

import pytest

from harness.layers.thorough import thorough
from harness.testbed.clients import client, deployed, nothing_left
from shared_pathways_service.constants import DISTRIBUTED_ENGINE
from shared_pathways_service.testing.testbed import Namespace

pytestmark = pytest.mark.race

WORK = """
import queue
from harness.deadlines import deadline
events = queue.SimpleQueue()
with connecting(expected_tpu_instances={"tpuv6e:2x2": 2}, on_event=events.put) as connection:
    import jax, jax.numpy as jnp, numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    original = np.arange(8, dtype=np.float32)

    def on(*indices):
        devices = [d for d in jax.devices() if d.slice_index in indices]
        return jax.device_put(original, NamedSharding(Mesh(np.array(devices), "x"), P("x")))

    def fetch(x):
        try:
            return np.asarray(x).tolist()
        except jax.errors.JaxRuntimeError as error:
            return str(error)

    def await_event(kind):
        while (event := events.get(timeout=deadline(80))).kind != kind:
            pass
        return event

    double = jax.jit(lambda x: x * 2)
    kept = [on(0).block_until_ready(), on(1).block_until_ready()]
    placed = [await_event("slice.placed"), await_event("slice.placed")]
    say("running", slices=[event.data["slice_id"] for event in placed],
        sum=fetch(jax.jit(jnp.sum)(on(0, 1))))
"""

LOST = """
    lost = await_event("slice.unplaced").data["virtual_index"]
    # (The proxy hears of it on a stream of its own.)
    while "DATA_LOSS" not in (told := str(fetch(double(kept[lost])))):
        assert told == str((original * 2).tolist()), told
    placed = await_event("slice.placed")
    assert placed.data["virtual_index"] == lost
    while fetch(double(on(lost))) != (original * 2).tolist():
        pass
    say("went on", lost=fetch(kept[lost]), other=fetch(kept[1 - lost]),
        slice_id=placed.data["slice_id"])
"""

STAYS = """
    wait_for("go on")
    say("went on", values=[fetch(double(x)) for x in kept], heard=[
        events.get().kind for _ in range(events.qsize())])
    wait_for("leave")
"""

LATER = """
try:
    connecting(expected_tpu_instances={"tpuv6e:2x2": 1}).start()
except errors.SlicesTaken as error:
    say("taken", free=error.free, holders=len(error.holders))
"""


@pytest.mark.parametrize("engine", ["local", *thorough(DISTRIBUTED_ENGINE)])
def test_a_deleted_worker_is_data_loss_and_its_slice_is_placed_again(
    namespace: Namespace, engine: str
) -> None:
    service = deployed(namespace, 2, spares=1, engine=engine)
    with client(namespace, WORK + LOST) as running:
        told = running.expect("running")
        assert told["sum"] == 28.0
        held = told["slices"]
        [worker] = [
            pod
            for pod in service.pods("worker")
            if f"slice-{pod['metadata']['labels']['jobset.sigs.k8s.io/job-index']}" == held[0]
        ]
        log = namespace.log(worker["metadata"]["name"])
        assert ("was started" in log) == (engine == DISTRIBUTED_ENGINE)
        namespace.delete("pods", worker["metadata"]["name"])
        told = running.expect("went on")
        assert "DATA_LOSS" in told["lost"]
        assert told["other"] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
        assert told["slice_id"] not in held
        assert running.wait() == 0
    nothing_left(namespace)


def test_a_node_that_reboots_is_data_loss_and_its_slice_returns(namespace: Namespace) -> None:
    service = deployed(namespace, 2)
    with client(namespace, WORK + LOST) as running:
        told = running.expect("running")
        held, before = told["slices"], service.pods("worker")
        rebooted, node = before[0]["metadata"]["name"], before[0]["spec"]["nodeName"]
        processes = namespace.processes()[rebooted]
        namespace.testbed.reboot(node)
        told = running.expect("went on")
        assert "DATA_LOSS" in told["lost"]
        assert told["other"] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
        # The same slice, and the same pod in another process.
        assert told["slice_id"] in held
        assert {pod["metadata"]["uid"] for pod in service.pods("worker")} == {
            pod["metadata"]["uid"] for pod in before
        }
        assert namespace.processes()[rebooted] != processes
        assert running.wait() == 0
    nothing_left(namespace)


def test_a_deleted_head_comes_back_and_no_tenant_loses_its_slices(namespace: Namespace) -> None:
    service = deployed(namespace, 2)
    with client(namespace, WORK + STAYS) as running:
        running.expect("running")
        before = service.head["metadata"]
        namespace.delete("pods", before["name"])
        service.wait_for_head(other_than=before["uid"])
        service.wait_until_ready()
        running.tell("go on")
        told = running.expect("went on")
        assert told["values"] == [[2.0 * x for x in range(8)]] * 2
        assert not [kind for kind in told["heard"] if kind == "slice.unplaced"]
        # The new resource manager knows who holds what.
        with client(namespace, LATER) as later:
            assert later.expect("taken") == {
                "say": "taken",
                "free": {"tpuv6e:2x2": 0},
                "holders": 1,
            }
            assert later.wait() == 0
        running.tell("leave")
        assert running.wait() == 0
    nothing_left(namespace)
