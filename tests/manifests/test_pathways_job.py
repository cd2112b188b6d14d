"""PathwaysJob: what its controller is known to make of it, and what is refused with which words."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml

from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.flags.parsing import parse_flags
from shared_pathways_service.manifests.machine_types import MACHINE_TYPES
from shared_pathways_service.manifests.pathways_job import render_pathways_job
from shared_pathways_service.servers.proxy.flags import ProxyServerOptions
from shared_pathways_service.servers.resource_manager.flags import ResourceManagerOptions
from shared_pathways_service.servers.worker.flags import WorkerOptions
from tests.manifests.documented import YAMLS

GOOGLES = "us-docker.pkg.dev/cloud-tpu-v2-images/pathways/"
OURS = "r.io/shared-pathways-service/"
MAIN = {"name": "main", "image": "python:3.13", "command": ["python", "train.py"]}
#: The parts by what `customComponents` calls them: where their container is.
PLACES = {
    "pathways_server": ("pathways-head", "pathways-rm"),
    "proxy_server": ("pathways-head", "pathways-proxy"),
    "worker": ("worker", "pathways-worker"),
    "colocated_python_sidecar": ("worker", "colocated-python-sidecar"),
}
ALL_OURS = [
    {"componentType": "pathways_server", "image": f"{OURS}server:1"},
    {"componentType": "worker", "image": f"{OURS}server:1"},
    {"componentType": "proxy_server", "image": f"{OURS}proxy_server:1"},
]


def manifest(**changes: Any) -> dict[str, Any]:
    """The job of the examples, with other fields: ``workers__topology="2x4"``; None: left out."""
    made: dict[str, Any] = {
        "apiVersion": "pathways-job.pathways.domain/v1",
        "kind": "PathwaysJob",
        "metadata": {"name": "train", "namespace": "team-a"},
        "spec": {
            "pathwaysDir": "gs://bucket/tmp",
            "workers": [{"type": "ct5lp-hightpu-4t", "topology": "4x8", "numSlices": 3}],
            "controller": {
                "deploymentMode": "default",
                "template": {"spec": {"containers": [copy.deepcopy(MAIN)]}},
            },
        },
    }
    spec = made["spec"]
    for name, value in changes.items():
        part, _, field = name.partition("__")
        owner: Any = {"spec": spec, "top": made, "metadata": made["metadata"]}.get(part)
        if owner is None:
            owner = spec["workers"][0] if part == "workers" else spec[part]
        if value is None:
            owner.pop(field, None)
        else:
            owner[field] = value
    return made


def job(jobset: dict[str, Any], name: str) -> dict[str, Any]:
    jobs: list[dict[str, Any]] = jobset["spec"]["replicatedJobs"]
    [found] = [one for one in jobs if one["name"] == name]
    return found


def pod(jobset: dict[str, Any], name: str) -> dict[str, Any]:
    spec: dict[str, Any] = job(jobset, name)["template"]["spec"]["template"]["spec"]
    return spec


def container(jobset: dict[str, Any], name: str, of: str) -> dict[str, Any]:
    spec = pod(jobset, of)
    both = [*spec.get("initContainers", ()), *spec["containers"]]
    [found] = [one for one in both if one["name"] == name]
    only: dict[str, Any] = found
    return only


def part(jobset: dict[str, Any], name: str) -> dict[str, Any]:
    of, known = PLACES[name]
    return container(jobset, known, of)


def variables(found: dict[str, Any]) -> dict[str, str]:
    """A container's variables: their values, or the field that they are taken from."""

    def value(variable: dict[str, Any]) -> str:
        source = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
        return str(variable.get("value", source))

    assert len({v["name"] for v in found["env"]}) == len(found["env"])
    return {v["name"]: value(v) for v in found["env"]}


def ports(found: dict[str, Any]) -> list[int]:
    return [port["containerPort"] for port in found["ports"]]


# ---- the JobSet as a whole


def test_the_jobset_is_named_as_the_job_and_bears_what_it_bears() -> None:
    labels, annotations = {"team": "a"}, {"note": "b"}
    applied = {"kubectl.kubernetes.io/last-applied-configuration": "{}"}
    jobset = render_pathways_job(
        manifest(metadata__labels=labels, metadata__annotations={**annotations, **applied})
    )
    assert (jobset["apiVersion"], jobset["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    assert jobset["metadata"] == {
        "name": "train",
        "namespace": "team-a",
        "labels": labels,
        "annotations": annotations,
    }
    assert "namespace" not in render_pathways_job(manifest(metadata__namespace=None))["metadata"]
    head = job(jobset, "pathways-head")["template"]
    for metadata in (head["metadata"], head["spec"]["template"]["metadata"]):
        assert metadata["annotations"]["note"] == "b"


def test_the_head_comes_first_and_its_end_is_the_jobs() -> None:
    spec = render_pathways_job(manifest(spec__maxRestarts=4))["spec"]
    assert [one["name"] for one in spec["replicatedJobs"]] == ["pathways-head", "worker"]
    assert spec["startupPolicy"] == {"startupPolicyOrder": "InOrder"}
    assert spec["coordinator"] == {"replicatedJob": "pathways-head", "jobIndex": 0, "podIndex": 0}
    assert spec["successPolicy"]["targetReplicatedJobs"] == ["pathways-head"]
    assert spec["failurePolicy"] == {"maxRestarts": 4}
    head = spec["replicatedJobs"][0]["template"]["spec"]
    assert (head["backoffLimit"], head["completions"], head["parallelism"]) == (0, 1, 1)
    assert render_pathways_job(manifest())["spec"]["failurePolicy"] == {"maxRestarts": 0}


@pytest.mark.parametrize("name", ["pathways-head", "worker"])
def test_pods_are_on_their_nodes_network(name: str) -> None:
    spec = pod(render_pathways_job(manifest()), name)
    assert spec["hostNetwork"] is True
    assert spec["dnsPolicy"] == "ClusterFirstWithHostNet"


def test_heads_have_a_node_and_slices_a_node_pool_of_their_own() -> None:
    jobset = render_pathways_job(manifest())
    key = "alpha.jobset.sigs.k8s.io/exclusive-topology"
    for name, place in (
        ("pathways-head", "kubernetes.io/hostname"),
        ("worker", "cloud.google.com/gke-nodepool"),
    ):
        template = job(jobset, name)["template"]["spec"]["template"]
        assert template["metadata"]["annotations"][key] == place


# ---- the head


def test_manager_and_proxy_are_sidecars_of_the_users_program() -> None:
    template = {"spec": {"containers": [copy.deepcopy(MAIN)], "initContainers": [{"name": "get"}]}}
    before = copy.deepcopy(template)
    jobset = render_pathways_job(manifest(controller__template=template))
    assert template == before
    spec = pod(jobset, "pathways-head")
    assert [one["name"] for one in spec["initContainers"]] == [
        "get",
        "pathways-rm",
        "pathways-proxy",
    ]
    assert [one.get("restartPolicy") for one in spec["initContainers"]] == [
        None,
        "Always",
        "Always",
    ]
    [main] = spec["containers"]
    assert main["command"] == MAIN["command"]
    told = variables(main)
    assert told["JAX_PLATFORMS"] == "proxy"
    assert told["JAX_BACKEND_TARGET"] == "grpc://$(PATHWAYS_HEAD):29000"
    assert told["PATHWAYS_HEAD"] == "metadata.labels['jobset.sigs.k8s.io/coordinator']"
    # One variable may refer to those before it only.
    assert list(told).index("PATHWAYS_HEAD") < list(told).index("JAX_BACKEND_TARGET")


def test_without_a_program_they_are_the_head_themselves() -> None:
    jobset = render_pathways_job(manifest(controller__template=None))
    spec = pod(jobset, "pathways-head")
    assert "initContainers" not in spec
    assert [one["name"] for one in spec["containers"]] == ["pathways-rm", "pathways-proxy"]
    assert not any("restartPolicy" in one for one in spec["containers"])
    assert "successPolicy" not in jobset["spec"]


def test_the_main_container_is_the_one_that_is_named() -> None:
    beside = {"name": "beside", "image": "x"}
    mine = {
        "name": "mine",
        "image": "x",
        "env": [{"name": "A", "value": "a"}, {"name": "JAX_PLATFORMS", "value": "cpu"}],
    }
    template = {"spec": {"containers": [beside, mine]}}
    jobset = render_pathways_job(
        manifest(controller__template=template, controller__mainContainerName="mine")
    )
    assert container(jobset, "beside", "pathways-head") == beside
    told = variables(container(jobset, "mine", "pathways-head"))
    assert (told["A"], told["JAX_PLATFORMS"]) == ("a", "proxy")


def test_the_template_keeps_its_own_fields_and_names() -> None:
    template: dict[str, Any] = {
        "metadata": {"labels": {"l": "1"}, "annotations": {"a": "1"}},
        "spec": {
            "containers": [MAIN],
            "serviceAccountName": "trainer",
            "nodeSelector": {"pool": "cpu"},
            "restartPolicy": "Never",
        },
    }
    made = job(render_pathways_job(manifest(controller__template=template)), "pathways-head")
    made = made["template"]["spec"]["template"]
    assert made["metadata"]["labels"] == {"l": "1"}
    assert made["metadata"]["annotations"]["a"] == "1"
    for field in ("serviceAccountName", "nodeSelector", "restartPolicy"):
        assert made["spec"][field] == template["spec"][field]


def test_the_servers_of_the_head() -> None:
    jobset = render_pathways_job(manifest())
    manager, proxy = part(jobset, "pathways_server"), part(jobset, "proxy_server")
    assert manager["args"] == [
        "--server_port=29001",
        "--gcs_scratch_location=gs://bucket/tmp",
        "--node_type=resource_manager",
        "--instance_count=3",
        "--instance_type=tpuv5e:4x8",
    ]
    assert ports(manager) == [29001, 29002]
    told = variables(manager)
    assert told["TPU_SKIP_MDS_QUERY"] == "true"
    assert told["HOST_ADDRESS"] == "metadata.labels['jobset.sigs.k8s.io/coordinator']"
    assert proxy["args"] == [
        "--server_port=29000",
        "--resource_manager_address=$(PATHWAYS_HEAD):29001",
        "--gcs_scratch_location=gs://bucket/tmp",
    ]
    assert ports(proxy) == [29000]
    assert set(variables(proxy)) == {"PATHWAYS_HEAD"}
    # Sizes of the public controller.
    assert manager["resources"] == {"limits": {"cpu": "8", "memory": "32G"}}
    assert proxy["resources"] == {"limits": {"cpu": "16", "memory": "100G"}}


def test_no_directory_is_no_flag() -> None:
    jobset = render_pathways_job(manifest(spec__pathwaysDir=None))
    for name in ("pathways_server", "proxy_server", "worker"):
        assert not any("gcs_scratch" in flag for flag in part(jobset, name)["args"])


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
def test_failures_forgiven(elastic: int, restarts: int | None, forgiven: int) -> None:
    jobset = render_pathways_job(
        manifest(controller__elasticSlices=elastic, workers__maxSliceRestarts=restarts)
    )
    worker = job(jobset, "worker")
    assert worker["replicas"] == 3
    # Hosts of a slice, 8, times restarts; 4 each where nothing is elastic.
    assert worker["template"]["spec"]["backoffLimit"] == forgiven
    flags = [flag for flag in part(jobset, "proxy_server")["args"] if "elastic" in flag]
    assert flags == ([f"--num_elastic_slices={elastic}"] if elastic else [])


def test_what_workers_may_have_of_their_own() -> None:
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


def test_metrics_are_asked_of_all_servers() -> None:
    jobset = render_pathways_job(manifest(controller__enableMetricsCollection=True))
    for name in ("pathways_server", "proxy_server", "worker"):
        assert "--enable_metrics_collection=true" in part(jobset, name)["args"]


def test_our_servers_take_what_they_are_told() -> None:
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


def test_other_images_are_told_nothing_of_ours() -> None:
    text = str(render_pathways_job(manifest(controller__elasticSlices=1)))
    assert "SPS_" not in text
    assert "--virtual_slices" not in text
    assert "INSECURE" not in text


# ---- what is refused


@pytest.mark.parametrize(
    ("changes", "field", "said"),
    [
        ({"top__apiVersion": "v1"}, "apiVersion", "pathways-job.pathways.domain/v1"),
        ({"top__extra": 1}, "extra", "unknown field extra"),
        ({"metadata__name": None}, "metadata.name", "a DNS label"),
        ({"metadata__name": "n" * 23}, "metadata.name", "at most 22"),
        ({"metadata__labels": {"a": 1}}, "metadata.labels.a", "need quotes"),
        ({"spec__maxRestart": 1}, "spec.maxRestart", "did you mean maxRestarts?"),
        ({"spec__maxRestarts": "3"}, "spec.maxRestarts", "whole number from 0"),
        ({"spec__maxRestarts": True}, "spec.maxRestarts", "whole number from 0"),
        ({"spec__pathwaysDir": "s3://b"}, "spec.pathwaysDir", "gs://NAME"),
        ({"spec__pathwaysVersion": 0.9}, "spec.pathwaysVersion", "a text"),
        ({"spec__pathwaysVersion": "a:b"}, "spec.pathwaysVersion", "tag"),
        ({"spec__workers": None}, "spec.workers", "a list of one item"),
        ({"spec__workers": [{}, {}]}, "spec.workers", "a list of one item"),
        ({"spec__workers": [3]}, "spec.workers[0]", "an object"),
        ({"workers__type": None}, "spec.workers[0].type", "ct5lp-hightpu-4t"),
        ({"workers__type": "ct5lp-hightpu-1t"}, "spec.workers[0].type", "ct5lp-hightpu-4t"),
        ({"workers__topology": "4x4x4"}, "spec.workers[0].topology", "4x8, 8x8, 8x16 or 16x16"),
        ({"workers__topology": "3x4"}, "spec.workers[0].topology", "ct5lp-hightpu-4t: 2x2"),
        ({"workers__topology": 48}, "spec.workers[0].topology", "4x8"),
        (
            {"workers__type": "ct5lp-hightpu-8t"},
            "spec.workers[0].topology",
            "a topology of ct5lp-hightpu-8t: 2x4",
        ),
        (
            {"workers__type": "ct5p-hightpu-4t", "workers__topology": "4x4x6"},
            "spec.workers[0].topology",
            "multiples of 4",
        ),
        (
            {"workers__type": "ct5p-hightpu-4t", "workers__topology": "8x4x4"},
            "spec.workers[0].topology",
            "the smallest first",
        ),
        ({"workers__numSlices": None}, "spec.workers[0].numSlices", "from 1"),
        ({"workers__numSlices": 0}, "spec.workers[0].numSlices", "from 1"),
        ({"workers__maxSliceRestarts": -1}, "spec.workers[0].maxSliceRestarts", "from 0"),
        (
            {"workers__terminationGracePeriodSeconds": 1.5},
            "spec.workers[0].terminationGracePeriodSeconds",
            "whole number",
        ),
        ({"workers__nodeSelector": {"a": True}}, "spec.workers[0].nodeSelector.a", "quotes"),
        ({"workers__priorityClass": "x"}, "spec.workers[0].priorityClass", "priorityClassName?"),
        ({"spec__controller": None}, "spec.controller", "an object"),
        ({"controller__deploymentMode": None}, "spec.controller.deploymentMode", "default"),
        (
            {"controller__deploymentMode": "colocate"},
            "spec.controller.deploymentMode",
            "colocate_head_with_workers",
        ),
        ({"controller__elasticSlices": 3}, "spec.controller.elasticSlices", "from 0 to 2"),
        ({"controller__elasticslices": 1}, "spec.controller.elasticslices", "elasticSlices?"),
        (
            {"controller__mainContainerName": "mian"},
            "spec.controller.mainContainerName",
            "a container of the template: main",
        ),
        ({"controller__template": {}}, "spec.controller.template.spec", "a pod's spec"),
        (
            {"controller__template": {"spec": {"containers": []}}},
            "spec.controller.template.spec.containers",
            "at least one container",
        ),
        (
            {"controller__template": {"spec": {"containers": [MAIN, {"name": "pathways-rm"}]}}},
            "spec.controller.template.spec.containers[1].name",
            "another name",
        ),
        (
            {
                "controller__template": {
                    "spec": {"containers": [{**MAIN, "env": [{"name": "A", "value": 1}]}]}
                }
            },
            "spec.controller.template.spec.containers[0].env[0].value",
            "quotes",
        ),
        (
            {"controller__enableMetricsCollection": True, "spec__customComponents": ALL_OURS},
            "spec.controller.enableMetricsCollection",
            "false with the image",
        ),
        (
            {"spec__customComponents": [{"componentType": "proxy"}]},
            "spec.customComponents[0].componentType",
            "proxy_server",
        ),
        (
            {"spec__customComponents": [ALL_OURS[0], ALL_OURS[0]]},
            "spec.customComponents[1].componentType",
            "each part once",
        ),
        (
            {"spec__customComponents": [{"componentType": "colocated_python_sidecar"}]},
            "spec.customComponents[0].image",
            "an image",
        ),
        (
            {"spec__customComponents": [{"componentType": "worker", "customFlags": "--a"}]},
            "spec.customComponents[0].customFlags",
            "a list",
        ),
        (
            {"spec__customComponents": [{"componentType": "worker", "flags": []}]},
            "spec.customComponents[0].flags",
            "did you mean customFlags?",
        ),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, Any], field: str, said: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        render_pathways_job(manifest(**changes))
    assert caught.value.field == field
    assert field in caught.value.message
    assert said in str(caught.value)


def test_the_example_is_three_slices_of_which_one_may_be_missing() -> None:
    text = (YAMLS / "elastic-training.yaml").read_text(encoding="utf-8")
    jobset = render_pathways_job(yaml.safe_load(text))
    worker = job(jobset, "worker")
    assert (worker["replicas"], worker["template"]["spec"]["backoffLimit"]) == (3, 16)
    assert "--instance_type=tpuv5e:4x8" in part(jobset, "pathways_server")["args"]
    assert "--num_elastic_slices=1" in part(jobset, "proxy_server")["args"]
