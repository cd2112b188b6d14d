"""Nodes: pods go to those of their namespace, leave drained ones, and are lost with gone ones."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from harness.deadlines import deadline
from harness.testbed.pods import container, phase, pod
from shared_pathways_service.testing.testbed import ApiRefused, Namespace, Object

TPU: Object = {"resources": {"limits": {"google.com/tpu": "4"}}}


def job(name: str, **spec: object) -> Object:
    """A Job whose pod sleeps."""
    template = pod("", container("sleep 1000"))["spec"]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"backoffLimit": 10, "template": {"spec": template}, **spec},
    }


def running(pods: Sequence[Object]) -> Object | None:
    return next(
        (p for p in pods if phase(p) == "Running" and "deletionTimestamp" not in p["metadata"]),
        None,
    )


def is_ready(seen: Object) -> bool:
    conditions = seen["status"].get("conditions") or ()
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def test_pools_are_as_on_gke(namespace: Namespace) -> None:
    nodes = namespace.add_nodes({"tpuv5:2x2x2": 1}, cpu_nodes=0)
    assert len(nodes) == 2
    found = [namespace.testbed.api.get(f"/api/v1/nodes/{name}") for name in nodes]
    labels = [node["metadata"]["labels"] for node in found]
    assert {one["cloud.google.com/gke-tpu-accelerator"] for one in labels} == {"tpu-v5p-slice"}
    assert {one["cloud.google.com/gke-tpu-topology"] for one in labels} == {"2x2x2"}
    assert len({one["cloud.google.com/gke-nodepool"] for one in labels}) == 1
    assert {node["status"]["allocatable"]["google.com/tpu"] for node in found} == {"4"}


def test_only_pods_that_request_tpus_run_on_their_nodes(namespace: Namespace) -> None:
    [tpu] = namespace.add_nodes({"tpuv6e:2x2": 1}, cpu_nodes=0)
    namespace.create("pods", pod("asks", container("sleep 1000", **TPU)))
    namespace.create("pods", pod("plain", container("sleep 1000")))
    asks = namespace.wait_for_pod("asks", lambda p: phase(p) == "Running")
    plain = namespace.wait_for_pod("plain", lambda p: phase(p) == "Running")
    assert asks["spec"]["nodeName"] == tpu
    assert plain["spec"]["nodeName"] == namespace.nodes[0]


def test_what_does_not_fit_is_unschedulable(namespace: Namespace) -> None:
    namespace.create("pods", pod("asks", container("sleep 1000", **TPU)))

    # (Of a node that is new the scheduler may say something else at first.)
    def lacks_chips(pod: Object) -> bool:
        conditions = pod["status"].get("conditions") or ()
        return any("google.com/tpu" in c.get("message", "") for c in conditions)

    waiting = namespace.wait_for_pod("asks", lacks_chips)
    [condition] = waiting["status"]["conditions"]
    assert condition["reason"] == "Unschedulable"


def test_drained_node_is_left(namespace: Namespace) -> None:
    namespace.add_nodes({}, cpu_nodes=1)
    namespace.create("batch/v1/jobs", job("moves"))
    first = namespace.wait_until("pods", running, what="running pod")
    node = first["spec"]["nodeName"]
    namespace.testbed.drain(node)
    second = namespace.wait_until("pods", running, what="pod on the other node")
    assert {node, second["spec"]["nodeName"]} == set(namespace.nodes)
    namespace.testbed.uncordon(node)


def test_vanished_node_takes_its_pods_along(namespace: Namespace) -> None:
    namespace.add_nodes({}, cpu_nodes=1)
    namespace.create("batch/v1/jobs", job("moves"))
    first = namespace.wait_until("pods", running, what="running pod")
    node = first["spec"]["nodeName"]
    namespace.testbed.vanish(node)
    assert namespace.processes() == {}

    def replaced(pods: Sequence[Object]) -> Object | None:
        return running([p for p in pods if p["metadata"]["uid"] != first["metadata"]["uid"]])

    second = namespace.wait_until("pods", replaced, what="new pod", timeout_s=deadline(180.0))
    assert second["spec"]["nodeName"] != node
    namespace.testbed.bring_back(node)
    found = namespace.testbed.api.get(f"/api/v1/nodes/{node}")
    conditions = {c["type"]: c["status"] for c in found["status"]["conditions"]}
    assert conditions["Ready"] == "True"


def test_quota(namespace: Namespace) -> None:
    namespace.set_quota({"pods": "0"})
    with pytest.raises(ApiRefused, match="exceeded quota"):
        namespace.create("pods", pod("one", container("true")))


def test_a_job_ends_at_its_deadline(namespace: Namespace) -> None:
    namespace.create("batch/v1/jobs", job("short", activeDeadlineSeconds=15))
    namespace.wait_until("pods", running, what="running pod")

    def failure(jobs: Sequence[Object]) -> Object | None:
        conditions = jobs[0]["status"].get("conditions") or ()
        return next((c for c in conditions if c["type"] == "Failed"), None)

    failed = namespace.wait_until("batch/v1/jobs", failure, what="failed job")
    assert failed["reason"] == "DeadlineExceeded"
    namespace.wait_until("pods", lambda left: not left, what="end of its pod")
    assert namespace.processes() == {}


def test_misjudged_pods_are_reported_again(namespace: Namespace) -> None:
    namespace.create("pods", pod("runs", container("sleep 600")))
    seen = namespace.wait_for_pod("runs", is_ready)
    # As the control plane does with the pods of a node of which it has not heard for a while.
    conditions = [
        {**c, "status": "False"} if c["type"] == "Ready" else c
        for c in seen["status"]["conditions"]
    ]
    path = namespace.path("pods", "runs/status")
    namespace.testbed.api.patch(path, {"status": {"conditions": conditions}})
    after = namespace.wait_for_pod("runs", is_ready)
    assert after["metadata"]["resourceVersion"] != seen["metadata"]["resourceVersion"]
