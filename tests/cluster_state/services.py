"""Services and the pods of their servers."""

from __future__ import annotations

from typing import Any

from shared_pathways_service.cluster_state.services import Service, read_service
from shared_pathways_service.manifests import names
from shared_pathways_service.manifests.service_inputs import ServiceInputs
from shared_pathways_service.manifests.service_jobset import service_jobset
from tests.cluster_state import objects
from tests.cluster_state.objects import Object

OURS = "r.io/shared-pathways-service/server:1"


def service_of(instances: dict[str, int]) -> Service:
    service = read_service(
        service_jobset(ServiceInputs(name="pw", instances=instances, image=OURS))
    )
    assert service is not None
    return service


#: Two slices of two hosts each.
SERVICE = service_of({"tpuv6e:2x4": 2})


def labels(job: str, index: int = 0, host: int = 0, service: str = "pw") -> dict[str, str]:
    return {
        names.LABEL_JOBSET: service,
        names.LABEL_REPLICATED_JOB: job,
        names.LABEL_JOB_INDEX: str(index),
        "batch.kubernetes.io/job-completion-index": str(host),
    }


def head(make: Any = objects.running, **more: Any) -> Object:
    pod: Object = make(
        name="head", container=names.RM_CONTAINER, labels=labels(names.HEAD_JOB), **more
    )
    return pod


def worker(index: int, host: int, make: Any = objects.running, **more: Any) -> Object:
    pod: Object = make(
        **{"name": f"w-{index}-{host}", "container": names.WORKER_CONTAINER, **more},
        labels=labels("worker", index, host),
    )
    return pod
