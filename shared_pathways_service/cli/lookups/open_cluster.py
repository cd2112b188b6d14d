"""Opens the cluster that a command names, within one run of asyncio."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from shared_pathways_service.cli.options.cluster_options import Place
from shared_pathways_service.kube.access import resolve
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.cluster import ClusterChoice
from shared_pathways_service.operations.cluster_access import Cluster

__all__ = ["choice_of", "opened"]


@contextlib.asynccontextmanager
async def opened(place: Place) -> AsyncIterator[Cluster]:
    """Opens a cluster for the length of the block.

    Raises:
      SharedPathwaysError: The place is wrong, or the cluster cannot be reached.
    """
    async with KubeApi(await resolve(choice_of(place))) as api:
        yield Cluster(api, place.namespace, place.pathways_service or "")


def choice_of(place: Place) -> ClusterChoice:
    """Checks a place, and converts it for `resolve`."""
    place.request()
    return ClusterChoice(
        cluster=place.cluster or "",
        project=place.project or "",
        region=place.region or "",
        context=place.context or "",
    )
