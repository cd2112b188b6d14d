"""Measures how two JobSets move while a node pool is lost and restored.

Consumes events and records times; the caller passes the clock.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterable, Mapping
from typing import Any, Final

from shared_pathways_service.cluster_state.pods import condition
from shared_pathways_service.cluster_state.readiness import is_over
from shared_pathways_service.manifests import names

__all__ = ["PHASES", "Crew", "HotswapWatch"]

Object = Mapping[str, Any]

#: The phases in their usual order, with descriptions.
PHASES: Final = {
    "disrupted": "the disruption began",
    "not_ready": "a node is not ready any more",
    "lost": "the first pod of the higher JobSet was deleted or ended",
    "ended": "the last of its pods had ended",
    "created": "the first of its new pods was created",
    "preempted": "the first pod of the lower JobSet was deleted",
    "cleared": "the last pod of the lower JobSet had ended",
    "bound": "all new pods of the higher JobSet had nodes",
    "ready": "all of them were ready",
    "restored": "the nodes were uncordoned",
    "low_bound": "all pods of the lower JobSet had nodes",
    "low_ready": "all of them were ready",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Crew:
    """A JobSet that works only if all of its pods run, with their number."""

    name: str
    pods: int

    @classmethod
    def of(cls, jobset: Object) -> Crew:
        """Reads a JobSet."""
        jobs = (jobset.get("spec") or {}).get("replicatedJobs") or ()
        return cls(name=str(jobset["metadata"]["name"]), pods=sum(map(_pods_of, jobs)))


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Pod:
    object: Object
    name: str
    node: str
    ready: bool
    #: Deleted or failed: not part of a working crew.
    leaving: bool
    #: Its processes have ended.
    ended: bool


class HotswapWatch:
    """Observes the pods of two JobSets.

    Attributes:
      high: The crew of higher priority; `low` is the other one.
      moments: The time of each phase of `PHASES`, on the caller's clock.
      shared: Node pools that had pods of both at the same time, with two pod names.
    """

    def __init__(self, high: Crew, low: Crew) -> None:
        self._crews = {crew.name: crew for crew in (high, low)}
        self.high, self.low = high, low
        self._pods: dict[str, dict[str, _Pod]] = {name: {} for name in self._crews}
        #: The pods of each crew when the disruption began.
        self._before: dict[str, set[str]] = {}
        #: The nodes of the higher crew at that time, and their pools.
        self._nodes_then: set[str] = set()
        self._pools_then: set[str] = set()
        self._pools: dict[str, str] = {}
        #: Nodes that are not ready, and those that were deleted.
        self._silent: set[str] = set()
        self._gone: set[str] = set()
        self._began = False
        self.moments: dict[str, float] = {}
        self.shared: dict[str, str] = {}

    def take_node(self, node: Object, at_s: float, *, gone: bool = False) -> None:
        """Updates a node, or notes that it was deleted."""
        name = str(node["metadata"]["name"])
        labels = names.labels_of(node)
        self._pools[name] = labels.get("cloud.google.com/gke-nodepool", "")
        (self._gone.add if gone else self._gone.discard)(name)
        if condition(node, "Ready").get("status") == "True" and not gone:
            self._silent.discard(name)
        else:
            self._silent.add(name)
            # (Its pods may have gone first: nodes and pods are followed separately.)
            was_used = name in self._nodes_then and "ready" not in self.moments
            if self._began and (was_used or self._uses(name)):
                self._mark("not_ready", at_s)

    def take_pod(self, pod: Object, at_s: float, *, gone: bool = False) -> None:
        """Updates or, if it was deleted, removes a pod; those of other JobSets are ignored."""
        crew = names.labels_of(pod).get(names.LABEL_JOBSET, "")
        if crew not in self._crews:
            return
        uid = str(pod["metadata"]["uid"])
        if gone:
            self._pods[crew].pop(uid, None)
        else:
            self._pods[crew][uid] = _read(pod)
        self._record_sharing()
        if self._began:
            self._judge(at_s)

    def begun(self) -> None:
        """Starts to detect disruptions: from now on losses of pods count."""
        self._before = {name: set(pods) for name, pods in self._pods.items()}
        self._nodes_then = {pod.node for pod in self._bound(self.high.name)}
        self._pools_then = set(self.pools_of(self.high.name))
        self._began = True
        self.moments = {}

    def disrupted(self, at_s: float) -> None:
        """Records that the caller begins to drain nodes."""
        self.begun()
        # (A drained node that is removed is no failure.)
        self._nodes_then = set()
        self._mark("disrupted", at_s)

    def restored(self, at_s: float) -> None:
        """Records that the caller restored the nodes."""
        self._mark("restored", at_s)
        self._judge(at_s)

    def is_ready(self, name: str) -> bool:
        """Whether all pods of a crew are ready."""
        ready = [pod for pod in self._pods[name].values() if pod.ready]
        return len(ready) >= self._crews[name].pods

    def pools_of(self, name: str) -> list[str]:
        """Returns the node pools where a crew has pods."""
        return sorted({self._pools.get(pod.node, "") for pod in self._bound(name)})

    def broken_pools(self) -> list[str]:
        """Returns the node pools of the higher crew with a node that is not ready."""
        silent = {self._pools.get(node, "") for node in self._silent}
        return sorted(silent & self._pools_then)

    def nodes_of(self, pool: str) -> list[str]:
        """Returns the nodes of a node pool that there are."""
        return sorted(n for n, of in self._pools.items() if of == pool and n not in self._gone)

    def newcomers(self, nodes: Container[str]) -> list[Object]:
        """Returns the pods of both crews that came to these nodes since the disruption began."""
        return [
            pod.object
            for crew, pods in self._pods.items()
            for uid, pod in pods.items()
            if pod.node in nodes and not pod.leaving and uid not in self._before.get(crew, ())
        ]

    def seconds(self, phase: str, since: str) -> float | None:
        """Returns the seconds between two phases; None if one did not occur."""
        if phase not in self.moments or since not in self.moments:
            return None
        return self.moments[phase] - self.moments[since]

    def _mark(self, phase: str, at_s: float) -> None:
        if phase in ("not_ready", "lost"):
            # A disruption from outside begins when it is detected.
            self.moments.setdefault("disrupted", at_s)
        self.moments.setdefault(phase, at_s)

    def _judge(self, at_s: float) -> None:
        high, low = self.high.name, self.low.name
        self._judge_end(high, "lost", "ended", at_s)
        if "lost" in self.moments:
            self._judge_end(low, "preempted", "cleared", at_s)
        self._judge_begin(self.high, "bound", "ready", "lost", at_s)
        self._judge_begin(self.low, "low_bound", "low_ready", "restored", at_s)
        if self._pods[high].keys() - self._before[high]:
            self._mark("created", at_s)

    def _judge_end(self, crew: str, begins: str, ends: str, at_s: float) -> None:
        pods, before = self._pods[crew], self._before[crew]
        there = [pods[uid] for uid in before if uid in pods]
        if len(there) < len(before) or any(pod.leaving for pod in there):
            self._mark(begins, at_s)
        if before and not there:
            self._mark(ends, at_s)

    def _judge_begin(self, crew: Crew, bound: str, ready: str, after: str, at_s: float) -> None:
        if after not in self.moments:
            return
        working = [pod for pod in self._pods[crew.name].values() if not pod.leaving]
        if sum(bool(pod.node) for pod in working) >= crew.pods:
            self._mark(bound, at_s)
        if sum(pod.ready for pod in working) >= crew.pods:
            self._mark(ready, at_s)

    def _bound(self, crew: str) -> Iterable[_Pod]:
        return (pod for pod in self._pods[crew].values() if pod.node and not pod.ended)

    def _uses(self, node: str) -> bool:
        return any(pod.node == node for pod in self._bound(self.high.name))

    def _record_sharing(self) -> None:
        there = {self._pools.get(pod.node, ""): pod.name for pod in self._bound(self.high.name)}
        for pod in self._bound(self.low.name):
            pool = self._pools.get(pod.node, "")
            if pool in there:
                self.shared.setdefault(pool, f"{there[pool]} and {pod.name}")


def _pods_of(job: Object) -> int:
    spec = (job.get("template") or {}).get("spec") or {}
    return int(job.get("replicas") or 1) * int(spec.get("completions") or 1)


def _read(pod: Object) -> _Pod:
    metadata, ended = pod["metadata"], is_over(pod)
    leaving = ended or bool(metadata.get("deletionTimestamp"))
    return _Pod(
        object=pod,
        name=str(metadata["name"]),
        node=str((pod.get("spec") or {}).get("nodeName") or ""),
        ready=condition(pod, "Ready").get("status") == "True" and not leaving,
        leaving=leaving,
        ended=ended,
    )
