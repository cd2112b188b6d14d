"""Opens the cluster of a service, within one run of asyncio."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from shared_pathways_service.api.service_choice import ServiceChoice
from shared_pathways_service.kube.access import resolve
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.cluster import ClusterChoice
from shared_pathways_service.operations.cluster_access import Cluster

__all__ = ["opened"]


@contextlib.asynccontextmanager
async def opened(service: ServiceChoice) -> AsyncIterator[Cluster]:
    """Opens a cluster for the length of the block.

    Raises:
      SharedPathwaysError: The cluster cannot be reached.
    """
    choice = ClusterChoice(
        cluster=service.cluster or "",
        project=service.project or "",
        region=service.region or "",
        context=service.context or "",
    )
    async with KubeApi(await resolve(choice)) as api:
        yield Cluster(api, service.namespace, service.pathways_service or "")
