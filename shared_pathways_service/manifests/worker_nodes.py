"""Chooses the nodes of a service's workers, and the chips that their pods request.

Workers of the engine ``local`` are on hosts of TPUs. Executors compute on the service's platform,
so their workers' pods request its chips: TPUs, GPUs, or none.

Sources: the public documentation of GKE on TPUs and on GPUs, of NVIDIA's device plug-in, and of
NCCL.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Final

from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.constants import CPU, CUDA
from shared_pathways_service.manifests import jobset_parts as parts
from shared_pathways_service.manifests import names
from shared_pathways_service.manifests.pod_parts import env, toleration
from shared_pathways_service.manifests.service_inputs import ServiceInputs

__all__ = ["WorkerNodes", "worker_nodes"]

_GPU: Final = "nvidia.com/gpu"
#: Where GKE mounts the driver's libraries. Elsewhere NVIDIA's container runtime makes them known.
_DRIVER_FOLDERS: Final = "/usr/local/nvidia/lib:/usr/local/nvidia/lib64"
#: The volume of the shared memory through which NCCL copies between GPUs that cannot reach each
#: other's memory. A container's own has 64 MiB.
_SHARED_MEMORY: Final = "dshm"


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkerNodes:
    """The parts of a worker's Job by which its pods get to their nodes and chips.

    Attributes:
      exclusive: The label of the domain that each slice has to itself; empty: none.
      pod: Fields of the pod.
      container: Fields of the worker's container.
      variables: Variables of the worker.
    """

    exclusive: str = ""
    pod: dict[str, Any] = dataclasses.field(default_factory=dict)
    container: dict[str, Any] = dataclasses.field(default_factory=dict)
    variables: tuple[dict[str, Any], ...] = ()


def worker_nodes(inputs: ServiceInputs, kind: InstanceType) -> WorkerNodes:
    """Returns the nodes and chips of the workers of one instance type."""
    if inputs.has_executors and inputs.platform == CPU:
        return _any_nodes(inputs.name)
    if inputs.has_executors and inputs.platform == CUDA:
        return _gpu_nodes(kind)
    return _tpu_nodes(kind)


def _tpu_nodes(kind: InstanceType) -> WorkerNodes:
    return WorkerNodes(
        exclusive=parts.WORKER_TOPOLOGY,
        pod={
            "nodeSelector": parts.tpu_node_selector(kind),
            "tolerations": [toleration("google.com/tpu:NoSchedule")],
        },
        container={"resources": parts.tpu_limits(kind)},
    )


def _gpu_nodes(kind: InstanceType) -> WorkerNodes:
    # Nodes with GPUs have no labels of topologies, and may have the GPUs of several hosts.
    return WorkerNodes(
        pod={
            "tolerations": [toleration(f"{_GPU}:NoSchedule")],
            "volumes": [{"name": _SHARED_MEMORY, "emptyDir": {"medium": "Memory"}}],
        },
        container={
            "resources": {"limits": {_GPU: str(kind.chips_per_host)}},
            "volumeMounts": [{"name": _SHARED_MEMORY, "mountPath": "/dev/shm"}],  # noqa: S108
        },
        variables=(env("LD_LIBRARY_PATH", _DRIVER_FOLDERS),),
    )


def _any_nodes(service: str) -> WorkerNodes:
    # Pods that request nothing could all get to one node, whose loss would be that of all slices.
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {names.LABEL_JOBSET: service}},
    }
    return WorkerNodes(pod={"topologySpreadConstraints": [spread]})
