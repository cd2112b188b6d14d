"""The public recipe for hotswap on GKE: a JobSet that moves to another one's slice when it must.

Two JobSets of JAX programs over whole node pools. The one of high priority takes the nodes of the
other one when it loses a slice and no spare is free; the other one waits until a pool is back.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Final

from shared_pathways_service.core.kubernetes import jobset_parts as parts
from shared_pathways_service.core.kubernetes import names
from shared_pathways_service.core.kubernetes.pod_parts import literal
from shared_pathways_service.core.priorities import PRIORITY_CLASSES
from shared_pathways_service.core.request_fields import check_image, check_subdomain
from shared_pathways_service.core.topology import InstanceType
from shared_pathways_service.core.validation import check_dns_label, check_int

__all__ = ["HIGH", "LOW", "HotswapInputs", "hotswap_jobset", "recipe"]

_KIND: Final = InstanceType("tpuv6e", (4, 4))
_IMAGE: Final = "python:3.12"
_LOWER, _HIGHER = PRIORITY_CLASSES
_PORTS: Final = (8471, 8431)
#: Seconds that a pod stays bound to a node that is not heard of. Kubernetes' own 300 would be the
#: most of a minute's budget five times over; a node that only stumbles loses its pods.
_TOLERATED_S: Final = 5
#: Seconds for a program to end when it is told to, and restarts of all that a JobSet may have.
_GRACE_S: Final = 5
_RESTARTS: Final = 10
#: Of the 63 characters of a pod's host name, NAME-slice-NNNN-NNNNN.
_NAME_LIMIT: Final = 45
#: As process 1 it must have a handler, or it would be told in vain and killed after its grace.
_PROGRAM: Final = """\
pip install --quiet 'jax[tpu]'
exec python -u -c '
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
import jax
print("devices:", jax.device_count(), flush=True)
while True:
    time.sleep(1)
'
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class HotswapInputs:
    """All that one of the two JobSets is made of.

    Attributes:
      name: The JobSet's, a DNS label.
      slices: How many, from 1 up: a node pool each.
      priority_class: Of its pods.
      kind: Of its slices.
      image: Of its program.
      command: The program and its arguments.
      max_restarts: Restarts of all its Jobs together before it is given up, 0 or more.
      tolerated_s: Seconds, 0 or more, that its pods stay bound to a node that is not heard of.
    """

    name: str
    slices: int
    priority_class: str
    namespace: str = "default"
    kind: InstanceType = _KIND
    image: str = _IMAGE
    command: Sequence[str] = ("bash", "-c", _PROGRAM)
    max_restarts: int = _RESTARTS
    tolerated_s: int = _TOLERATED_S

    def __post_init__(self) -> None:
        check_dns_label("name", self.name, limit=_NAME_LIMIT, why="pods are named after it")
        check_subdomain("priority_class", self.priority_class)
        check_int("slices", self.slices, low=1)
        check_int("max_restarts", self.max_restarts, low=0)
        check_int("tolerated_s", self.tolerated_s, low=0)
        check_image(self.image, field="image")


#: The two of the recipe.
HIGH: Final = HotswapInputs(name="high-jax-trillium", slices=2, priority_class=_HIGHER)
LOW: Final = HotswapInputs(name="low-jax-trillium", slices=1, priority_class=_LOWER)


def recipe(namespace: str) -> list[dict[str, Any]]:
    """Returns both JobSets."""
    return [hotswap_jobset(dataclasses.replace(i, namespace=namespace)) for i in (HIGH, LOW)]


def hotswap_jobset(inputs: HotswapInputs) -> dict[str, Any]:
    """Returns one of the JobSets (jobset.x-k8s.io/v1alpha2)."""
    return {
        "apiVersion": parts.API_VERSION,
        "kind": "JobSet",
        "metadata": {
            "name": inputs.name,
            "namespace": inputs.namespace,
            "labels": {names.LABEL_MANAGED_BY: names.MANAGED_BY},
            "annotations": {parts.EXCLUSIVE: parts.WORKER_TOPOLOGY},
        },
        "spec": {
            # New pods come when all old ones are gone: two generations never share a pool.
            "failurePolicy": {
                "maxRestarts": inputs.max_restarts,
                "restartStrategy": "BlockingRecreate",
            },
            "replicatedJobs": [
                {
                    "name": "slice",
                    "replicas": inputs.slices,
                    "template": {
                        "spec": {
                            # One pod that is lost is the JobSet's to answer.
                            "backoffLimit": 0,
                            "completions": inputs.kind.hosts,
                            "parallelism": inputs.kind.hosts,
                            "template": {"spec": _pod(inputs)},
                        }
                    },
                }
            ],
        },
    }


def _pod(inputs: HotswapInputs) -> dict[str, Any]:
    return {
        "restartPolicy": "Never",
        **parts.HOST_NETWORK,
        "priorityClassName": inputs.priority_class,
        "terminationGracePeriodSeconds": _GRACE_S,
        "nodeSelector": parts.tpu_node_selector(inputs.kind),
        "tolerations": [
            {"key": "google.com/tpu", "operator": "Exists", "effect": "NoSchedule"},
            *(_tolerated(key, inputs.tolerated_s) for key in ("not-ready", "unreachable")),
        ],
        "containers": [
            {
                "name": "jax-program",
                "image": inputs.image,
                "command": [literal(word) for word in inputs.command],
                "ports": parts.container_ports(_PORTS),
                "resources": parts.tpu_limits(inputs.kind),
            }
        ],
    }


def _tolerated(key: str, seconds: int) -> dict[str, Any]:
    return {
        "key": f"node.kubernetes.io/{key}",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": seconds,
    }
