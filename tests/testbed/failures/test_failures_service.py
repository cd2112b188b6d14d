"""A service that is not, or not wholly, there: who lacks, and why, is told; nothing is created."""

from __future__ import annotations

import pytest

from harness.testbed.clients import KIND, client, deployed, nothing_left
from harness.testbed.pods import wait_until_unschedulable
from shared_pathways_service import Event
from shared_pathways_service.errors import ServiceNotFound, ServiceNotReady
from shared_pathways_service.manifests.service_inputs import ServiceInputs
from shared_pathways_service.manifests.service_jobset import service_jobset
from shared_pathways_service.testing.testbed import Namespace
from shared_pathways_service.testing.testbed.deployed_service import OUR_SERVER_IMAGE
from tests.testbed.failing import created, failure

JOBSETS = "jobset.x-k8s.io/v1alpha2/jobsets"

ONE_SLICE = """
with connecting(expected_tpu_instances={"tpuv6e:2x2": 1}) as connection:
    import jax.numpy as jnp
    say("serving", value=float(jnp.ones(3).sum()))
say("left")
"""


def waiting(heard: list[Event]) -> list[Event]:
    return [event for event in heard if event.kind == "service.waiting"]


def cordon(namespace: Namespace, node: str) -> None:
    namespace.testbed.api.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}})


def test_a_head_that_is_missing(namespace: Namespace) -> None:
    error = failure(namespace, ServiceNotFound)
    assert namespace.name in error.message
    inputs = ServiceInputs(
        name="pathways", namespace=namespace.name, instances={KIND: 1}, image=OUR_SERVER_IMAGE
    )
    # Its Job is there, and may have no pod.
    namespace.set_quota({"pods": "0"})
    namespace.create(JOBSETS, service_jobset(inputs))
    namespace.wait_until(
        "events",
        lambda events: any(event["reason"] == "FailedCreate" for event in events),
        what="refusal of the head's pod",
    )
    heard: list[Event] = []
    not_ready = failure(namespace, ServiceNotReady, timeout=5, heard=heard)
    assert (not_ready.ready, not_ready.wanted) == (0, 1)
    assert "the head has no pod" in not_ready.pods
    assert "within 5 s" in not_ready.message
    assert "exceeded quota: limit" in not_ready.message
    assert "timeout=" in not_ready.hint
    assert waiting(heard)
    unknown = failure(namespace, ServiceNotFound, pathways_service="x-pathways-head-0-0.x:29001")
    assert unknown.candidates == ("pathways-pathways-head-0-0.pathways:29001",)
    assert created(namespace) == []
    nothing_left(namespace)


@pytest.mark.timeout(600)
def test_a_worker_that_is_not_ready_and_a_head_that_left(namespace: Namespace) -> None:
    service = deployed(namespace, 2)
    worker = service.pods("worker")[0]
    node = worker["spec"]["nodeName"]
    namespace.testbed.drain(node)
    wait_until_unschedulable(namespace, "worker")
    heard: list[Event] = []
    both = {KIND: 2}
    error = failure(namespace, ServiceNotReady, heard=heard, expected_tpu_instances=both, timeout=5)
    assert (error.ready, error.wanted) == (1, 2)
    [trouble] = error.pods
    assert trouble.startswith(worker["metadata"]["generateName"])
    assert "no node takes it" in trouble
    assert "were unschedulable" in trouble
    assert "1 of 2 slices are ready" in error.message
    assert trouble in error.message
    assert [event.data["ready"] for event in waiting(heard)][-1] == 1

    # One slice is enough for who wants one.
    with client(namespace, ONE_SLICE) as running:
        assert running.expect("serving")["value"] == 3.0
        running.expect("left")
        assert running.wait() == 0
    nothing_left(namespace)
    before = len(created(namespace))

    head = service.head
    cordon(namespace, head["spec"]["nodeName"])
    namespace.delete("pods", head["metadata"]["name"])
    wait_until_unschedulable(namespace, "pathways-head")
    error = failure(namespace, ServiceNotReady, timeout=5)
    assert "the resource manager is not ready" in error.message
    assert "pathways-head" in error.pods[0]
    assert "no node takes it" in error.pods[0]
    assert len(created(namespace)) == before

    # What is mended while it is waited for is taken at once.
    for cordoned in (node, head["spec"]["nodeName"]):
        namespace.testbed.uncordon(cordoned)
    with client(namespace, ONE_SLICE.replace(": 1}", ": 2}")) as running:
        assert running.expect("serving")["value"] == 3.0
        running.expect("left")
        assert running.wait() == 0
    nothing_left(namespace)
