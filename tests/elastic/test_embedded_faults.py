"""Faults of a real service, and a manager that goes on through them on a real connection."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from harness.deadlines import wait_until
from harness.embedded import embedded, nothing_left
from harness.programs import DEADLINE_S, Program, program, status
from shared_pathways_service.errors import ServiceNotFound
from shared_pathways_service.testing.faults import EmbeddedSlices

pytestmark = pytest.mark.race

#: Many beats to a deadline: on a machine that has no time for them a healthy worker misses some.
SOON_HUNG = ("--beat_interval_s=0.5", "--hung_after_s=10")

#: Trains on three slices, with one fault after the other. A slice that is down comes back when
#: a step was done without it: nothing hangs on how long things take.
TRAINING = """
from harness.deadlines import deadline
LONG_S = 3000.0
connection = isc_pathways.connect(
    expected_tpu_instances={"tpuv6e:2x2": 3}, queue_timeout=deadline(150),
    on_event=lambda event: hint(event))
hint = lambda event: None
try:
    connection.start()
    import jax, numpy as np
    from shared_pathways_service import elastic
    from shared_pathways_service.testing.faults import Fault, Plan, hang, kill
    from shared_pathways_service.testing.faults import EmbeddedSlices
    from harness.elastic.example_training import dataset, initial_state, options, train_step

    def tell(event):
        told.append({"kind": event.kind, "step": event.step, "slice": event.slice,
                     "reason": event.reason, "at": event.monotonic,
                     "duration_s": event.duration_s, **event.data})

    waiting = [kill(1, down_for=LONG_S), hang(1, for_s=LONG_S),
               Fault("kill the proxy", lambda world: world.kill_proxy())]
    plans, told, used, counts = [], [], {}, {}

    def train(attempt):
        state = attempt.restore(initial_state)
        begun = attempt.progress.step
        if waiting and attempt.slice_count == 3:
            # Late enough for a snapshot to have been published.
            plans.append(Plan(world, waiting.pop(0).at(begun + 6)))
        for batch in attempt.batches(dataset()):
            step = attempt.progress.step
            if attempt.slice_count == 2 and step == begun + 1:
                world.revive(1)
            if attempt.slice_count == 3 and len(plans) == 3 and all(
                    fault.fired for plan in plans for fault in plan.faults) and step == begun + 3:
                break
            plans[-1].step(step, attempt.slices)
            given = jax.device_put(np.asarray(batch, np.float32), attempt.over_batch())
            state, loss = train_step(state, given)
            used[step] = [int(number) for number in batch]
            counts[step] = attempt.slice_count
            attempt.step_done(state, loss)
        return state

    chosen = options(snapshot_period=2, probe_timeout=60.0, poll_interval=0.2, health_every=0,
                     elastic_timeout_seconds=deadline(150))
    with EmbeddedSlices(connection.proxy_job_name) as world, elastic.Manager(
            connection.devices, options=chosen, on_event=tell, console=False,
            reconnect=elastic.reconnect_with(connection)) as manager:
        hint = manager.hear
        state = manager.run(train)
        for plan in plans:
            plan.assert_fired()
    # The same steps without a fault.
    again = jax.jit(initial_state)()
    steps = sorted(step for step in used if step < int(state["count"]))
    for step in steps:
        again, _ = train_step(again, np.asarray(used[step], np.float32))
    say("result", events=told, steps=steps, counts=[counts[step] for step in steps],
        used=[used[step] for step in steps], count=int(state["count"]),
        w=np.asarray(state["w"]).tolist(), again=np.asarray(again["w"]).tolist())
finally:
    connection.close()
say("left")
"""


def test_a_manager_goes_on_through_each_kind_of_fault() -> None:
    with embedded(3, 0, *SOON_HUNG):
        with program(TRAINING) as running:
            result = running.expect("result", 2 * DEADLINE_S)
            running.expect("left")
            assert running.wait() == 0
        wait_until("the slices to be free", nothing_left)
    runs_on = [count for count, _ in itertools.groupby(result["counts"])]
    # The proxy's end takes no slice away: 3, a slice killed, 3, a slice hung, 3, the proxy, 3.
    assert runs_on == [3, 2, 3, 2, 3]
    assert result["count"] == len(result["steps"])
    assert result["steps"] == list(range(result["count"]))
    assert result["w"] == pytest.approx(result["again"], rel=1e-4, abs=1e-5)
    # Four steps take an epoch of 96 examples.
    examples = list(itertools.chain(*result["used"]))
    for begin in range(0, len(examples) - 95, 96):
        assert sorted(examples[begin : begin + 96]) == list(range(96))

    def of(kind: str) -> list[dict[str, Any]]:
        return [event for event in result["events"] if event["kind"] == kind]

    assert [e["verdict"] for e in of("elastic.error")] == ["slice", "slice", "proxy"]
    assert [e["decision"] for e in of("elastic.error")] == ["retry"] * 3
    killed, hung, _ = of("elastic.error")
    assert killed["slices"] == hung["slices"] == "1"
    assert killed["reason"].startswith("DATA_LOSS: virtual slice 1 ")
    assert "is hung" in hung["reason"]
    assert [e["origin"] for e in of("elastic.restored")] == [
        "initial",
        "snapshot",
        "live",
        "snapshot",
        "live",
        "snapshot",
    ]
    assert [e["cause"] for e in of("elastic.retry")] == [
        "slice_down",
        "scale_up",
        "slice_down",
        "scale_up",
        "proxy",
    ]
    assert len(of("elastic.reconnected")) == 1
    assert of("elastic.run.done")[0]["outcome"] == "done"


HOLDER = """
import jax.numpy as jnp
connection = isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x2": 1})
try:
    with connection:
        say("holds", name=connection.proxy_job_name)
        wait_for("leave")
        float(jnp.zeros(()) + 1)
except errors.ProxyFailed as error:
    say("failed", message=str(error))
"""


def test_slices_are_harmed_by_their_tenants_own_numbers() -> None:
    with pytest.raises(ServiceNotFound, match="you have no running service"):
        EmbeddedSlices("isc-proxy-a")
    with embedded(1, 1), program(HOLDER) as running:
        name = running.expect("holds")["name"]
        with EmbeddedSlices(name) as world:
            first = world.physical(0)
            with pytest.raises(ServiceNotFound, match="no slice 1"):
                world.kill(1, 0.0)
            world.look([0])
            world.kill(0, 3600.0)  # (the longest)
            second = wait_until("the spare", lambda: (now := world.physical(0)) != first and now)
            assert {s["id"]: s["state"] for s in status()["slices"]}[first] == "lost"
            world.kill(0, 3600.0)  # (the longest)

            def unplaced() -> bool:
                [tenant] = status()["tenants"]
                return tenant["slices"][0]["slice_id"] is None

            wait_until("the spare's end", unplaced)
            assert world.physical(0) == second, "where it was"
            world.revive(0)
            wait_until("the spare again", lambda: not unplaced())
            world.kill_proxy()
            assert "SIGKILL" in _failure(running)
            with pytest.raises(ServiceNotFound, match="runs no more"):
                world.kill_proxy()
        # Who is done lets go.
        assert status(wait_s=DEADLINE_S)


def _failure(running: Program) -> str:
    running.tell("leave")
    return str(running.expect("failed")["message"])
