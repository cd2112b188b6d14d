"""Creates node pools as in GKE: Node objects with labels, capacities and taints."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from shared_pathways_service.api.topology import FAMILY_NAMES, InstanceType
from shared_pathways_service.testing.testbed.api import Object

__all__ = [
    "MANAGED_LABEL",
    "NAMESPACE_LABEL",
    "NODE_SELECTOR",
    "UNREACHABLE_TAINTS",
    "NodePool",
    "condition",
    "cpu_pool",
    "lease",
    "node_objects",
    "node_status",
    "tpu_pools",
    "type_of",
]

#: A label of every node of the testbed.
MANAGED_LABEL = "testbed.sps.dev/managed"
#: The namespace whose pods alone go to a node.
NAMESPACE_LABEL = "testbed.sps.dev/namespace"
#: The annotation by which a namespace says so (admission plug-in PodNodeSelector).
NODE_SELECTOR = "scheduler.alpha.kubernetes.io/node-selector"

#: The taint of a node that its cloud knows to be lost: its pods are released at once.
UNREACHABLE_TAINTS = (
    {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"},
)

#: The control plane attaches volumes to the node, as it does by a kubelet's default.
_ATTACHES = {"volumes.kubernetes.io/controller-managed-attach-detach": "true"}
_TPU_TAINT = {"key": "google.com/tpu", "value": "present", "effect": "NoSchedule"}
_LEASE_S = 40


@dataclasses.dataclass(frozen=True, kw_only=True)
class NodePool:
    """A number of nodes that are alike.

    Attributes:
      namespace: The only namespace whose pods run there; empty: any.
      instance_type: Of the one slice whose hosts the nodes are; None: they have no TPUs.
    """

    name: str
    nodes: int
    namespace: str = ""
    instance_type: InstanceType | None = None

    @property
    def node_names(self) -> list[str]:
        """Names of its nodes."""
        return [f"{self.name}-{number}" for number in range(self.nodes)]


def tpu_pools(prefix: str, counts: Mapping[InstanceType, int], namespace: str) -> list[NodePool]:
    """Returns a node pool for each slice, named ``PREFIXtpuv6e-2x2-0`` and so on."""
    return [
        NodePool(
            name=f"{prefix}{kind.family}-{kind.topology}-{number}",
            nodes=kind.hosts,
            namespace=namespace,
            instance_type=kind,
        )
        for kind, count in counts.items()
        for number in range(count)
    ]


def cpu_pool(prefix: str, nodes: int, namespace: str) -> NodePool:
    """Returns the pool of nodes without TPUs, where heads and proxies go."""
    return NodePool(name=f"{prefix}cpu", nodes=nodes, namespace=namespace)


def node_objects(pool: NodePool) -> list[Object]:
    """Returns the Node objects of a pool."""
    labels = {
        MANAGED_LABEL: "true",
        "cloud.google.com/gke-nodepool": pool.name,
        "kubernetes.io/os": "linux",
        "topology.kubernetes.io/zone": "testbed-a",
    }
    if pool.namespace:
        labels[NAMESPACE_LABEL] = pool.namespace
    if (kind := pool.instance_type) is not None:
        labels |= {
            "cloud.google.com/gke-tpu-accelerator": kind.accelerator_label,
            "cloud.google.com/gke-tpu-topology": kind.topology,
            "cloud.google.com/gke-accelerator-count": str(kind.chips_per_host),
            "node.kubernetes.io/instance-type": kind.machine_type,
        }
    return [
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": name,
                "labels": {**labels, "kubernetes.io/hostname": name},
                "annotations": dict(_ATTACHES),
            },
            "spec": {"taints": [_TPU_TAINT] if kind is not None else []},
        }
        for name in pool.node_names
    ]


def type_of(labels: Mapping[str, str]) -> str:
    """Returns the instance type of a node of `node_objects`; empty without TPUs."""
    family = FAMILY_NAMES.get(labels.get("node.kubernetes.io/instance-type", ""))
    return f"{family}:{labels['cloud.google.com/gke-tpu-topology']}" if family else ""


def node_status(pool: NodePool, *, kubelet_port: int, now: str) -> Object:
    """Returns the status of a pool's node that is up; times are RFC 3339."""
    capacity = {"cpu": "64", "memory": "512Gi", "ephemeral-storage": "1Ti", "pods": "110"}
    if pool.instance_type is not None:
        capacity["google.com/tpu"] = str(pool.instance_type.chips_per_host)
    return {
        "capacity": capacity,
        "allocatable": capacity,
        # No host name: the API server would look it up.
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet_port}},
        "conditions": [condition("True", "KubeletReady", now)],
        "nodeInfo": {
            "architecture": "amd64",
            "bootID": "",
            "containerRuntimeVersion": "testbed://1",
            "kernelVersion": "",
            "kubeProxyVersion": "",
            "kubeletVersion": "v1.36.3",
            "machineID": "",
            "operatingSystem": "linux",
            "osImage": "testbed",
            "systemUUID": "",
        },
    }


def condition(status: str, reason: str, now: str) -> Object:
    """Returns a node's Ready condition."""
    times = {"lastHeartbeatTime": now, "lastTransitionTime": now}
    return {"type": "Ready", "status": status, "reason": reason, **times}


def lease(node: str, now: str) -> Object:
    """Returns a node's Lease, renewed just now; `now` is RFC 3339 with microseconds."""
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": node, "namespace": "kube-node-lease"},
        "spec": {"holderIdentity": node, "leaseDurationSeconds": _LEASE_S, "renewTime": now},
    }
