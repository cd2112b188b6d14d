"""PathwaysJob: the JobSet that its controller makes of it, and the head."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml

from shared_pathways_service.manifests.pathways_job import render_pathways_job
from tests.manifests.documented import YAMLS
from tests.manifests.pathways_jobs import (
    MAIN,
    container,
    job,
    manifest,
    part,
    pod,
    ports,
    variables,
)

# ---- the JobSet as a whole


def test_the_jobset_has_the_name_labels_and_annotations_of_the_job() -> None:
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


def test_the_head_comes_first_and_its_end_ends_the_job() -> None:
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


def test_without_a_program_they_are_the_head() -> None:
    jobset = render_pathways_job(manifest(controller__template=None))
    spec = pod(jobset, "pathways-head")
    assert "initContainers" not in spec
    assert [one["name"] for one in spec["containers"]] == ["pathways-rm", "pathways-proxy"]
    assert not any("restartPolicy" in one for one in spec["containers"])
    assert "successPolicy" not in jobset["spec"]


def test_the_main_container_is_chosen_by_its_name() -> None:
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


def test_without_a_directory_there_is_no_flag() -> None:
    jobset = render_pathways_job(manifest(spec__pathwaysDir=None))
    for name in ("pathways_server", "proxy_server", "worker"):
        assert not any("gcs_scratch" in flag for flag in part(jobset, name)["args"])


def test_the_example_is_three_slices_of_which_one_may_be_missing() -> None:
    text = (YAMLS / "elastic-training.yaml").read_text(encoding="utf-8")
    jobset = render_pathways_job(yaml.safe_load(text))
    worker = job(jobset, "worker")
    assert (worker["replicas"], worker["template"]["spec"]["backoffLimit"]) == (3, 16)
    assert "--instance_type=tpuv5e:4x8" in part(jobset, "pathways_server")["args"]
    assert "--num_elastic_slices=1" in part(jobset, "proxy_server")["args"]
