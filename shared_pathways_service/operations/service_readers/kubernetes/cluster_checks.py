"""Checks a cluster and a service in it for `sps doctor`, as connect() does."""

from __future__ import annotations

import functools

import aiohttp

from shared_pathways_service.api.checks import Check, Outcome
from shared_pathways_service.api.requests import SessionRequest
from shared_pathways_service.api.service_choice import ServiceChoice
from shared_pathways_service.cluster_state.preflight_checks import Examined
from shared_pathways_service.constants import RESOURCE_MANAGER_PORT
from shared_pathways_service.errors import SharedPathwaysError, TunnelError
from shared_pathways_service.homes.kubernetes.dial import dial_pod
from shared_pathways_service.homes.kubernetes.preflight import Preflight
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.manifests.link_parts import LinkInputs
from shared_pathways_service.operations.service_readers.kubernetes.open_cluster import opened
from shared_pathways_service.runtime.settings import Settings
from shared_pathways_service.tunnel.websocket_upgrade import upgraded

__all__ = ["cluster_checks"]


async def cluster_checks(
    where: ServiceChoice, request: SessionRequest, timeout_s: float
) -> list[Check]:
    """Makes the preflight's checks, and opens a tunnel.

    Args:
      where: The cluster and the service.
      request: The proxy that would be requested.
      timeout_s: Seconds for the preflight.
    """
    try:
        async with opened(where) as cluster:
            settings = Settings.load()
            link = LinkInputs(keep_s=settings.proxy_deadline_s, image=settings.link_image)
            address = where.pathways_service or ""
            preflight = Preflight(cluster.api, cluster.namespace, address, link)
            examined = await preflight.examine(request, timeout_s)
            return [*examined.checks, *await _tunnel_check(cluster.api, examined)]
    except SharedPathwaysError as error:
        return [Check.failed("cluster", error)]


async def _tunnel_check(api: KubeApi, examined: Examined) -> list[Check]:
    """Opens a port-forward, as connect() does: HTTP proxies on the way may not allow it."""
    service, found = examined.service, examined.readiness
    if service is None or found is None or found.head is None or not found.head.ready:
        return []
    head = found.head.name
    dial = functools.partial(dial_pod, api, service.namespace, head, RESOURCE_MANAGER_PORT)
    try:
        (await upgraded(dial)).close()
    except SharedPathwaysError as error:
        return [Check.failed("tunnel", error)]
    except (aiohttp.ClientError, OSError) as error:
        fix = "connect() needs WebSockets to the API server; an HTTP proxy may block them"
        broken = TunnelError(f"no port-forward to {head}: {error}", pod=head, hint=fix)
        return [Check.failed("tunnel", broken)]
    return [Check(name="tunnel", outcome=Outcome.OK, found=f"{found.head.name} can be reached")]
