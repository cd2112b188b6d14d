"""From the cluster that was named to a way to its API server."""

from __future__ import annotations

from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.kube.cluster import ClusterAccess, ClusterChoice
from shared_pathways_service.kube.in_cluster import in_cluster_access, is_in_cluster
from shared_pathways_service.kube.kubeconfig import (
    access_of_context,
    kubeconfig_paths,
    read_kubeconfig,
)

__all__ = ["ClusterAccess", "ClusterChoice", "resolve"]


async def resolve(choice: ClusterChoice) -> ClusterAccess:
    """Finds the cluster; the user's kubeconfig is read and never written.

    Args:
      choice: What the user named. Nothing: the current context of the kubeconfig; where there is
        none, the cluster that this pod runs in.

    Returns:
      The way to it. Of the API server nothing was asked yet, except which endpoint of a GKE
      cluster answers.

    Raises:
      InvalidRequestError: There is no such context or cluster.
      AccessDenied: There are no credentials for it.
      ApiUnreachable: Google, or all of the cluster's endpoints, do not answer.
    """
    if choice.cluster:
        # Only here, as who uses a kubeconfig need not wait for google-auth's import.
        from shared_pathways_service.kube.gke import gke_access  # noqa: PLC0415

        return await gke_access(choice)
    config = read_kubeconfig()
    if not choice.context and not config.current:
        if is_in_cluster():
            return in_cluster_access()
        raise InvalidRequestError(
            "cluster",
            "",
            "cluster=, project= and region=, or context=, or a kubeconfig with a current context"
            f" ({', '.join(map(str, kubeconfig_paths()))} has none)",
        )
    return access_of_context(config, choice.context)
