"""Submitted jobs in a cluster survive losses: of a node, of a slice, and to a higher priority."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from harness.deadlines import wait_until
from harness.programs import DEADLINE_S
from harness.testbed.clients import KIND, nothing_left, tenant
from shared_pathways_service.submission import Job, submit
from shared_pathways_service.testing.testbed import DeployedService

#: Ends by itself, but not in its first attempt.
ENDLESS = """
import os, time
print("runs, attempt", os.environ["SPS_JOB_ATTEMPT"], flush=True)
while os.environ["SPS_JOB_ATTEMPT"] == "1":
    time.sleep(0.1)
"""
#: Trains until it has been preempted, and some steps more.
ELASTIC = """
import grain, jax, jax.numpy as jnp, numpy as np
from shared_pathways_service import elastic

begun, downs = [], []

def on_event(event):
    if event.kind == "slice.down":
        downs.append(event.reason or "")
        print("down:", event.reason, flush=True)

@jax.jit
def add(state, batch):
    return {"sum": state["sum"] + batch.sum()}, batch.sum()

def train(attempt):
    state = attempt.restore(lambda: {"sum": jnp.zeros(())})
    begun.append(attempt.progress.step)
    print("begins at step", begun[-1], flush=True)
    for batch in attempt.batches(grain.MapDataset.range(96)):
        done = attempt.progress.step - begun[-1]
        if done == 20:
            print("trains, attempt", len(begun), flush=True)
        if done > 20 and any("preempted by" in reason for reason in downs):
            return
        given = jax.device_put(np.asarray(batch, np.float32), attempt.over_batch())
        state, loss = add(state, given)
        attempt.step_done(state, loss)

options = elastic.Options(
    run_name="job", slices="1:2", global_batch_size=24, snapshot_period=1, poll_interval=0.2)
with elastic.Manager(options=options, on_event=on_event, console=False) as manager:
    manager.run(train)
"""


@pytest.fixture
def where(service: DeployedService, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The arguments that name the namespace, as its tenant."""
    for name, value in tenant(service.namespace).items():
        monkeypatch.setenv(name, value)
    return {
        "context": "testbed",
        "namespace": service.namespace.name,
        "expected_tpu_instances": {KIND: 2},
    }


def lines_of(job: Job, pattern: str) -> list[str]:
    """Returns the parts of a job's output that match."""
    return re.findall(pattern, "\n".join(job.logs()))


def test_a_job_on_a_lost_node_is_retried_on_another(
    service: DeployedService, where: dict[str, Any], tmp_path: Path
) -> None:
    namespace, testbed = service.namespace, service.namespace.testbed
    old = service.head["spec"]["nodeName"]
    [new] = namespace.add_nodes({}, cpu_nodes=1)
    testbed.api.patch(f"/api/v1/nodes/{old}", {"spec": {"unschedulable": True}})
    job = submit(["python3", "-c", ENDLESS], retries=1, workdir=tmp_path, **where)
    wait_until("the program", lambda: job.status().state == "running")
    testbed.uncordon(old)
    testbed.vanish(new)
    ended = job.wait(DEADLINE_S)
    assert (ended.state, ended.attempt) == ("succeeded", 2), namespace.diagnostics()
    assert "runs, attempt 2" in job.logs()
    namespace.delete("batch/v1/jobs", job.name)
    nothing_left(namespace)


@pytest.mark.thorough
def test_elastic_training_survives_a_lost_slice_and_a_preemption(
    service: DeployedService, where: dict[str, Any], tmp_path: Path
) -> None:
    namespace = service.namespace
    (tmp_path / "train.py").write_text(ELASTIC)
    job = submit(["python3", "train.py"], workdir=tmp_path, **where)
    wait_until("training", lambda: lines_of(job, "trains, attempt 1"))
    [worker, *_] = service.pods("worker")
    namespace.delete("pods", worker["metadata"]["name"])
    # (Maybe on one slice first.)
    wait_until("training after the loss", lambda: lines_of(job, "trains, attempt [2-9]"))

    command = ["python3", "-c", "import jax; print(jax.device_count())"]
    urgent = submit(command, priority="high-priority-job", workdir=tmp_path, **where)
    assert urgent.wait(DEADLINE_S).state == "succeeded", namespace.diagnostics()
    ended = job.wait(DEADLINE_S)
    assert (ended.state, ended.attempt) == ("succeeded", 1), namespace.diagnostics()
    assert lines_of(job, "down: .*preempted by")
    # It went on from where it was.
    [first, *later] = [int(step) for step in lines_of(job, r"begins at step (\d+)")]
    assert first == 0 < min(later)
    for name in (job.name, urgent.name):
        namespace.delete("batch/v1/jobs", name)
    nothing_left(namespace)
