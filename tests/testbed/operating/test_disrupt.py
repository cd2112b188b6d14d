"""examples/disrupt.sh against our servers: a PathwaysJob that loses a slice and has it back."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml

from harness.deadlines import deadline, wait_until
from harness.processes import REPOSITORY
from shared_pathways_service.elastic.run_ledger import read_ledger
from shared_pathways_service.jax_client import standalone
from shared_pathways_service.testing.testbed import Namespace, Object
from shared_pathways_service.testing.testbed.deployed_service import (
    OUR_PROXY_IMAGE,
    OUR_SERVER_IMAGE,
)

pytestmark = [
    pytest.mark.race,
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl here"),
]

#: More than there is time for: the training ends with its pod.
STEPS = 1_000_000

#: Runs the example with steps that last, as those on TPUs do: at its own pace, what computes them
#: all takes this machine's cores from whatever else runs.
PACED = """
import runpy, sys, time
from shared_pathways_service import elastic
step_done = elastic.Attempt.step_done
def at_a_pace(attempt, *state):
    time.sleep(0.3)
    step_done(attempt, *state)
elastic.Attempt.step_done = at_a_pace
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
#: A line of a training on all slices, for what needs no training.
ON_ALL_SLICES = (
    "step=1 elastic_manager.good_slice_count=3 elastic_manager.elastic_down_event_count=0"
)


def training(tmp_path: Path) -> list[str]:
    """Returns the command of the example's training."""
    paced = tmp_path / "paced.py"
    paced.write_text(PACED)
    return [
        "python",
        str(paced),
        str(REPOSITORY / "examples" / "elastic_train.py"),
        f"--directory={tmp_path / 'run'}",
        f"--steps={STEPS}",
        "--snapshot-period=5",
    ]


def manifest(tmp_path: Path, command: list[str]) -> Path:
    """The example's PathwaysJob, on our servers, with small slices and another command."""
    job = yaml.safe_load((REPOSITORY / "yamls" / "elastic-training.yaml").read_text())
    spec = job["spec"]
    spec["workers"][0]["topology"] = "2x2"
    spec["customComponents"] = [
        {"componentType": "pathways_server", "image": OUR_SERVER_IMAGE},
        {"componentType": "worker", "image": OUR_SERVER_IMAGE},
        {"componentType": "proxy_server", "image": OUR_PROXY_IMAGE},
    ]
    [main] = spec["controller"]["template"]["spec"]["containers"]
    plugin = standalone.place(tmp_path / "plugin")
    main |= {
        "image": "python:3.13",
        "command": command,
        "env": [{"name": "PYTHONPATH", "value": f"{plugin}:{REPOSITORY}"}],
    }
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(job))
    return path


def administrator(namespace: Namespace) -> dict[str, str]:
    """Variables of somebody who may cordon nodes, too."""
    testbed = namespace.testbed
    return {
        **os.environ,
        "KUBECONFIG": str(testbed.kubeconfig_of(testbed.admin, namespace=namespace.name)),
        "SPS": f"{shlex.quote(sys.executable)} -m shared_pathways_service.cli",
        "PYTHONPATH": str(REPOSITORY),
    }


@contextlib.contextmanager
def disrupt(env: Mapping[str, str], *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Runs the script for the length of the block."""
    with subprocess.Popen(
        ["bash", REPOSITORY / "examples" / "disrupt.sh", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=env,
    ) as running:
        try:
            yield running
        finally:
            running.terminate()


def pods(namespace: Namespace, job: str) -> list[Object]:
    return namespace.items("pods", labelSelector=f"jobset.sigs.k8s.io/replicatedjob-name={job}")


def cordoned(namespace: Namespace) -> list[str]:
    nodes = [namespace.testbed.api.get(f"/api/v1/nodes/{name}") for name in namespace.nodes]
    return [node["metadata"]["name"] for node in nodes if node["spec"].get("unschedulable")]


def restarts(head: Object) -> int:
    [main] = head["status"]["containerStatuses"]
    count: int = main["restartCount"]
    return count


def test_a_slice_goes_and_comes_back(namespace: Namespace, tmp_path: Path) -> None:
    namespace.add_nodes({"tpuv5e:2x2": 3}, cpu_nodes=1)
    job = manifest(tmp_path, training(tmp_path))
    with disrupt(administrator(namespace), "-t", 240, job) as running:
        said, _ = running.communicate()
    assert running.returncode == 0, said
    order = (
        "created JobSet",
        "first step on 3",
        " cordoned",
        "fewer than 3",
        "uncordoned",
        "again",
    )
    assert sorted(order, key=said.index) == list(order), said
    report = said.partition("report of elastic-training:\n")[2].splitlines()
    assert [line.partition(", ")[2] for line in report] == [
        "Old Slice Count: 3, New Slice Count: 2",
        "Old Slice Count: 2, New Slice Count: 3",
    ]
    assert all(re.match(r"Step: [0-9]+, ", line) for line in report)
    # It was the cordon that kept the slice away, and the node is given back.
    events = namespace.items("events", fieldSelector="reason=FailedScheduling")
    assert any("unschedulable" in event["message"] for event in events)
    assert not cordoned(namespace)

    # Gone without a word, and nothing in its successor's way: the same again, in the same process.
    [head] = pods(namespace, "pathways-head")
    before = len(list(read_ledger(tmp_path / "run")))
    namespace.delete("pods", pods(namespace, "worker")[0]["metadata"]["name"], gracePeriodSeconds=0)
    for line in namespace.testbed.api.lines(
        namespace.path("pods", f"{head['metadata']['name']}/log"),
        timeout_s=deadline(120.0),
        follow="true",
        container="main",
    ):
        fell = "down_event_count=2" in line
        if fell and "good_slice_count=3" in line:
            break

    def goes_on() -> bool:
        new = list(read_ledger(tmp_path / "run"))[before:]
        return any(event.kind == "elastic.restored" for event in new)

    # (The resource manager has the slice before the program uses it.)
    wait_until("the run to go on", goes_on)
    told = list(read_ledger(tmp_path / "run"))
    since = [event.kind for event in told[before:]]
    assert since.index("elastic.error") < since.index("elastic.restored")
    for restored in (event for event in told if event.kind == "elastic.restored"):
        # A rewind of a few steps at most, to the last snapshot; none where it has grown.
        assert restored.data["origin"] in {"initial", "snapshot", "live"}
        assert int(restored.data["lost_steps"] or 0) <= 10
    assert [event.kind for event in told].count("elastic.run.started") == 1
    [after] = pods(namespace, "pathways-head")
    assert after["metadata"]["uid"] == head["metadata"]["uid"]
    assert restarts(after) == 0


def test_who_gives_up_gives_the_node_back(namespace: Namespace, tmp_path: Path) -> None:
    namespace.add_nodes({"tpuv5e:2x2": 3}, cpu_nodes=1)
    job = manifest(tmp_path, ["sh", "-c", f"echo {ON_ALL_SLICES}; exec sleep 1000"])
    with disrupt(administrator(namespace), "-t", 240, job) as running:
        assert running.stdout is not None
        said = []
        for line in running.stdout:
            said.append(line)
            if line.endswith(" cordoned\n"):
                assert len(cordoned(namespace)) == 1
                running.terminate()
        assert running.wait() == 143, said
    assert not cordoned(namespace)
