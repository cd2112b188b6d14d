"""The service's JobSet comes up with our servers, and outlives the loss of its pods."""

from __future__ import annotations

import pytest

from harness.testbed.plugin import ANY_IMAGES, IMAGES
from harness.testbed.pods import phase
from shared_pathways_service.testing.testbed import DeployedService, Namespace, deploy_service

TWO = {"tpuv6e:2x2": 2}


@pytest.fixture(params=ANY_IMAGES)
def service(request: pytest.FixtureRequest, namespace: Namespace) -> DeployedService:
    """A service of two slices, ready; a node is left over for each role."""
    namespace.add_nodes({"tpuv6e:2x2": 3}, cpu_nodes=0)
    return deploy_service(namespace, TWO, image=IMAGES[request.param])


def test_workers_are_one_to_a_node_pool_and_find_the_head(service: DeployedService) -> None:
    assert "2/2 Pathways Slices Now Ready" in service.log()
    workers = service.pods("worker")
    assert len({pod["spec"]["nodeName"] for pod in workers}) == 2
    # (A worker may be heard by the resource manager before its pod is said to run.)
    for name in (pod["metadata"]["name"] for pod in workers):
        service.namespace.wait_for_pod(name, lambda p: phase(p) == "Running")
        service.namespace.wait_for_log(name, "MegaScale transport init succeeded.")


def test_deleted_head_comes_back_with_its_address(service: DeployedService) -> None:
    before = service.head
    service.namespace.delete("pods", before["metadata"]["name"])
    after = service.wait_for_head(other_than=before["metadata"]["uid"])
    assert after["status"]["podIP"] == before["status"]["podIP"]
    service.wait_until_ready()


def test_drained_worker_goes_to_another_node(service: DeployedService) -> None:
    namespace = service.namespace
    [first, _] = service.pods("worker")
    namespace.testbed.drain(first["spec"]["nodeName"])
    namespace.wait_until(
        "pods",
        lambda pods: (
            len({p["spec"].get("nodeName") for p in pods}) == 3
            and all(p["status"]["phase"] == "Running" for p in pods)
        ),
        what="worker on another node",
    )
    assert first["spec"]["nodeName"] not in {p["spec"]["nodeName"] for p in service.pods("worker")}
    service.wait_until_ready()


def test_hosts_of_a_slice_are_in_one_node_pool(namespace: Namespace) -> None:
    namespace.add_nodes({"tpuv5:2x2x2": 2, "tpuv6e:2x2": 1}, cpu_nodes=0)
    service = deploy_service(namespace, {"tpuv5:2x2x2": 2, "tpuv6e:2x2": 1})
    pools: dict[str, set[str]] = {}
    for pod in service.pods("worker"):
        node = namespace.testbed.api.get(f"/api/v1/nodes/{pod['spec']['nodeName']}")
        index = pod["metadata"]["labels"]["jobset.sigs.k8s.io/job-index"]
        pool = node["metadata"]["labels"]["cloud.google.com/gke-nodepool"]
        pools.setdefault(index, set()).add(pool)
    assert len(pools) == 2
    assert all(len(used) == 1 for used in pools.values())
    service.delete()
    assert namespace.processes() == {}
