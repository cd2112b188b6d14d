"""Builds the public recipe for hotswap on GKE: a JobSet that takes another one's slice.

Both JobSets run JAX programs over whole node pools. When the JobSet of high priority loses a slice
and no spare is free, it takes the nodes of the other one, which waits until a pool is back.

Exclusive node pools apply only among jobs of the same priority, which makes preemption possible,
and the scheduler preempts pods, not jobs. Two rules keep the JobSets apart nevertheless: pods of
the higher JobSet do not go to a pool with the lower one's first pod, so this is the pod that they
preempt; and that pod leaves last.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Final

from shared_pathways_service.api.priorities import PRIORITIES
from shared_pathways_service.api.request_fields import check_image, check_subdomain
from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.api.validation import check_dns_label, check_int
from shared_pathways_service.manifests import jobset_parts as parts
from shared_pathways_service.manifests import names
from shared_pathways_service.manifests.pod_parts import env_from_label, literal

__all__ = ["HIGH", "LOW", "HotswapInputs", "hotswap_jobset", "recipe"]

_KIND: Final = InstanceType("tpuv6e", (4, 4))
_IMAGE: Final = "python:3.12"
_SLICE: Final = "slice"
_LOWER, _HIGHER = PRIORITIES
_PORTS: Final = (8471, 8431)
#: Seconds for which a pod stays bound to a node that is not ready. Kubernetes' default of 300 would
#: be five times the budget of a minute; the price is that a short failure of a node loses its pods.
_TOLERATED_S: Final = 5
#: Seconds for a program to end on request: its first process waits for the others, which the Job's
#: controller notifies within seconds. And restarts of all that a JobSet may have.
_GRACE_S: Final = 15
_RESTARTS: Final = 10
#: The part of the 63 characters of a pod's host name, NAME-slice-NNNN-NNNNN.
_NAME_LIMIT: Final = 45
_INDEX_LABEL: Final = "batch.kubernetes.io/job-completion-index"
#: Process 1 needs a signal handler, or it would ignore SIGTERM and be killed after its grace
#: period. The processes shut down together, so that the first one leaves last.
_PROGRAM: Final = """\
pip install --quiet 'jax[tpu]'
exec python -u -c '
import signal, sys, threading
told = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: told.set())
import jax
jax.distributed.initialize()
print("devices:", jax.device_count(), flush=True)
told.wait()
jax.distributed.shutdown()
sys.exit(143)
'
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class HotswapInputs:
    """The inputs of one of the two JobSets.

    Attributes:
      name: The JobSet's name, a DNS label.
      slices: The number of slices, from 1 up, each in a separate node pool.
      priority_class: The PriorityClass of its pods.
      takes_from: The JobSet whose nodes it may take; empty: none.
      kind: The type of its slices.
      image: The image of its program.
      command: The program and its arguments.
      max_restarts: The number of restarts of all its Jobs together, 0 or more.
    """

    name: str
    slices: int
    priority_class: str
    takes_from: str = ""
    namespace: str = "default"
    kind: InstanceType = _KIND
    image: str = _IMAGE
    command: Sequence[str] = ("bash", "-c", _PROGRAM)
    max_restarts: int = _RESTARTS

    def __post_init__(self) -> None:
        check_dns_label("name", self.name, limit=_NAME_LIMIT, why="pods are named after it")
        check_dns_label("namespace", self.namespace)
        check_subdomain("priority_class", self.priority_class)
        check_int("slices", self.slices, low=1)
        check_int("max_restarts", self.max_restarts, low=0)
        check_image(self.image, field="image")


#: The two JobSets of the recipe.
LOW: Final = HotswapInputs(name="low-jax-trillium", slices=1, priority_class=_LOWER)
HIGH: Final = HotswapInputs(
    name="high-jax-trillium", slices=2, priority_class=_HIGHER, takes_from=LOW.name
)


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
            # New pods are created when all old ones have ended, so two generations never share a
            # pool.
            "failurePolicy": {
                "maxRestarts": inputs.max_restarts,
                "restartStrategy": "BlockingRecreate",
            },
            "replicatedJobs": [
                {
                    "name": _SLICE,
                    "replicas": inputs.slices,
                    "template": {
                        "spec": {
                            # The JobSet handles a lost pod.
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
    apart = {"affinity": _apart_from(inputs.takes_from)} if inputs.takes_from else {}
    return {
        "restartPolicy": "Never",
        **parts.HOST_NETWORK,
        "priorityClassName": inputs.priority_class,
        "terminationGracePeriodSeconds": _GRACE_S,
        "nodeSelector": parts.tpu_node_selector(inputs.kind),
        **apart,
        "tolerations": [
            {"key": "google.com/tpu", "operator": "Exists", "effect": "NoSchedule"},
            *(_tolerated(key) for key in ("not-ready", "unreachable")),
        ],
        "containers": [
            {
                "name": "jax-program",
                "image": inputs.image,
                "command": [literal(word) for word in inputs.command],
                "env": _variables(),
                "ports": parts.container_ports(_PORTS),
                "resources": parts.tpu_limits(inputs.kind),
            }
        ],
    }


def _variables() -> list[dict[str, Any]]:
    """Returns the variables with the address of the first process of a slice."""
    leader = f"$(JOBSET_NAME)-{_SLICE}-$(SLICE_INDEX)-0.$(JOBSET_NAME)"
    return [
        env_from_label("JOBSET_NAME", names.LABEL_JOBSET),
        env_from_label("SLICE_INDEX", names.LABEL_JOB_INDEX),
        {"name": "SLICE_LEADER", "value": leader},
    ]


def _apart_from(jobset: str) -> dict[str, Any]:
    """Returns the affinity that keeps pods out of pools with another JobSet's first pod."""
    first = {names.LABEL_JOBSET: jobset, _INDEX_LABEL: "0"}
    return {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"labelSelector": {"matchLabels": first}, "topologyKey": parts.WORKER_TOPOLOGY}
            ]
        }
    }


def _tolerated(key: str) -> dict[str, Any]:
    return {
        "key": f"node.kubernetes.io/{key}",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": _TOLERATED_S,
    }
