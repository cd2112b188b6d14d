"""PathwaysJob: workers, and images, flags and variables of components."""

from __future__ import annotations

from typing import Any

import pytest

from shared_pathways_service.flags.parsing import parse_flags
from shared_pathways_service.manifests.machine_types import MACHINE_TYPES
from shared_pathways_service.manifests.pathways_job import render_pathways_job
from shared_pathways_service.servers.proxy.flags import ProxyServerOptions
from shared_pathways_service.servers.resource_manager.flags import ResourceManagerOptions
from shared_pathways_service.servers.worker.flags import WorkerOptions
from tests.manifests.pathways_jobs import (
    ALL_OURS,
    GOOGLES,
    PLACES,
    container,
    job,
    manifest,
    part,
    pod,
    ports,
    variables,
)

# ---- the workers


def test_the_worker() -> None:
    jobset = render_pathways_job(manifest())
    worker = part(jobset, "worker")
    assert worker["args"] == [
        "--server_port=29005",
        "--resource_manager_address=$(PATHWAYS_HEAD):29001",
        "--gcs_scratch_location=gs://bucket/tmp",
    ]
    assert ports(worker) == [29005, 29006, 8471, 8080]
    assert worker["resources"] == {"limits": {"google.com/tpu": "4"}}
    told = variables(worker)
    assert told["MEGASCALE_SLICE_ID"] == "metadata.labels['jobset.sigs.k8s.io/job-index']"
    replicas = "metadata.labels['jobset.sigs.k8s.io/replicatedjob-replicas']"
    assert told["MEGASCALE_NUM_SLICES"] == replicas
    assert told["PATHWAYS_HEAD"] == told["MEGASCALE_COORDINATOR_ADDRESS"]
    spec = pod(jobset, "worker")
    assert spec["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": "4x8",
    }
    assert spec["volumes"][0]["hostPath"]["path"] == "/tmp"
    assert worker["volumeMounts"] == [{"name": "shared-tmp", "mountPath": "/tmp"}]
    for field in ("terminationGracePeriodSeconds", "priorityClassName", "affinity"):
        assert field not in spec


@pytest.mark.parametrize(
    ("machine", "topology", "kind", "hosts", "chips"),
    [
        ("ct5lp-hightpu-4t", "4x8", "tpuv5e:4x8", 8, 4),
        ("tpuv5e", "4x8", "tpuv5e:4x8", 8, 4),
        ("ct5lp-hightpu-8t", "2x4", "tpuv5e1t:2x4", 1, 8),
        ("ct5p-hightpu-4t", "4x4x8", "tpuv5:4x4x8", 32, 4),
        ("ct6e-standard-4t", "1x1", "tpuv6e:1x1", 1, 1),
        ("ct6e-standard-8t", "2x4", "tpuv6e1t:2x4", 1, 8),
        ("tpu7x-standard-4t", "2x2x1", "tpu7x:2x2x1", 1, 4),
        ("ct4p-hightpu-4t", "8x16x16", "tpuv4:8x16x16", 512, 4),
    ],
)
def test_machines_and_topologies(
    machine: str, topology: str, kind: str, hosts: int, chips: int
) -> None:
    jobset = render_pathways_job(manifest(workers__type=machine, workers__topology=topology))
    assert f"--instance_type={kind}" in part(jobset, "pathways_server")["args"]
    spec = job(jobset, "worker")["template"]["spec"]
    assert (spec["completions"], spec["parallelism"]) == (hosts, hosts)
    assert part(jobset, "worker")["resources"]["limits"]["google.com/tpu"] == str(chips)


def test_machine_types_are_those_of_the_public_api() -> None:
    assert sorted(MACHINE_TYPES) == [
        "ct4p-hightpu-4t",
        "ct5lp-hightpu-4t",
        "ct5lp-hightpu-8t",
        "ct5p-hightpu-4t",
        "ct6e-standard-4t",
        "ct6e-standard-8t",
        "tpu7x-standard-4t",
    ]


@pytest.mark.parametrize(
    ("elastic", "restarts", "forgiven"),
    [(0, None, 32), (0, 3, 32), (1, None, 8), (1, 2, 16), (2, 5, 40), (1, 0, 32)],
)
def test_tolerated_failures(elastic: int, restarts: int | None, forgiven: int) -> None:
    jobset = render_pathways_job(
        manifest(controller__elasticSlices=elastic, workers__maxSliceRestarts=restarts)
    )
    worker = job(jobset, "worker")
    assert worker["replicas"] == 3
    # Hosts of a slice, 8, times restarts; 4 each where nothing is elastic.
    assert worker["template"]["spec"]["backoffLimit"] == forgiven
    flags = [flag for flag in part(jobset, "proxy_server")["args"] if "elastic" in flag]
    assert flags == ([f"--num_elastic_slices={elastic}"] if elastic else [])


def test_workers_may_have_own_fields() -> None:
    jobset = render_pathways_job(
        manifest(
            workers__terminationGracePeriodSeconds=0,
            workers__priorityClassName="high",
            workers__nodeSelector={
                "reservation": "r",
                "cloud.google.com/gke-tpu-topology": "1x1",
            },
        )
    )
    spec = pod(jobset, "worker")
    assert spec["terminationGracePeriodSeconds"] == 0
    assert spec["priorityClassName"] == "high"
    assert spec["nodeSelector"]["reservation"] == "r"
    assert spec["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == "4x8"
    assert "terminationGracePeriodSeconds" not in pod(jobset, "pathways-head")


def test_the_head_beside_the_workers() -> None:
    mode = "colocate_head_with_workers"
    jobset = render_pathways_job(
        manifest(controller__deploymentMode=mode, workers__nodeSelector={"a": "b"})
    )
    head = job(jobset, "pathways-head")["template"]
    assert "annotations" not in head.get("metadata", {})
    assert "metadata" not in head["spec"]["template"]
    spec = pod(jobset, "pathways-head")
    assert spec["nodeSelector"] == pod(jobset, "worker")["nodeSelector"]
    [toleration] = spec["tolerations"]
    assert toleration["key"] == "google.com/tpu"
    affinity = pod(jobset, "worker")["affinity"]
    for kind, operator in (("podAffinity", "In"), ("podAntiAffinity", "NotIn")):
        [term] = affinity[kind]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert term["topologyKey"] == "cloud.google.com/gke-nodepool"
        first = term["labelSelector"]["matchExpressions"][0]
        assert (first["operator"], first["values"]) == (operator, ["train"])


# ---- components


def test_images_are_those_of_a_version() -> None:
    for version, tag in ((None, "latest"), ("jax-0.9.0", "jax-0.9.0")):
        jobset = render_pathways_job(manifest(spec__pathwaysVersion=version))
        assert part(jobset, "pathways_server")["image"] == f"{GOOGLES}server:{tag}"
        assert part(jobset, "worker")["image"] == f"{GOOGLES}server:{tag}"
        assert part(jobset, "proxy_server")["image"] == f"{GOOGLES}proxy_server:{tag}"


@pytest.mark.parametrize("name", PLACES)
def test_components_have_images_flags_and_variables_of_their_own(name: str) -> None:
    custom = {
        "componentType": name,
        "image": "r.io/mine:1",
        "customFlags": ["--mine=1", "--yours=$(A)"],
        "customEnv": [
            {"name": "A", "value": "b"},
            {"name": "TPU_SKIP_MDS_QUERY", "value": "no"},
        ],
    }
    jobset = render_pathways_job(manifest(spec__customComponents=[custom]))
    for other in PLACES:
        if other == name:
            made = part(jobset, other)
            assert made["image"] == "r.io/mine:1"
            assert made["args"][-2:] == ["--mine=1", "--yours=$(A)"]
            told = variables(made)
            assert (told["A"], told["TPU_SKIP_MDS_QUERY"]) == ("b", "no")
        elif other != "colocated_python_sidecar":
            made = part(jobset, other)
            assert made["image"].startswith(GOOGLES)
            assert "A" not in variables(made)


def test_the_python_sidecar_is_on_the_workers_nodes() -> None:
    custom = {"componentType": "colocated_python_sidecar", "image": "r.io/sidecar:1"}
    jobset = render_pathways_job(manifest(spec__customComponents=[custom]))
    sidecar = part(jobset, "colocated_python_sidecar")
    assert sidecar["restartPolicy"] == "Always"
    assert ports(sidecar) == [50051]
    assert variables(sidecar) == {"GRPC_SERVER_ADDRESS": "'0.0.0.0:50051'"}
    assert sidecar["volumeMounts"] == part(jobset, "worker")["volumeMounts"]


def test_metrics_are_enabled_on_all_servers() -> None:
    jobset = render_pathways_job(manifest(controller__enableMetricsCollection=True))
    for name in ("pathways_server", "proxy_server", "worker"):
        assert "--enable_metrics_collection=true" in part(jobset, name)["args"]


def test_our_servers_accept_their_flags() -> None:
    jobset = render_pathways_job(
        manifest(controller__elasticSlices=1, spec__customComponents=ALL_OURS)
    )

    def options(name: str, cls: type[Any], **fields: str) -> Any:
        made = part(jobset, name)
        told = {**variables(made), **fields}
        argv = [arg.replace("$(PATHWAYS_HEAD)", "head") for arg in made["args"]]
        return parse_flags(cls, argv, told)

    manager = options("pathways_server", ResourceManagerOptions)
    assert {str(kind): count for kind, count in manager.slices().items()} == {"tpuv5e:4x8": 3}
    proxy = options("proxy_server", ProxyServerOptions)
    assert proxy.virtual_slices == ("tpuv5e:4x8",) * 3
    assert (proxy.num_elastic_slices, proxy.queue_timeout_s) == (1, float("inf"))
    worker = options("worker", WorkerOptions, MEGASCALE_SLICE_ID="2", JOB_COMPLETION_INDEX="7")
    assert (worker.slice_id, worker.host_index, worker.hosts) == ("slice-2", 7, 8)
    assert worker.stop_exit_code == 143
    assert {o.bind_address for o in (manager, proxy, worker)} == {"0.0.0.0"}
    main = variables(container(jobset, "main", "pathways-head"))
    assert main["IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS"] == "true"


def test_other_images_get_none_of_our_flags() -> None:
    text = str(render_pathways_job(manifest(controller__elasticSlices=1)))
    assert "SPS_" not in text
    assert "--virtual_slices" not in text
    assert "INSECURE" not in text
