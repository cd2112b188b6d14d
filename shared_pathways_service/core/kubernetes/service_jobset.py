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
from shared_pathways_service.core.kubernetes import names
from shared_pathways_service.core.kubernetes.images import is_ours
from shared_pathways_service.core.kubernetes.pod_parts import (
    env,
    env_from_annotation,
    env_from_label,
    literal,
    toleration,
)
from shared_pathways_service.core.request_fields import check_bucket
from shared_pathways_service.core.topology import InstanceType
from shared_pathways_service.core.validation import DNS_LABEL_LIMIT, check_dns_label, check_int
from shared_pathways_service.errors import InvalidRequestError

__all__ = ["DEFAULT_SERVER_IMAGE", "ServiceInputs", "service_address", "service_jobset"]

DEFAULT_SERVER_IMAGE: Final = "us-docker.pkg.dev/cloud-tpu-v2-images/pathways/server:latest"

_EXCLUSIVE: Final = "alpha.jobset.sigs.k8s.io/exclusive-topology"
_RM_PORTS: Final = (constants.RESOURCE_MANAGER_PORT, 29002)
_WORKER_PORTS: Final = (constants.WORKER_PORT, 29006, 8471, 8080)
#: Failures of a Job before it is given up, which ends the whole service: as good as never.
_BACKOFF_LIMIT: Final = 1_000_000
#: The end of the log stands in the pod's status, where it tells why a server crashes.
_LOG_AS_MESSAGE: Final = "FallbackToLogsOnError"
#: A pod that is deleted or evicted and ends with 0 counts as work that is done: its Job, and with
#: the head's the whole service, would be complete. As a shell reports SIGTERM.
_STOPPED: Final = "143"
_ALL_ADDRESSES: Final = "0.0.0.0"  # noqa: S104 - a pod's own


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
        _check_name(self.name)
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
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": inputs.name,
            "namespace": inputs.namespace,
            "labels": {**inputs.labels, names.LABEL_MANAGED_BY: names.MANAGED_BY},
        },
        "spec": {
            "coordinator": {"replicatedJob": names.HEAD_JOB, "jobIndex": 0, "podIndex": 0},
            # Workers and proxies look for the head while it is still on its way up.
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "startupPolicy": {"startupPolicyOrder": "InOrder"},
            "successPolicy": {"operator": "All", "targetReplicatedJobs": [names.HEAD_JOB]},
            "replicatedJobs": [_head_job(inputs), *workers],
        },
    }


def _check_name(name: str) -> None:
    """Checks the JobSet's name, which the head's host name has twice, in a label of every pod."""
    limit = (DNS_LABEL_LIMIT - len(f"-{names.HEAD_JOB}-0-0.")) // 2
    why = f"the label with the head's host name has it twice in {DNS_LABEL_LIMIT} characters"
    check_dns_label("name", name, limit=limit, why=why)
    if not name[0].isalpha():
        raise InvalidRequestError("name", name, "a name that begins with a letter")


def _worker_name(number: int, kind: InstanceType) -> str:
    return "worker" if not number else f"worker-{kind.family}-{kind.topology}"


def _head_job(inputs: ServiceInputs) -> dict[str, Any]:
    arguments = [f"--server_port={constants.RESOURCE_MANAGER_PORT}", *_scratch(inputs)]
    arguments += [
        "--node_type=resource_manager",
        f"--instance_count={','.join(map(str, inputs.counts.values()))}",
        f"--instance_type={','.join(map(str, inputs.counts))}",
    ]
    variables = [env("TPU_SKIP_MDS_QUERY", "true"), *_place_variables()]
    if is_ours(inputs.image):
        variables += [
            env("SPS_BIND_ADDRESS", _ALL_ADDRESSES),
            env("SPS_STOP_EXIT_CODE", _STOPPED),
        ]
        if inputs.spares:
            variables.append(env("SPS_NUM_SPARES", str(inputs.spares)))
    container = {
        "name": names.RM_CONTAINER,
        "image": inputs.image,
        "args": arguments,
        "env": variables,
        "ports": _ports(_RM_PORTS),
        "terminationMessagePolicy": _LOG_AS_MESSAGE,
    }
    return _replicated_job(
        names.HEAD_JOB,
        replicas=1,
        pods=1,
        exclusive="kubernetes.io/hostname",
        pod={**_pod(inputs), "containers": [container]},
    )


def _worker_job(inputs: ServiceInputs, name: str, kind: InstanceType, count: int) -> dict[str, Any]:
    container = {
        "name": names.WORKER_CONTAINER,
        "image": inputs.image,
        "args": [
            f"--server_port={constants.WORKER_PORT}",
            f"--resource_manager_address=$(PATHWAYS_HEAD):{constants.RESOURCE_MANAGER_PORT}",
            *_scratch(inputs),
        ],
        "env": [
            env_from_label("PATHWAYS_HEAD", "jobset.sigs.k8s.io/coordinator"),
            env_from_label("MEGASCALE_SLICE_ID", names.LABEL_JOB_INDEX),
            env_from_label("MEGASCALE_NUM_SLICES", "jobset.sigs.k8s.io/replicatedjob-replicas"),
            *_place_variables(),
            *(_worker_variables(inputs, kind) if is_ours(inputs.image) else ()),
        ],
        "ports": _ports(_WORKER_PORTS),
        "terminationMessagePolicy": _LOG_AS_MESSAGE,
        "resources": {"limits": {"google.com/tpu": str(kind.chips_per_host)}},
    }
    pod = {
        **_pod(inputs),
        "nodeSelector": {
            "cloud.google.com/gke-tpu-accelerator": kind.accelerator_label,
            "cloud.google.com/gke-tpu-topology": kind.topology,
        },
        "tolerations": [toleration("google.com/tpu:NoSchedule")],
        "containers": [container],
    }
    return _replicated_job(
        name,
        replicas=count,
        pods=kind.hosts,
        exclusive="cloud.google.com/gke-nodepool",
        pod=pod,
    )


def _worker_variables(inputs: ServiceInputs, kind: InstanceType) -> list[dict[str, Any]]:
    variables = [
        env("SPS_BIND_ADDRESS", _ALL_ADDRESSES),
        env("SPS_INSTANCE_TYPE", str(kind)),
        env("SPS_STOP_EXIT_CODE", _STOPPED),
        {"name": "SPS_HOST", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
    ]
    if len(inputs.counts) > 1:
        # Job indices are counted anew in each type, and slices need names of their own.
        name = f"{kind.family}-{kind.topology}-$(MEGASCALE_SLICE_ID)"
        variables.append({"name": "SPS_SLICE_ID", "value": name})
    return variables


def _place_variables() -> list[dict[str, Any]]:
    return [
        env_from_annotation("JOBSET_NAME", names.LABEL_JOBSET),
        env_from_annotation("REPLICATED_JOB_NAME", names.LABEL_REPLICATED_JOB),
    ]


def _scratch(inputs: ServiceInputs) -> list[str]:
    if not inputs.gcs_bucket:
        return []
    return [literal(f"--gcs_scratch_location={inputs.gcs_bucket}")]


def _ports(ports: tuple[int, ...]) -> list[dict[str, Any]]:
    return [{"containerPort": port, "protocol": "TCP"} for port in ports]


def _pod(inputs: ServiceInputs) -> dict[str, Any]:
    # In place, it comes back at once and with its address; a new pod waits for a back-off.
    pod: dict[str, Any] = {"restartPolicy": "OnFailure"}
    if inputs.host_network:
        pod |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    return pod


def _replicated_job(
    name: str, *, replicas: int, pods: int, exclusive: str, pod: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "name": name,
        "replicas": replicas,
        "template": {
            "metadata": {"annotations": {_EXCLUSIVE: exclusive}},
            "spec": {
                "backoffLimit": _BACKOFF_LIMIT,
                "completionMode": "Indexed",
                "completions": pods,
                "parallelism": pods,
                "template": {"spec": dict(pod)},
            },
        },
    }
