"""PriorityClasses of a cluster: those that are made, and the names that a cluster knows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from shared_pathways_service.core.priorities import PRIORITIES
from shared_pathways_service.errors import InvalidRequestError

__all__ = ["priority_classes", "priority_of"]


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
    """Returns the value of the PriorityClass of a name.

    Args:
      name: What was asked for.
      classes: The cluster's.
      field: What to call it in an error.

    Raises:
      InvalidRequestError: The cluster has no such class; those that it has are listed.
    """
    values = {str(one["metadata"]["name"]): int(one.get("value") or 0) for one in classes}
    if name in values:
        return values[name]
    # (Those of Kubernetes itself are for the cluster's own pods.)
    known = sorted(known for known in values if not known.startswith("system-"))
    raise InvalidRequestError(
        field,
        name,
        f"one of the cluster's PriorityClasses: {', '.join(known) or 'it has none'}",
        hint="`sps render priority-classes | kubectl create -f -` makes "
        f"{' and '.join(PRIORITIES)}",
    )
