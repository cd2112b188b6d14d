"""`sps hotswap`: a JobSet of high priority moves when its nodes go, and the other one gives way."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys

import pytest

from harness.processes import REPOSITORY
from harness.programs import DEADLINE_S, sps, sps_json
from harness.testbed.crew import COMMAND, IMAGE
from shared_pathways_service.manifests.hotswap_jobset import HIGH, LOW
from shared_pathways_service.testing.testbed import Namespace
from tests.testbed.roles import rendered_user

pytestmark = pytest.mark.race

POOL = "cloud.google.com/gke-nodepool"


@pytest.fixture
def place(namespace: Namespace, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The options that name the namespace, with four pools of 4x4, as its operator."""
    namespace.add_nodes({"tpuv6e:4x4": 4}, cpu_nodes=0)
    for name, value in rendered_user(namespace, "operator").items():
        monkeypatch.setenv(name, value)
    return ["--context=testbed", f"--namespace={namespace.name}"]


def nodes_of(namespace: Namespace, jobset: str) -> dict[str, str]:
    """Returns the nodes where a JobSet has pods, with their pools."""
    pods = namespace.items("pods", labelSelector=f"jobset.sigs.k8s.io/jobset-name={jobset}")
    names = {pod["spec"]["nodeName"] for pod in pods if "nodeName" in pod["spec"]}
    nodes = {
        node["metadata"]["name"]: node for node in namespace.testbed.api.items("/api/v1/nodes")
    }
    return {name: nodes[name]["metadata"]["labels"][POOL] for name in names}


def test_a_disruption_budget_that_forbids_evictions_is_named(
    namespace: Namespace, place: list[str]
) -> None:
    program = [f"--image={IMAGE}", f"--command={shlex.join(COMMAND)}"]
    done = sps("hotswap", "--create", *program, "--disrupt=nowhere", *place, check=False)
    assert done.returncode == 2, done.stderr
    pool = min(nodes_of(namespace, HIGH.name).values())
    selector = {"matchLabels": {"jobset.sigs.k8s.io/jobset-name": HIGH.name}}
    # (For pods of Jobs, the control plane takes a number of pods only.)
    spec = {"minAvailable": 99, "selector": selector}
    budgets = "policy/v1/poddisruptionbudgets"
    namespace.create(budgets, {"metadata": {"name": "keep"}, "spec": spec})
    namespace.wait_until(
        budgets,
        lambda all_: all(b.get("status", {}).get("observedGeneration") for b in all_),
        what="budget in force",
    )
    before = nodes_of(namespace, HIGH.name)
    refused = sps("hotswap", f"--disrupt={pool}", "--timeout=8", *place, check=False)
    assert refused.returncode == 3, refused.stderr
    assert f"pods of {pool} could not be evicted within 8 s" in refused.stderr
    assert "PodDisruptionBudget" in refused.stderr
    assert "The disruption budget keep needs" in refused.stderr
    # (What stays cordoned is reported.)
    assert f"kubectl uncordon {pool}-0 " in refused.stderr
    assert nodes_of(namespace, HIGH.name) == before


def test_a_pool_is_drained_with_a_spare_without_one_and_a_node_vanishes(
    namespace: Namespace, place: list[str]
) -> None:
    program = [f"--image={IMAGE}", f"--command={shlex.join(COMMAND)}"]
    # Made, waited for, and nothing is drained that is none of theirs.
    done = sps("hotswap", "--create", *program, "--disrupt=nowhere", *place, check=False)
    assert done.returncode == 2, done.stderr
    for name in (HIGH.name, LOW.name):
        assert f"created {name}" in done.stderr
    first, second = sorted(set(nodes_of(namespace, HIGH.name).values()))
    [lower] = set(nodes_of(namespace, LOW.name).values())
    assert f"{first}, {second}" in done.stderr
    assert "kubectl uncordon" not in done.stderr
    assert lower not in (first, second)

    # There is a spare pool: the lower one does not notice.
    done = sps("hotswap", f"--disrupt={first}", "--no-restore", "--json", *place)
    spared = json.loads(done.stdout)
    assert f"kubectl uncordon {first}-0 " in done.stderr
    [spare] = set(spared["pools"]) - {second}
    assert spare not in (first, lower)
    assert "preempted" not in spared["phases"]
    assert (spared["low_back_s"], spared["shared"]) == (None, {})
    assert set(nodes_of(namespace, LOW.name).values()) == {lower}

    # There is none: it gives way, and returns when a pool does.
    moved = sps_json("hotswap", f"--disrupt={second}", *place)
    assert sorted(moved["pools"]) == sorted([spare, lower])
    order = ["lost", "ended", "created", "preempted", "cleared", "bound", "ready", "restored"]
    seconds = [moved["phases"][phase] for phase in order]
    assert seconds == sorted(seconds)
    assert moved["low_back_s"] is not None
    assert moved["shared"] == {}
    assert set(nodes_of(namespace, LOW.name).values()) == {second}

    # A node goes without a word: as with the drain, but nobody says so.
    with subprocess.Popen(
        [sys.executable, "-m", "shared_pathways_service.cli", "hotswap", "--report", *place],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
    ) as watching:
        assert watching.stderr
        assert watching.stdout
        assert "waiting until a node" in watching.stderr.readline()
        gone = next(node for node, pool in nodes_of(namespace, HIGH.name).items() if pool == spare)
        namespace.testbed.vanish(gone)
        report = watching.stdout.read()
        said = watching.stderr.read()
        assert watching.wait(DEADLINE_S) == 0, said
    assert f"kubectl uncordon {spare}-0 " in said
    assert "not_ready" in report
    assert f"{HIGH.name} was ready again after" in report
    assert "had pods of both" not in report
    assert set(nodes_of(namespace, HIGH.name).values()) == {lower, second}
