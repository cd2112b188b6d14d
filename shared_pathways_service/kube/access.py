"""From the cluster that was named to a way to its API server."""

from __future__ import annotations

from shared_pathways_service.kube.cluster import ClusterAccess, ClusterChoice
from shared_pathways_service.kube.kubeconfig import access_of_context, read_kubeconfig

__all__ = ["ClusterAccess", "ClusterChoice", "resolve"]


async def resolve(choice: ClusterChoice) -> ClusterAccess:
    """Finds the cluster; the user's kubeconfig is read and never written.

    Args:
      choice: What the user named.

    Returns:
      The way to it. Nothing was asked of the API server yet.

    Raises:
      InvalidRequestError: There is no such context or cluster.
      AccessDenied: There are no credentials for it.
    """
    return access_of_context(read_kubeconfig(), choice.context)
