"""Connects a command to the resource manager of a service in a cluster."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from shared_pathways_service.cluster_state.readiness import ServiceReadiness
from shared_pathways_service.cluster_state.services import Service
from shared_pathways_service.homes.kubernetes.manager_link import ManagerLink
from shared_pathways_service.operations.cluster_access import Cluster
from shared_pathways_service.runtime.settings import Settings, private_directory

__all__ = ["link_to_manager"]


@contextlib.asynccontextmanager
async def link_to_manager(
    cluster: Cluster, service: Service, settings: Settings, *, found: ServiceReadiness | None = None
) -> AsyncIterator[ManagerLink]:
    """Opens a connection for the length of the block, without waiting for an answer.

    Args:
      cluster: The cluster of the service.
      service: A service with one of our images.
      settings: They name the directory of the relay's socket.
      found: The readiness of the service, if known; it names the resource manager's pod.

    Raises:
      AccessDenied: The runtime directory is not private to this user.
    """
    runtime_dir = private_directory(settings.runtime_dir, "SPS_RUNTIME_DIR")
    head = found.head.name if found is not None and found.head is not None else ""
    link = ManagerLink(cluster.api, service, runtime_dir=runtime_dir, head=head)
    async with contextlib.AsyncExitStack() as undo:
        await link.open()
        undo.push_async_callback(link.close)
        yield link
