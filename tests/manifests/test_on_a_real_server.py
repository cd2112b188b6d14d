"""What a real API server says of the manifests, and of what one may do."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from harness.session_requests import with_fields
from shared_pathways_service.api.proxy_options import ProxyOptions
from shared_pathways_service.cluster_state.service_reading import difference, read_inputs
from shared_pathways_service.cluster_state.services import read_service
from shared_pathways_service.constants import PLATFORMS
from shared_pathways_service.homes.kubernetes.link_archive import link_archive
from shared_pathways_service.manifests.hotswap_jobset import recipe
from shared_pathways_service.manifests.link_parts import LinkInputs
from shared_pathways_service.manifests.pathways_job import render_pathways_job
from shared_pathways_service.manifests.permissions import (
    evaluate,
    granting_rules,
    needed,
    rules_review,
)
from shared_pathways_service.manifests.priority_classes import priority_classes
from shared_pathways_service.manifests.proxy_inputs import ProxyJobInputs
from shared_pathways_service.manifests.proxy_job import link_config_map, proxy_job, token_secret
from shared_pathways_service.manifests.rbac import operator_rbac, tenant_rbac
from shared_pathways_service.manifests.service_inputs import ServiceInputs
from shared_pathways_service.manifests.service_jobset import service_jobset, service_objects
from shared_pathways_service.testing.testbed import ApiRefused, Namespace, Testbed, new_namespace
from tests.manifests.documented import ELASTIC, PROXY, SERVICE

OURS = with_fields(
    PROXY,
    image="r.io/shared-pathways-service/proxy_server:0.1.0",
    user="Ada Lövelace $(HOME)",
    team="a/b",
    labels={"cost/center": "7"},
    elastic_slices=1,
    priority=-2,
    queue_timeout_s=math.inf,
    created_by_pid=7,
    options=ProxyOptions.from_list(
        [
            "sidecar:true",
            "xla_flags:--xla_a=$(X) --xla_b",
            "cpu:500m",
            "memory:1.5Gi",
            "node_selector:cloud.google.com/gke-nodepool=cpu-np",
            "tolerations:dedicated=proxies:NoSchedule,spot",
        ]
    ),
)
OUR_SERVICE = ServiceInputs(
    name="pw",
    instances={"tpuv6e:4x4": 2, "tpuv5e:2x2": 3},
    image="r.io/shared-pathways-service/server:0.1.0",
    spares=1,
    state_size="1.5Gi",
    storage_class="fast",
    lease=True,
    labels={"cost/center": "7"},
)
ON_CPUS, ON_GPUS, ON_TPUS = (
    dataclasses.replace(OUR_SERVICE, engine="distributed", platform=name) for name in PLATFORMS
)
#: With all that there is (what needs more than baseline pod security is of the node's).
FULL_SERVICE = dataclasses.replace(
    SERVICE,
    sidecar_image="r.io/sidecar:jax-0.9.0",
    max_slice_restarts=3,
    server_args=("--a=$(X)",),
    worker_args=("--b",),
    gcsfuse=True,
    host_network=True,
)
#: Every field that a PathwaysJob may have.
FULL_JOB = {
    "apiVersion": "pathways-job.pathways.domain/v1",
    "kind": "PathwaysJob",
    "metadata": {"name": "full", "labels": {"a": "b"}, "annotations": {"c": "d"}},
    "spec": {
        "maxRestarts": 2,
        "pathwaysDir": "gs://bucket/$(A)",
        "pathwaysVersion": "jax-0.9.0",
        "workers": [
            {
                "type": "ct5p-hightpu-4t",
                "topology": "2x2x4",
                "numSlices": 2,
                "maxSliceRestarts": 3,
                "terminationGracePeriodSeconds": 5,
                "priorityClassName": "system-node-critical",
                "nodeSelector": {"reservation": "r"},
            }
        ],
        "controller": {
            "deploymentMode": "colocate_head_with_workers",
            "elasticSlices": 1,
            "enableMetricsCollection": True,
            "mainContainerName": "mine",
            "template": {
                "metadata": {"labels": {"e": "f"}, "annotations": {"g": "h"}},
                "spec": {
                    "initContainers": [{"name": "get", "image": "x"}],
                    "containers": [
                        {"name": "mine", "image": "x"},
                        {"name": "beside", "image": "x"},
                    ],
                    "tolerations": [{"operator": "Exists"}],
                },
            },
        },
        "customComponents": [
            {
                "componentType": part,
                "image": "r.io/mine:1",
                "customFlags": ["--a=$(B)"],
                "customEnv": [{"name": "B", "value": "b"}],
            }
            for part in ("pathways_server", "worker", "proxy_server", "colocated_python_sidecar")
        ],
    },
}
HEADLESS_JOB = {
    **ELASTIC,
    "spec": {**ELASTIC["spec"], "controller": {"deploymentMode": "default"}},
}
LINK = LinkInputs(keep_s=1800, image="python:3.13-slim")
JOBS, JOBSETS = "batch/v1/jobs", "jobset.x-k8s.io/v1alpha2/jobsets"


@pytest.fixture
def restricted(testbed: Testbed) -> Iterator[Namespace]:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    with new_namespace(testbed, cpu_nodes=0, labels=labels) as made:
        yield made


@pytest.fixture
def baseline(testbed: Testbed) -> Iterator[Namespace]:
    labels = {"pod-security.kubernetes.io/enforce": "baseline"}
    with new_namespace(testbed, cpu_nodes=0, labels=labels) as made:
        yield made


def try_to_create(namespace: Namespace, resource: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Has the server check all of an object, unknown fields too, and keep nothing."""
    metadata = {**body["metadata"], "namespace": namespace.name}
    params = {"dryRun": "All", "fieldValidation": "Strict"}
    return namespace.testbed.api.request(
        "POST", namespace.path(resource), body={**body, "metadata": metadata}, params=params
    )


def pod_of(job: Mapping[str, Any]) -> dict[str, Any]:
    """The pod that a Job makes: pod security concerns pods."""
    template = job["spec"]["template"]
    return {"metadata": {"name": "pod", **template.get("metadata", {})}, "spec": template["spec"]}


@pytest.mark.parametrize(
    "inputs",
    [
        PROXY,
        OURS,
        dataclasses.replace(PROXY, link=LINK),
        dataclasses.replace(OURS, link=LINK),
    ],
    ids=["googles", "ours", "googles-resumable", "ours-resumable"],
)
def test_a_proxy_is_accepted_under_restricted_pod_security(
    restricted: Namespace, inputs: ProxyJobInputs
) -> None:
    made = try_to_create(restricted, JOBS, proxy_job(inputs))
    assert made["metadata"]["labels"]["sps.dev/session"] == inputs.session
    try_to_create(restricted, "pods", pod_of(proxy_job(inputs)))


@pytest.mark.parametrize("option", ["host_network:true", "run_as_user:0"])
def test_what_restricted_pod_security_refuses_is_what_the_options_say(
    restricted: Namespace, option: str
) -> None:
    inputs = dataclasses.replace(PROXY, options=ProxyOptions.from_list([option]))
    with pytest.raises(ApiRefused, match="PodSecurity"):
        try_to_create(restricted, "pods", pod_of(proxy_job(inputs)))


def test_a_token_is_accepted(restricted: Namespace) -> None:
    made = try_to_create(restricted, "secrets", token_secret(OURS, "token", "uid-1"))
    assert made["metadata"]["ownerReferences"][0]["uid"] == "uid-1"


def test_the_program_of_a_link_is_accepted(restricted: Namespace) -> None:
    inputs = dataclasses.replace(PROXY, link=LINK)
    made = try_to_create(restricted, "configmaps", link_config_map(inputs, link_archive(), "uid-1"))
    assert made["metadata"]["ownerReferences"][0]["uid"] == "uid-1"


@pytest.mark.parametrize("inputs", [OUR_SERVICE, ON_CPUS, ON_GPUS, ON_TPUS])
def test_a_service_of_our_image_is_accepted_under_baseline_pod_security(
    baseline: Namespace, inputs: ServiceInputs
) -> None:
    claim, *_, jobset = service_objects(inputs)
    try_to_create(baseline, "persistentvolumeclaims", claim)
    made = try_to_create(baseline, JOBSETS, jobset)
    assert made["spec"]["coordinator"]["replicatedJob"] == "pathways-head"
    for job in jobset["spec"]["replicatedJobs"]:
        try_to_create(baseline, "pods", pod_of(job["template"]))


def test_a_worker_of_googles_image_needs_the_nodes_tmp(
    testbed: Testbed, baseline: Namespace
) -> None:
    head, worker = service_jobset(SERVICE)["spec"]["replicatedJobs"]
    try_to_create(baseline, "pods", pod_of(head["template"]))
    with pytest.raises(ApiRefused, match=r"PodSecurity.*hostPath"):
        try_to_create(baseline, "pods", pod_of(worker["template"]))
    with new_namespace(testbed, cpu_nodes=0) as namespace:
        try_to_create(namespace, "pods", pod_of(worker["template"]))


def test_what_a_service_was_made_of_is_read_back_from_the_server(testbed: Testbed) -> None:
    """So that it can be made anew, with one thing changed and all else as it was."""
    with new_namespace(testbed, cpu_nodes=0) as namespace:
        for inputs in (SERVICE, OUR_SERVICE, FULL_SERVICE, ON_CPUS, ON_GPUS, ON_TPUS):
            here = dataclasses.replace(inputs, namespace=namespace.name)
            made = try_to_create(namespace, JOBSETS, service_jobset(here))
            service = read_service(made)
            assert service is not None
            assert read_inputs(made, service) == here
            # The cluster's defaults are no difference, a field that somebody changed is one.
            again = try_to_create(namespace, JOBSETS, service_jobset(here))
            assert not difference(again["spec"], made["spec"])
            made["spec"]["replicatedJobs"][1]["template"]["spec"]["backoffLimit"] = 7
            where = difference(again["spec"], made["spec"])
            assert where == "spec.replicatedJobs[worker].template.spec.backoffLimit"


def test_the_other_rendered_objects_are_accepted(testbed: Testbed) -> None:
    with new_namespace(testbed, cpu_nodes=0) as namespace:
        for one in recipe(namespace.name):
            try_to_create(namespace, JOBSETS, one)
        for one in (*tenant_rbac(namespace.name), *operator_rbac(namespace.name)):
            group = "rbac.authorization.k8s.io/v1"
            inside = ""
            if "namespace" in one["metadata"]:
                inside = f"/namespaces/{namespace.name}"
            else:  # Another test's may be in the cluster under the usual name.
                one["metadata"]["name"] += f"-{namespace.name}"
            path = f"/apis/{group}{inside}/{one['kind'].lower()}s"
            testbed.api.request("POST", path, body=one, params={"dryRun": "All"})
        for one in priority_classes():
            one["metadata"]["name"] += f"-{namespace.name}"
            path = "/apis/scheduling.k8s.io/v1/priorityclasses"
            testbed.api.request("POST", path, body=one, params={"dryRun": "All"})


@pytest.mark.parametrize(
    "job", [ELASTIC, FULL_JOB, HEADLESS_JOB], ids=["elastic", "full", "headless"]
)
def test_the_jobset_of_a_pathways_job_is_accepted(testbed: Testbed, job: Mapping[str, Any]) -> None:
    jobset = render_pathways_job(job)
    with new_namespace(testbed, cpu_nodes=0) as namespace:
        made = try_to_create(namespace, JOBSETS, jobset)
        for replicated in jobset["spec"]["replicatedJobs"]:
            try_to_create(namespace, "pods", pod_of(replicated["template"]))
    for replicated in made["spec"]["replicatedJobs"]:
        spec = replicated["template"]["spec"]
        assert spec["completionMode"] == "Indexed"
        assert spec["template"]["spec"]["restartPolicy"] == "OnFailure"


def test_a_review_is_read_as_the_server_means_it(baseline: Namespace) -> None:
    wanted = needed(ours=True)
    for number, lacking in enumerate((wanted[:1], wanted[2:5], wanted[-1:], ())):
        rules = granting_rules(p for p in wanted if p not in lacking)
        user = baseline.user(f"role-{number}", rules)
        review = baseline.testbed.api_of(user).create(
            "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", rules_review(baseline.name)
        )
        verdict = evaluate(review, wanted)
        assert set(verdict.missing) == set(lacking)
        assert verdict.unknown == ()
