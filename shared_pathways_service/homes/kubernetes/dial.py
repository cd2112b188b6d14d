"""Opens a connection to a port of a pod through the API server."""

from __future__ import annotations

from collections.abc import Mapping

import aiohttp

from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.paths import port_forward

__all__ = ["dial_pod"]


async def dial_pod(
    api: KubeApi, namespace: str, pod: str, port: int, headers: Mapping[str, str]
) -> aiohttp.ClientResponse:
    """Requests a port-forward, in the form of `tunnel.websocket_upgrade.Dial`.

    Raises the errors of `KubeApi.upgrade`.
    """
    return await api.upgrade(
        port_forward(namespace, pod), params={"ports": str(port)}, headers=headers
    )
