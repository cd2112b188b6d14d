"""What executors compute on, in the manifests of a service and of its tenants' proxies."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from harness.session_requests import job_inputs
from shared_pathways_service.cluster_state.service_reading import read_inputs
from shared_pathways_service.cluster_state.services import read_service
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.flags.parsing import parse_flags
from shared_pathways_service.manifests.proxy_job import proxy_job
from shared_pathways_service.manifests.service_inputs import ServiceInputs
from shared_pathways_service.manifests.service_jobset import service_jobset
from shared_pathways_service.servers.proxy.flags import ProxyServerOptions
from shared_pathways_service.servers.worker.flags import WorkerOptions

EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
ON_CPUS = ServiceInputs(
    name="pw",
    instances={"tpuv6e:4x4": 2, "tpuv6e1t:2x4": 1},
    image="r.io/shared-pathways-service/server:0.1.0",
    engine="distributed",
)
ON_GPUS = dataclasses.replace(ON_CPUS, platform="cuda")
ON_TPUS = dataclasses.replace(ON_CPUS, platform="tpu")
LOCAL = dataclasses.replace(ON_CPUS, engine="local")
PROXY = job_inputs(
    name="isc-proxy",
    namespace="default",
    session="00000000-0000-0000-0000-000000000000",
    service_address="pw:29001",
    image="r.io/shared-pathways-service/proxy_server:0.1.0",
    virtual_slices=("tpuv6e:4x4",),
    engine="distributed",
)


def parts(inputs: ServiceInputs, number: int = 1) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the pod of one of the JobSet's Jobs, the first of workers, and its container."""
    job = service_jobset(inputs)["spec"]["replicatedJobs"][number]["template"]
    pod = job["spec"]["template"]["spec"]
    [container] = pod["containers"]
    pod["exclusive"] = job.get("metadata", {}).get("annotations", {}).get(EXCLUSIVE)
    return pod, container


def variables(container: dict[str, Any]) -> dict[str, str]:
    """Returns the variables that have a value of their own, for the first slice."""
    found = {one["name"]: one["value"] for one in container["env"] if "value" in one}
    return {name: text.replace("$(MEGASCALE_SLICE_ID)", "0") for name, text in found.items()}


def test_workers_on_cpus_request_no_chips_and_are_spread_over_nodes() -> None:
    pod, container = parts(ON_CPUS)
    assert "resources" not in container
    assert not pod.keys() & {"nodeSelector", "tolerations"}
    assert pod["exclusive"] is None
    [spread] = pod["topologySpreadConstraints"]
    assert spread["labelSelector"] == {"matchLabels": {"jobset.sigs.k8s.io/jobset-name": "pw"}}
    # A cluster of one more node than the head's is enough.
    assert spread["whenUnsatisfiable"] == "ScheduleAnyway"


@pytest.mark.parametrize(("number", "chips"), [(1, "4"), (2, "8")])
def test_workers_on_gpus_request_one_for_each_chip(number: int, chips: str) -> None:
    pod, container = parts(ON_GPUS, number)
    assert container["resources"] == {"limits": {"nvidia.com/gpu": chips}}
    assert pod["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    ]
    assert "nodeSelector" not in pod
    assert pod["exclusive"] is None
    assert "/usr/local/nvidia/lib64" in variables(container)["LD_LIBRARY_PATH"]


@pytest.mark.parametrize("gcsfuse", [False, True])
def test_only_workers_on_gpus_have_shared_memory_for_nccl(gcsfuse: bool) -> None:
    for inputs in (ON_CPUS, ON_GPUS, ON_TPUS):
        bucket = "gs://bucket" if gcsfuse else ""
        pod, container = parts(dataclasses.replace(inputs, gcsfuse=gcsfuse, gcs_bucket=bucket))
        kinds = {one["name"]: one.get("emptyDir") for one in pod.get("volumes", ())}
        mounted = {
            one["mountPath"]: kinds[one["name"]] for one in container.get("volumeMounts", ())
        }
        assert mounted.pop("/dev/shm", None) == (
            {"medium": "Memory"} if inputs is ON_GPUS else None
        )
        assert list(mounted) == (["/gcs"] if gcsfuse else [])


def test_workers_on_tpus_have_the_nodes_of_their_slice() -> None:
    (pod, container), (locals_pod, locals_container) = parts(ON_TPUS), parts(LOCAL)
    assert container["resources"] == {"limits": {"google.com/tpu": "4"}}
    assert pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == "4x4"
    assert pod["exclusive"] == "cloud.google.com/gke-nodepool"
    # As those of the engine `local`, which only watch their hosts.
    for field in ("nodeSelector", "tolerations", "exclusive"):
        assert pod[field] == locals_pod[field]
    assert container["resources"] == locals_container["resources"]


@pytest.mark.parametrize("inputs", [LOCAL, ON_CPUS, ON_GPUS, ON_TPUS])
def test_workers_and_proxies_know_the_platform(inputs: ServiceInputs) -> None:
    _, worker = parts(inputs)
    required = ["--resource_manager_address=pw:29001"]
    assert parse_flags(WorkerOptions, required, variables(worker)).platform == inputs.platform
    _, head = parts(inputs, 0)
    assert "SPS_PLATFORM" not in variables(head)

    proxy = dataclasses.replace(PROXY, engine=inputs.engine, platform=inputs.platform)
    [container] = proxy_job(proxy)["spec"]["template"]["spec"]["containers"]
    options = parse_flags(ProxyServerOptions, container["args"], variables(container))
    assert options.platform == inputs.platform
    # It only names the executors' devices.
    assert container["resources"].keys() == {"requests", "limits"}
    assert container["resources"]["limits"].keys() == {"memory"}


@pytest.mark.parametrize("inputs", [LOCAL, ON_CPUS, ON_GPUS, ON_TPUS])
def test_the_platform_is_read_from_the_jobset(inputs: ServiceInputs) -> None:
    jobset = service_jobset(inputs)
    service = read_service(jobset)
    assert service is not None
    assert service.platform == inputs.platform
    # Also where no label of nodes tells them apart.
    assert [(group.instance_type, group.hosts) for group in service.workers] == [
        ("tpuv6e:4x4", 4),
        ("tpuv6e1t:2x4", 1),
    ]
    assert read_inputs(jobset, service) == inputs


GOOGLES = "us-docker.pkg.dev/cloud-tpu-v2-images/pathways/server:latest"


@pytest.mark.parametrize(
    ("fields", "field", "says"),
    [
        ({"platform": "gpu"}, "platform", "one of cpu, cuda, tpu"),
        ({"engine": "local"}, "platform", "cpu with the engine local"),
        (
            {"engine": "local", "image": GOOGLES, "instances": {"tpuv6e:4x4": 2}},
            "platform",
            f"cpu with the image {GOOGLES}",
        ),
        ({"allow_colocated_python": True}, "allow_colocated_python", "only with the platform cpu"),
        ({"worker_args": ("--platform=cpu",)}, "worker_args", "which other options determine"),
    ],
)
@pytest.mark.parametrize("inputs", [ON_GPUS, ON_TPUS])
def test_what_does_not_fit_the_platform_is_refused(
    inputs: ServiceInputs, fields: dict[str, Any], field: str, says: str
) -> None:
    with pytest.raises(InvalidRequestError, match=says) as raised:
        dataclasses.replace(inputs, **fields)
    assert raised.value.field == field
