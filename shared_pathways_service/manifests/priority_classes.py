"""PriorityClasses: the ones to create, and the value of a named one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from shared_pathways_service.api.priorities import PRIORITIES
from shared_pathways_service.errors import AccessDenied, InvalidRequestError
from shared_pathways_service.manifests.permissions import access_denied, permissions

__all__ = ["READING", "priority_classes", "priority_denied", "priority_of", "value_of"]

#: The permission to read PriorityClasses, which are not in a namespace.
READING: Final = permissions("scheduling.k8s.io", "priorityclasses", "get", "list")


def priority_classes() -> list[dict[str, Any]]:
    """Returns the PriorityClasses (scheduling.k8s.io/v1) of `PRIORITIES`."""
    return [
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": name},
            "value": value,
            "globalDefault": False,
            "description": f"Pods of {name}s: those of a higher class may take their nodes.",
        }
        for name, value in PRIORITIES.items()
    ]


def priority_of(name: str, classes: Iterable[Mapping[str, Any]], *, field: str) -> int:
    """Returns the value of a PriorityClass.

    Raises:
      InvalidRequestError: The cluster has no such class; the error lists existing ones.
    """
    values = {str(one["metadata"]["name"]): value_of(one) for one in classes}
    if name in values:
        return values[name]
    # (Kubernetes' own classes are for the cluster's own pods.)
    known = sorted(one for one in values if not one.startswith("system-"))
    raise InvalidRequestError(
        field,
        name,
        f"one of the cluster's PriorityClasses: {', '.join(known) or 'it has none'}",
        hint="`sps render priority-classes | kubectl create -f -` creates "
        f"{' and '.join(PRIORITIES)}",
    )


def value_of(one: Mapping[str, Any]) -> int:
    """Returns the value of a PriorityClass, whose zero some writers omit."""
    return int(one.get("value") or 0)


def priority_denied(name: str) -> AccessDenied:
    """Returns the error for a PriorityClass that may not be read."""
    denied = access_denied(READING, "")
    return AccessDenied(
        f"the value of the PriorityClass {name} cannot be read: {denied.message}",
        verb=denied.verb,
        resource=denied.resource,
        rule=denied.rule,
        hint=f"{denied.hint} (`sps render tenant-rbac` has them), or use a number, or "
        f"{' or '.join(PRIORITIES)}, which need no permission",
    )
