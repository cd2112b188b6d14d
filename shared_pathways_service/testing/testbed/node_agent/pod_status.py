"""Derives a pod's status from its containers (Kubernetes' documentation: Pod Lifecycle)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from shared_pathways_service.testing.testbed.api import Object

__all__ = ["ContainerRecord", "PodRecord", "restarts", "status_of"]


@dataclasses.dataclass(kw_only=True)
class ContainerRecord:
    """The state of one container.

    Attributes:
      policy: When it is restarted: ``Always``, ``OnFailure`` or ``Never``.
      initial: Whether it is an init container.
      state: As in a status: ``waiting``, ``running`` or ``terminated``, with its fields.
      last_state: The state of its previous run.
      started: Whether its startup probe has succeeded.
    """

    name: str
    image: str
    policy: str
    initial: bool = False
    state: Object = dataclasses.field(
        default_factory=lambda: {"waiting": {"reason": "ContainerCreating"}}
    )
    last_state: Object = dataclasses.field(default_factory=dict)
    restarts: int = 0
    started: bool = False
    ready: bool = False

    @property
    def is_sidecar(self) -> bool:
        """Whether it is an init container that keeps running beside the others."""
        return self.initial and self.policy == "Always"

    @property
    def exit_code(self) -> int | None:
        """The final exit code; None before the final end."""
        return self.state["terminated"]["exitCode"] if "terminated" in self.state else None


@dataclasses.dataclass(kw_only=True)
class PodRecord:
    """The state of a pod.

    Attributes:
      containers: In the order of its spec, init containers first.
      started_at: RFC 3339.
      initialized: Whether the init containers are done, sidecars aside.
      ending: Whether it is being deleted, so that no container restarts.
    """

    containers: Sequence[ContainerRecord]
    address: str
    node_address: str
    started_at: str
    initialized: bool = False
    ending: bool = False

    @property
    def phase(self) -> str:
        """``Pending``, ``Running``, ``Succeeded`` or ``Failed``."""
        main = [c for c in self.containers if not c.initial]
        initial = [c for c in self.containers if c.initial and not c.is_sidecar]
        if any(c.exit_code for c in initial) and not self.initialized:
            return "Failed"
        # Between two runs of a container its pod counts as running.
        over = [c.exit_code is not None for c in main]
        is_left = any(c.is_sidecar and "running" in c.state for c in self.containers)
        if all(over) and not is_left:
            return "Failed" if any(c.exit_code for c in main) else "Succeeded"
        if self.ending and not any("running" in c.state for c in self.containers):
            return "Failed"
        if any(over) or any("running" in c.state or c.restarts for c in main):
            return "Running"
        return "Pending"


def restarts(policy: str, exit_code: int) -> bool:
    """Whether a container that ended with this code restarts."""
    return policy == "Always" or (policy == "OnFailure" and exit_code != 0)


def status_of(pod: PodRecord, now: str) -> Object:
    """Returns the status as a patch, which leaves other conditions unchanged; `now` is RFC 3339."""
    phase = pod.phase
    main = [c for c in pod.containers if not c.initial]
    lasting = [c for c in pod.containers if not c.initial or c.is_sidecar]
    ready = phase == "Running" and all(c.ready for c in lasting) and not pod.ending
    over = phase == "Succeeded"
    reason = {"reason": "PodCompleted"} if over else {}
    unready = reason or {"reason": "ContainersNotReady"}

    def condition(kind: str, value: bool, why: dict[str, str]) -> Object:
        extra: dict[str, Any] = {"reason": None} if value else why
        return {"type": kind, "status": str(value), "lastTransitionTime": now, **extra}

    return {
        "phase": phase,
        "podIP": pod.address,
        "podIPs": [{"ip": pod.address}],
        "hostIP": pod.node_address,
        "hostIPs": [{"ip": pod.node_address}],
        "startTime": pod.started_at,
        "conditions": [
            condition("PodReadyToStartContainers", phase == "Running", {}),
            condition("Initialized", pod.initialized, {"reason": "ContainersNotInitialized"}),
            condition("ContainersReady", ready, unready),
            condition("Ready", ready, unready),
        ],
        "initContainerStatuses": [_status(c) for c in pod.containers if c.initial],
        "containerStatuses": [_status(c) for c in main],
    }


def _status(container: ContainerRecord) -> Object:
    running = "running" in container.state
    done = container.initial and container.exit_code == 0
    return {
        "name": container.name,
        "image": container.image,
        "imageID": "",
        "restartCount": container.restarts,
        "ready": done or (running and container.ready),
        "started": running and container.started,
        "state": container.state,
        "lastState": container.last_state,
    }
