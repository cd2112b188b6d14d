"""Pods for tests, which run a command of this machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from shared_pathways_service.manifests.names import LABEL_REPLICATED_JOB
from shared_pathways_service.testing.testbed import Namespace, Object
from shared_pathways_service.testing.testbed.api import WAIT_S
from shared_pathways_service.testing.testbed.node_agent.images import COMMAND_IMAGE

__all__ = ["container", "exit_code", "phase", "pod", "since", "state", "wait_until_unschedulable"]

#: Prints a line on SIGTERM, and continues.
STUBBORN = "trap 'echo told to end' TERM; echo started; while :; do sleep 0.1; done"


def container(script: str, *, name: str = "main", **fields: Any) -> Object:
    """A container that runs a shell script."""
    return {"name": name, "image": COMMAND_IMAGE, "command": ["sh", "-c", script], **fields}


def pod(name: str, *containers: Object, **spec: Any) -> Object:
    """A pod of these containers."""
    usual = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1}
    return {"metadata": {"name": name}, "spec": {**usual, "containers": [*containers], **spec}}


def since(namespace: Namespace, before: Object, condition: Callable[[Object], bool]) -> Object:
    """Returns the first later state of a pod that meets a condition, even if that has passed."""
    metadata = before["metadata"]
    for line in namespace.testbed.api.lines(
        namespace.path("pods"),
        timeout_s=WAIT_S,
        watch="true",
        resourceVersion=metadata["resourceVersion"],
        fieldSelector=f"metadata.name={metadata['name']}",
    ):
        seen: Object = json.loads(line)["object"]
        if condition(seen):
            return seen
    raise AssertionError(f"{metadata['name']} had no such state")


def wait_until_unschedulable(namespace: Namespace, job: str) -> None:
    """Waits until the scheduler has found no node for a pod of a service's replicated job."""
    namespace.wait_until(
        "pods",
        lambda pods: any(_is_unschedulable(pod) for pod in pods),
        what=f"pod of {job} without a node",
        labelSelector=f"{LABEL_REPLICATED_JOB}={job}",
    )


def _is_unschedulable(seen: Object) -> bool:
    conditions = seen.get("status", {}).get("conditions") or ()
    return any(condition.get("reason") == "Unschedulable" for condition in conditions)


def phase(seen: Object) -> str:
    found: str = seen.get("status", {}).get("phase", "")
    return found


def state(seen: Object, kind: str) -> Object | None:
    """The first container's state of a kind: waiting, running or terminated."""
    statuses = seen.get("status", {}).get("containerStatuses") or [{"state": {}}]
    found: Object | None = statuses[0]["state"].get(kind)
    return found


def exit_code(seen: Object) -> int | None:
    ended = state(seen, "terminated")
    return None if ended is None else int(ended["exitCode"])
