"""Reads the value of a PriorityClass in the cluster."""

from __future__ import annotations

from shared_pathways_service.api.priorities import PRIORITIES
from shared_pathways_service.errors import AccessDenied
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.errors import ApiError
from shared_pathways_service.kube.paths import collection, item
from shared_pathways_service.manifests.priority_classes import (
    priority_denied,
    priority_of,
    value_of,
)

__all__ = ["read_priority"]

_NOT_FOUND = 404


async def read_priority(api: KubeApi, name: str) -> int:
    """Returns the value of a PriorityClass of the cluster.

    The names of `PRIORITIES` have their own values if the cluster has no such class, or we may not
    read it.

    Args:
      api: The cluster's API server.
      name: The class.

    Raises:
      AccessDenied: Classes may not be read, and the name is not one of `PRIORITIES`.
      InvalidRequestError: There is no such class; existing ones are listed.
      SharedPathwaysError: The API server does not answer.
    """
    try:
        return value_of(await api.get(item("priorityclasses", "", name)))
    except AccessDenied as error:
        if name not in PRIORITIES:
            raise priority_denied(name) from error
    except ApiError as error:
        if error.status != _NOT_FOUND:
            raise
        if name not in PRIORITIES:
            return await _among_all(api, name)
    return PRIORITIES[name]


async def _among_all(api: KubeApi, name: str) -> int:
    """Searches all classes, so that an error can list them."""
    try:
        listed = await api.get(collection("priorityclasses"))
    except AccessDenied as error:
        raise priority_denied(name) from error
    return priority_of(name, listed.get("items") or (), field="priority")
