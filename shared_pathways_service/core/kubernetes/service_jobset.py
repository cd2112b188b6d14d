"""The JobSet of a Shared Pathways Service: a head with the resource manager, and its workers.

Flags, ports, variables and the form of the JobSet are those of the public documents and manifests
of Pathways on Cloud, but for two: the head is restarted when it dies, and it restarts in place.
What it knew went with it: workers and proxies tell a resource manager of ours what was so.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from shared_pathways_service import constants
from shared_pathways_service.core.instances import parse_instance_counts
from shared_pathways_service.core.kubernetes import jobset_parts as parts
from shared_pathways_service.core.kubernetes import names
from shared_pathways_service.core.kubernetes.images import is_ours
from shared_pathways_service.core.kubernetes.pod_parts import env, toleration
from shared_pathways_service.core.request_fields import check_bucket
from shared_pathways_service.core.topology import InstanceType
from shared_pathways_service.core.validation import check_int
from shared_pathways_service.errors import InvalidRequestError

__all__ = ["DEFAULT_SERVER_IMAGE", "ServiceInputs", "service_address", "service_jobset"]

DEFAULT_SERVER_IMAGE: Final = f"{parts.SERVER_REPOSITORY}:latest"

#: Failures of a Job before it is given up, which ends the whole service: as good as never.
_BACKOFF_LIMIT: Final = 1_000_000
#: The end of the log stands in the pod's status, where it tells why a server crashes.
_LOG_AS_MESSAGE: Final = "FallbackToLogsOnError"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServiceInputs:
    """All that a service's JobSet is made of.

    Attributes:
      name: The JobSet's, a DNS label of at most 22 characters that begins with a letter.
      instances: Slices by instance type, spares included, e.g. ``{"tpuv6e:2x2": 2}``. Several
        types need an image of ours.
      gcs_bucket: ``gs://…`` for scratch data; empty: none is named.
      image: Of resource manager and workers.
      spares: How many slices of each type are kept free for re-placement; an image of ours.
      host_network: Whether pods use their nodes' network, as the Pathways controller has it.
      labels: More labels, for the JobSet.
    """

    name: str
    instances: Mapping[str, int]
    namespace: str = "default"
    gcs_bucket: str = ""
    image: str = DEFAULT_SERVER_IMAGE
    spares: int = 0
    host_network: bool = False
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        parts.check_jobset_name(self.name)
        check_bucket(self.gcs_bucket or None)
        counts = parse_instance_counts(self.instances, field="instances")
        check_int("spares", self.spares, low=0, high=min(counts.values()) - 1)
        if is_ours(self.image):
            return
        if len(counts) > 1:
            raise InvalidRequestError(
                "instances", dict(self.instances), f"one instance type with the image {self.image}"
            )
        if self.spares:
            raise InvalidRequestError(
                "spares",
                self.spares,
                f"none with the image {self.image}, whose resource manager knows none",
            )

    @property
    def counts(self) -> dict[InstanceType, int]:
        """Slices by instance type."""
        return parse_instance_counts(self.instances, field="instances")


def service_address(name: str) -> str:
    """Returns ``host:port`` of the resource manager of the service of that name."""
    return f"{name}-{names.HEAD_JOB}-0-0.{name}:{constants.RESOURCE_MANAGER_PORT}"


def service_jobset(inputs: ServiceInputs) -> dict[str, Any]:
    """Returns the JobSet (jobset.x-k8s.io/v1alpha2)."""
    workers = [
        _worker_job(inputs, _worker_name(number, kind), kind, count)
        for number, (kind, count) in enumerate(inputs.counts.items())
    ]
    return {
        "apiVersion": parts.API_VERSION,
        "kind": "JobSet",
        "metadata": {
            "name": inputs.name,
            "namespace": inputs.namespace,
            "labels": {**inputs.labels, names.LABEL_MANAGED_BY: names.MANAGED_BY},
        },
        "spec": {
            "coordinator": dict(parts.COORDINATOR),
            # Workers and proxies look for the head while it is still on its way up.
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "startupPolicy": dict(parts.STARTUP_POLICY),
            "successPolicy": dict(parts.SUCCESS_POLICY),
            "replicatedJobs": [_head_job(inputs), *workers],
        },
    }


def _worker_name(number: int, kind: InstanceType) -> str:
    return "worker" if not number else f"worker-{kind.family}-{kind.topology}"


def _head_job(inputs: ServiceInputs) -> dict[str, Any]:
    variables = [parts.skip_metadata_server(), *parts.place_variables()]
    if is_ours(inputs.image):
        variables += parts.bind_variables()
        if inputs.spares:
            variables.append(env("SPS_NUM_SPARES", str(inputs.spares)))
    container = {
        "name": names.RM_CONTAINER,
        "image": inputs.image,
        "args": parts.rm_arguments(inputs.counts, inputs.gcs_bucket),
        "env": variables,
        "ports": parts.container_ports(parts.RM_PORTS),
        "terminationMessagePolicy": _LOG_AS_MESSAGE,
    }
    return _replicated_job(
        names.HEAD_JOB,
        replicas=1,
        pods=1,
        exclusive=parts.HEAD_TOPOLOGY,
        pod={**_pod(inputs), "containers": [container]},
    )


def _worker_job(inputs: ServiceInputs, name: str, kind: InstanceType, count: int) -> dict[str, Any]:
    container = {
        "name": names.WORKER_CONTAINER,
        "image": inputs.image,
        "args": [
            f"--server_port={constants.WORKER_PORT}",
            parts.rm_flag(),
            *parts.scratch(inputs.gcs_bucket),
        ],
        "env": [
            parts.head_variable(),
            *parts.slice_variables(),
            *parts.place_variables(),
            *(_worker_variables(inputs, kind) if is_ours(inputs.image) else ()),
        ],
        "ports": parts.container_ports(parts.WORKER_PORTS),
        "terminationMessagePolicy": _LOG_AS_MESSAGE,
        "resources": parts.tpu_limits(kind),
    }
    pod = {
        **_pod(inputs),
        "nodeSelector": parts.tpu_node_selector(kind),
        "tolerations": [toleration("google.com/tpu:NoSchedule")],
        "containers": [container],
    }
    return _replicated_job(
        name,
        replicas=count,
        pods=kind.hosts,
        exclusive=parts.WORKER_TOPOLOGY,
        pod=pod,
    )


def _worker_variables(inputs: ServiceInputs, kind: InstanceType) -> list[dict[str, Any]]:
    variables = parts.own_worker_variables(kind)
    if len(inputs.counts) > 1:
        # Job indices are counted anew in each type, and slices need names of their own.
        name = f"{kind.family}-{kind.topology}-$(MEGASCALE_SLICE_ID)"
        variables.append({"name": "SPS_SLICE_ID", "value": name})
    return variables


def _pod(inputs: ServiceInputs) -> dict[str, Any]:
    # In place, it comes back at once and with its address; a new pod waits for a back-off.
    pod: dict[str, Any] = {"restartPolicy": "OnFailure"}
    if inputs.host_network:
        pod |= parts.HOST_NETWORK
    return pod


def _replicated_job(
    name: str, *, replicas: int, pods: int, exclusive: str, pod: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "name": name,
        "replicas": replicas,
        "template": {
            "metadata": {"annotations": {parts.EXCLUSIVE: exclusive}},
            "spec": {
                "backoffLimit": _BACKOFF_LIMIT,
                "completionMode": "Indexed",
                "completions": pods,
                "parallelism": pods,
                "template": {"spec": dict(pod)},
            },
        },
    }
