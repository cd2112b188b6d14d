"""Objects as an API server returns them, as far as they matter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Object = dict[str, Any]

RUNNING: Mapping[str, Any] = {
    "ready": True,
    "image": "r.io/x:1",
    "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
}


def pod(
    name: str = "p",
    *,
    container: str = "pathways-proxy",
    ready: bool = False,
    node: str = "node-1",
    phase: str = "Pending",
    status: Mapping[str, Any] | None = None,
    conditions: list[Mapping[str, Any]] | None = None,
    deleted: bool = False,
    restarts: bool = False,
    created: str = "2026-01-01T00:00:00Z",
    labels: Mapping[str, str] | None = None,
    more_status: Mapping[str, Any] | None = None,
) -> Object:
    """A pod with one container; `status` is the container's, without its name."""
    metadata: Object = {"name": name, "uid": f"uid-{name}", "creationTimestamp": created}
    metadata["labels"] = dict(labels or {})
    if deleted:
        metadata["deletionTimestamp"] = "2026-01-01T00:01:00Z"
    statuses = [] if status is None else [{"name": container, **status}]
    return {
        "metadata": metadata,
        "spec": {
            **({"nodeName": node} if node else {}),
            "restartPolicy": "OnFailure" if restarts else "Never",
        },
        "status": {
            "phase": phase,
            "conditions": [
                {"type": "Ready", "status": "True" if ready else "False"},
                *(conditions or ()),
            ],
            "containerStatuses": statuses,
            **(more_status or {}),
        },
    }


def running(name: str = "p", **more: Any) -> Object:
    """A pod that is ready."""
    return pod(name, ready=True, phase="Running", status=RUNNING, **more)


def ended(code: int, name: str = "p", **more: Any) -> Object:
    """A pod whose container has ended."""
    terminated = {"exitCode": code, "reason": "Error" if code else "Completed", "message": "a\nb\n"}
    phase = "Failed" if code else "Succeeded"
    return pod(name, phase=phase, status={"state": {"terminated": terminated}}, **more)


def waiting(reason: str, message: str = "", **more: Any) -> Object:
    """A pod whose container waits."""
    status = {"image": "r.io/x:1", "state": {"waiting": {"reason": reason, "message": message}}}
    return pod(status=status, **more)


def unschedulable(name: str = "p", message: str = "0/3 nodes are available", **more: Any) -> Object:
    """A pod that no node takes."""
    why = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return pod(name, node="", conditions=[why], **more)


def disrupted(reason: str, message: str = "", **more: Any) -> Object:
    """A pod that is taken away."""
    why = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}
    return pod(deleted=True, conditions=[why], status=RUNNING, phase="Running", **more)


def job(name: str = "j", *, deleted: bool = False, **status: Any) -> Object:
    """A Job; keyword arguments are its status."""
    metadata: Object = {"name": name, "uid": f"uid-{name}"}
    if deleted:
        metadata["deletionTimestamp"] = "2026-01-01T00:01:00Z"
    return {"metadata": metadata, "spec": {}, "status": status}


def failed(reason: str, message: str = "", kind: str = "Failed") -> list[Mapping[str, Any]]:
    """The conditions of a Job that has failed."""
    return [{"type": kind, "status": "True", "reason": reason, "message": message}]


def event(of: str, reason: str, message: str, at: str = "2026-01-01T00:00:00Z") -> Object:
    """An event of the object with that UID."""
    return {
        "involvedObject": {"uid": of},
        "reason": reason,
        "message": message,
        "lastTimestamp": at,
    }
