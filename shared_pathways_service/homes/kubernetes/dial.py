"""One connection to a port of a pod, through the API server."""

from __future__ import annotations

from collections.abc import Mapping

import aiohttp

from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.paths import port_forward

__all__ = ["dial_pod"]


async def dial_pod(
    api: KubeApi, namespace: str, pod: str, port: int, headers: Mapping[str, str]
) -> aiohttp.ClientResponse:
    """Asks for a port-forward, as `tunnel.websocket_upgrade.Dial` says.

    Raises what `KubeApi.upgrade` does.
    """
    return await api.upgrade(
        port_forward(namespace, pod), params={"ports": str(port)}, headers=headers
    )
