"""One connection to a port of a pod, through the API server."""

from __future__ import annotations

from typing import Any

import aiohttp

from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.paths import port_forward

__all__ = ["dial_pod"]

_PROTOCOLS = ("v4.channel.k8s.io",)


async def dial_pod(
    api: KubeApi, namespace: str, pod: str, port: int
) -> aiohttp.ClientWebSocketResponse[Any]:
    """Opens a port-forward; raises what `KubeApi.websocket` does."""
    return await api.websocket(
        port_forward(namespace, pod), params={"ports": str(port)}, protocols=_PROTOCOLS
    )
