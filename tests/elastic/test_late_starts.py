"""Training on executors that start later than a slice has time to answer."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from harness.deadlines import wait_until
from harness.embedded import embedded, nothing_left
from harness.programs import program, status
from tests.elastic.held_processes import HeldProcesses

pytestmark = pytest.mark.race

#: Trains on two slices, and reports each wait for slices; then loses an executor.
TRAINING = """
from shared_pathways_service import elastic
from shared_pathways_service.elastic.health.probes import add_one_everywhere
from tests.elastic.gate import held_up, patience

def wait_until(is_so):
    while not is_so():
        time.sleep(0.01)

with isc_pathways.connect(expected_tpu_instances={"tpuv6e:2x2": 2}) as connection:
    import jax.numpy as jnp
    events = []
    say("connected", starting=sorted(connection.status().starting))

    def hear(event):
        events.append((event.kind, event.slice, event.reason))
        print(events[-1], file=sys.stderr)
        if event.kind == "elastic.wait.started":
            say("waits", reason=event.reason)

    def probe(devices):
        with held_up(lambda: devices[0].slice_index in connection.status().starting):
            add_one_everywhere(devices)

    def train(attempt):
        state = attempt.restore({"x": jnp.zeros(4)})
        while attempt.progress.step < 10:
            if attempt.progress.step == 5 and attempt.number == 1:
                # (Slices can answer before the service's events are there, and fail as well.)
                wait_until(lambda: not connection.status().starting)
                say("trains")
                wait_for("killed")
                wait_until(lambda: connection.status().starting)
            state = {"x": state["x"] + attempt.slice_count}
            attempt.step_done(state, state["x"][0])
        return float(state["x"][0])

    options = elastic.Options(
        probe_timeout=4.0, poll_interval=0.2, health_timeout=1.0, health_every=1,
        snapshot_period=1, flap_limit=100,
    )
    with patience("sps-elastic-probe"), elastic.Manager(
            options=options, on_event=hear, console=False, probe=probe,
            reconnect=elastic.reconnect_with(connection)) as manager:
        say("result", x=manager.run(train), events=events)
say("left")
"""


def test_slices_whose_executors_start_late_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executors = HeldProcesses("shared_pathways_service.servers.executor", tmp_path, monkeypatch)
    executors.hold()
    with embedded(2, 0, "--engine=distributed"):
        with program(TRAINING) as running:
            assert running.expect("connected")["starting"] == [0, 1]
            assert running.expect("waits")["reason"] == (
                "0 of 2 needed slices answer; slices 0, 1 start: their executors do not serve yet"
            )
            executors.let_go()
            running.expect("trains")

            # Its replacement is on the same host, and starts late as well.
            executors.hold()
            told = status()
            [slice_id] = [one["id"] for one in told["slices"] if one["virtual_index"] == 1]
            [pid] = [one["pid"] for one in told["executors"] if one["slice"] == slice_id]
            os.kill(pid, signal.SIGKILL)
            running.tell("killed")
            assert running.expect("waits")["reason"] == (
                "1 of 2 needed slices answer; slice 1 starts: its executors do not serve yet"
            )
            executors.let_go()
            result = running.expect("result")
            running.expect("left")
            assert running.wait() == 0
        wait_until("the slices to be free", nothing_left)
    assert result["x"] == 20.0
    kinds = [kind for kind, _, _ in result["events"]]
    assert "slice.down" not in kinds
    assert "elastic.reconnected" not in kinds
    assert kinds.count("elastic.attempt.started") == 2
    assert kinds.count("elastic.wait.started") == 2
    awaited = [lost for kind, lost, _ in result["events"] if kind == "slice.awaited"]
    assert set(awaited) == {0, 1}
    assert awaited.count(1) > awaited.count(0)
