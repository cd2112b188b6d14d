"""Resolves the user's choice of a cluster to access to its API server."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.kube.cluster import ClusterAccess, ClusterChoice
from shared_pathways_service.kube.in_cluster import in_cluster_access, is_in_cluster
from shared_pathways_service.kube.kubeconfig import (
    Kubeconfig,
    access_of_context,
    kubeconfig_paths,
    read_kubeconfig,
)

__all__ = ["ClusterAccess", "ClusterChoice", "resolve", "settled"]


async def resolve(choice: ClusterChoice) -> ClusterAccess:
    """Finds the cluster; the user's kubeconfig is read and never written.

    Args:
      choice: The user's choice. Without one: the current context of the kubeconfig; without a
        context, the cluster that this pod runs in.

    Returns:
      Access to the cluster. No request was sent to the API server yet, except to find the endpoint
      of a GKE cluster that answers.

    Raises:
      InvalidRequestError: There is no such context or cluster, or its API server has changed.
      AccessDenied: There are no credentials for it.
      ApiUnreachable: Google, or all of the cluster's endpoints, do not answer.
    """
    if choice.cluster:
        # Imported here, so that users of a kubeconfig do not wait for google-auth's import.
        from shared_pathways_service.kube.gke import gke_access  # noqa: PLC0415

        return await gke_access(choice)
    access = _named_here(choice)
    if choice.server and access.server != choice.server:
        raise InvalidRequestError(
            "context",
            choice.context,
            f"the cluster at {choice.server}",
            message=f"{access.name} is now the API server {access.server}, and what is looked for "
            f"is at {choice.server}: nothing was asked",
            hint=f"have the kubeconfig name {choice.server} for it again",
        )
    return access


def settled(choice: ClusterChoice) -> ClusterChoice:
    """Returns the same cluster, in a form that another process finds at a later time.

    Args:
      choice: The user's choice; `resolve` reports errors in it.
    """
    if choice.cluster:
        return choice
    paths = [path.absolute() for path in kubeconfig_paths()]
    try:
        config = read_kubeconfig(paths)
        if not choice.context and not config.current and is_in_cluster():
            return dataclasses.replace(choice, in_cluster=True, server=in_cluster_access().server)
    except InvalidRequestError:
        return choice
    context = choice.context or config.current
    return dataclasses.replace(
        choice,
        context=context,
        kubeconfig=tuple(map(str, paths)),
        server=_server_of(config, context),
    )


def _server_of(config: Kubeconfig, context: str) -> str:
    """Returns the API server of a context; empty if the kubeconfig does not name it."""
    chosen = config.contexts.get(context)
    cluster = chosen and config.clusters.get(str(chosen.data.get("cluster")))
    return str(cluster.data.get("server") or "").rstrip("/") if cluster else ""


def _named_here(choice: ClusterChoice) -> ClusterAccess:
    if choice.in_cluster:
        if is_in_cluster():
            return in_cluster_access()
        raise InvalidRequestError(
            "cluster",
            "",
            f"the cluster of a pod, at {choice.server}",
            message=f"this is not a pod of the cluster at {choice.server}: nothing was asked",
            hint="do it in a pod of that cluster",
        )
    first = [Path(path) for path in choice.kubeconfig]
    paths = [*first, *(path for path in kubeconfig_paths() if path.absolute() not in first)]
    config = read_kubeconfig(paths)
    if not choice.context and not config.current:
        if is_in_cluster():
            return in_cluster_access()
        raise InvalidRequestError(
            "cluster",
            "",
            "cluster=, project= and region=, or context=, or a kubeconfig with a current context"
            f" ({', '.join(map(str, paths))} has none)",
        )
    return access_of_context(config, choice.context)
