"""Resolves the user's choice of a cluster to access to its API server."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path

from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.kube.cluster import ClusterAccess, ClusterChoice
from shared_pathways_service.kube.command_place import CommandPlace, place_in_files
from shared_pathways_service.kube.in_cluster import in_cluster_access, is_in_cluster
from shared_pathways_service.kube.kubeconfig import (
    Kubeconfig,
    access_of_context,
    kubeconfig_paths,
    read_kubeconfig,
    server_of,
)

__all__ = ["commands_at", "context_at", "resolve", "settled"]


async def resolve(choice: ClusterChoice) -> ClusterAccess:
    """Finds the cluster; the user's kubeconfig is read and never written.

    Without a choice it is the current context of the kubeconfig; without a context, the cluster
    that this pod runs in. Requests are sent only to find the endpoint of a GKE cluster that
    answers.

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
            message=f"{access.name} is now the API server {access.server}, not {choice.server}: "
            "no request was sent",
            hint=f"have the kubeconfig name {choice.server} for it again",
        )
    return access


def settled(choice: ClusterChoice) -> ClusterChoice:
    """Returns the same cluster, in a form that another process finds later.

    It does not report errors in the choice; `resolve` does.
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
    files, server = tuple(map(str, paths)), _server_at(config, context)
    return dataclasses.replace(choice, context=context, kubeconfig=files, server=server)


def commands_at(choice: ClusterChoice) -> CommandPlace:
    """Returns a cluster for commands in messages; it does not report errors in the choice."""
    if choice.cluster:
        return CommandPlace(cluster=choice.cluster, project=choice.project, region=choice.region)
    found = settled(choice)
    return place_in_files(found.context, [Path(path) for path in found.kubeconfig])


def context_at(server: str) -> str:
    """Returns a context of the kubeconfig whose API server has a URL, the current one first.

    Raises:
      InvalidRequestError: There is none, or the kubeconfig is invalid.
    """
    config = read_kubeconfig(kubeconfig_paths())
    for context in dict.fromkeys((config.current, *config.contexts)):
        if _server_at(config, context) == server:
            return context
    raise InvalidRequestError(
        "kubeconfig",
        "",
        f"a context of the cluster at {server}",
        message=f"no access to the cluster at {server}: a program handed it over (api_client=), "
        "and the kubeconfig has no context of this cluster",
        hint=f"add a context of {server} to the kubeconfig",
    )


def _server_at(config: Kubeconfig, context: str) -> str:
    """Returns the URL of a context's API server; empty: it has none, or an invalid one."""
    with contextlib.suppress(InvalidRequestError, KeyError):
        return server_of(config.clusters[config.contexts[context].text("cluster")])
    return ""


def _named_here(choice: ClusterChoice) -> ClusterAccess:
    if choice.is_handed_over:
        # (The program that did it has ended.)
        if is_in_cluster() and (access := in_cluster_access()).server == choice.server:
            return access
        choice = dataclasses.replace(choice, context=context_at(choice.server))
    if choice.in_cluster:
        if is_in_cluster():
            return in_cluster_access()
        raise InvalidRequestError(
            "cluster",
            "",
            f"the cluster of a pod, at {choice.server}",
            message=f"this is not a pod of the cluster at {choice.server}: no request was sent",
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
    access = access_of_context(config, choice.context)
    return dataclasses.replace(
        access, commands=place_in_files(choice.context or config.current, paths)
    )
