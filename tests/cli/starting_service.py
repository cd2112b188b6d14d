"""Pods of a service that starts."""

from __future__ import annotations

from shared_pathways_service.cluster_state.readiness import ServiceReadiness, read_readiness
from shared_pathways_service.cluster_state.services import read_service
from shared_pathways_service.manifests.service_inputs import ServiceInputs
from shared_pathways_service.manifests.service_jobset import service_jobset
from tests.cluster_state.objects import Object, pod, running

INPUTS = ServiceInputs(name="pw", instances={"tpuv6e:2x2": 2})


def labels(job: str, index: int) -> dict[str, str]:
    return {
        "jobset.sigs.k8s.io/jobset-name": "pw",
        "jobset.sigs.k8s.io/replicatedjob-name": job,
        "jobset.sigs.k8s.io/job-index": str(index),
    }


HEAD = running("head", container="pathways-rm", labels=labels("pathways-head", 0), node="cpu")


FIRST = running("first", container="pathways-worker", labels=labels("worker", 0), node="tpu-0")


SECOND = pod("second", container="pathways-worker", labels=labels("worker", 1), node="")


def readiness(pods: list[Object]) -> ServiceReadiness:
    service = read_service(service_jobset(INPUTS))
    assert service is not None
    return read_readiness(service, pods)
