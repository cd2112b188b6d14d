from __future__ import annotations

import copy
from typing import Any

import pytest

from shared_pathways_service.cluster_state.services import find_service, read_service
from shared_pathways_service.errors import ServiceNotFound
from shared_pathways_service.manifests.service_inputs import ServiceInputs
from shared_pathways_service.manifests.service_jobset import service_address, service_jobset
from tests.cluster_state.objects import Object, failed


def jobset(name: str = "pw", **more: Any) -> Object:
    return service_jobset(ServiceInputs(name=name, instances={"tpuv6e:2x2": 2}, **more))


def pathways_job() -> Object:
    """A JobSet as the controller of PathwaysJobs makes it: servers are init containers."""
    found = jobset()
    head, workers = found["spec"]["replicatedJobs"]
    pod = head["template"]["spec"]["template"]["spec"]
    pod["initContainers"] = [{**c, "restartPolicy": "Always"} for c in pod["containers"]]
    pod["containers"] = [{"name": "main", "image": "python:3.12"}]
    workers["name"] = "pathways-worker"
    worker = workers["template"]["spec"]["template"]["spec"]
    worker["initContainers"] = [
        {"name": "colocated-python-sidecar", "image": "r.io/colocated-python:jax-0.10.2"}
    ]
    return found


def test_a_jobset_that_is_no_service() -> None:
    no_head, no_manager = jobset(), jobset()
    del no_head["spec"]["replicatedJobs"][0]
    pod = no_manager["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    pod["containers"] = [{"name": "main", "image": "x", "args": ["--a"]}]
    others: list[Object] = [{}, {"spec": {}}, no_head, no_manager]
    for other in others:
        assert read_service(other) is None


def test_servers_beside_a_users_container_are_found() -> None:
    service = read_service(pathways_job())
    assert service is not None
    assert service.instances == {"tpuv6e:2x2": 2}
    assert service.sidecar_image == "r.io/colocated-python:jax-0.10.2"
    assert [group.name for group in service.workers] == ["pathways-worker"]


def test_flags_are_read_as_the_servers_read_them() -> None:
    found = jobset()
    pod = found["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    pod["containers"] = [
        {
            "name": "anything",
            "image": "r.io/server:1",
            "command": ["/run", "--node_type=resource_manager"],
            "args": [
                *("--instance_type", "tpuv6e:2x2, tpuv5e:2x2", "--instance_count=1,2"),
                *("--verbose", "--server_port", "29101", "--gcs_scratch_location=gs://b/x=y"),
            ],
        }
    ]
    service = read_service(found)
    assert service is not None
    assert service.instances == {"tpuv6e:2x2": 1, "tpuv5e:2x2": 2}
    assert service.address == "pw-pathways-head-0-0.pw:29101"
    assert service.gcs_scratch_location == "gs://b/x=y"


@pytest.mark.parametrize(
    "arguments", [[], ["--instance_count=2"], ["--instance_type=a,b", "--instance_count=1"]]
)
def test_a_resource_manager_that_does_not_report_its_types(arguments: list[str]) -> None:
    found = jobset()
    pod = found["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    pod["containers"][0]["args"] = arguments
    service = read_service(found)
    assert service is not None
    assert service.instances == {}
    assert service.wanted == 2


def test_a_subdomain_of_its_own_is_in_the_address() -> None:
    found = jobset()
    found["spec"]["network"]["subdomain"] = "tpus"
    service = read_service(found)
    assert service is not None
    assert service.address == "pw-pathways-head-0-0.tpus:29001"


@pytest.mark.parametrize(
    "address",
    [
        "b-pathways-head-0-0.b:29001",
        "b-pathways-head-0-0.b.default:29001",
        "b-pathways-head-0-0.b.default.svc:29001",
        "B-pathways-head-0-0.b.default.svc.cluster.local:29001",
    ],
)
def test_a_service_is_found_by_its_address(address: str) -> None:
    service = find_service([jobset("a"), jobset("b"), jobset("bb")], address)
    assert service.name == "b"
    assert service.address == address


@pytest.mark.parametrize(
    "address",
    [
        "b-pathways-head-0-0.b:29002",
        "b-pathways-head-0-0.b.other:29001",
        "b-pathways-head-0-0.b.other.svc:29001",
        "c-pathways-head-0-0.c:29001",
        "10.0.0.1:29001",
    ],
)
def test_what_is_not_found_is_said_with_what_there_is(address: str) -> None:
    with pytest.raises(ServiceNotFound) as caught:
        find_service([jobset("a"), {}, jobset("b")], address, namespace="default")
    assert caught.value.service == address
    assert caught.value.candidates == (service_address("a"), service_address("b"))
    assert service_address("a") in caught.value.message


def test_the_only_service_needs_no_address() -> None:
    assert find_service([{}, jobset("a")]).name == "a"


def test_a_service_that_has_ended_is_no_choice_beside_one_that_lives() -> None:
    over = jobset("over")
    over["status"] = {"conditions": failed("FailedJobs", "worker failed")}
    assert find_service([over, jobset("a")]).name == "a"
    assert "worker failed" in find_service([over]).ended


def test_of_several_services_one_must_be_named() -> None:
    with pytest.raises(ServiceNotFound) as caught:
        find_service([jobset("a"), jobset("b")], namespace="team")
    assert caught.value.candidates == (service_address("a"), service_address("b"))
    assert "team" in caught.value.message
    assert "pathways_service" in caught.value.hint


def test_where_there_is_none_that_is_said() -> None:
    with pytest.raises(ServiceNotFound) as caught:
        find_service([{}], namespace="team")
    assert caught.value.candidates == ()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"status": {"conditions": failed("x", "all done", "Completed")}}, "all done"),
        ({"status": {"conditions": failed("FailedJobs")}}, "FailedJobs"),
        ({"spec": {"suspend": True}}, "suspended"),
        ({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, "deleted"),
    ],
)
def test_why_a_service_cannot_become_ready(change: dict[str, Any], says: str) -> None:
    found = copy.deepcopy(jobset())
    for part, values in change.items():
        found.setdefault(part, {}).update(values)
    service = read_service(found)
    assert service is not None
    assert says in service.ended


def test_machines_distinguish_types_with_the_same_nodes() -> None:
    inputs = ServiceInputs(
        name="pw",
        instances={"tpuv6e:2x4": 1, "tpuv6e1t:2x4": 3},
        image="r.io/shared-pathways-service/server:1",
    )
    service = read_service(service_jobset(inputs))
    assert service is not None
    assert [(g.instance_type, g.slices, g.hosts) for g in service.workers] == [
        ("tpuv6e:2x4", 1, 2),
        ("tpuv6e1t:2x4", 3, 1),
    ]
