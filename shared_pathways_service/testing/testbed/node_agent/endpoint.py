"""Waits until KWOK, the kubelet endpoint, knows a pod; only then the pod counts as running."""

from __future__ import annotations

import asyncio
import contextlib

import aiohttp

from shared_pathways_service.constants import LOOPBACK

__all__ = ["KubeletEndpoint"]

#: Seconds between two polls, and after which a pod counts as running anyway.
_LOOK_S = 0.03
_KNOWN_S = 10.0
_UNKNOWN = "no logs found"


class KubeletEndpoint:
    """Polls KWOK, which knows a pod's logs and ports about 0.3 s after they were written.

    Attributes:
      port: KWOK's port on loopback.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Opens the HTTP client."""
        # The server is this testbed's own KWOK, and no secrets are sent to it.
        connector = aiohttp.TCPConnector(ssl=False)
        self._session = aiohttp.ClientSession(connector=connector)

    async def stop(self) -> None:
        """Closes the HTTP client."""
        if self._session is not None:
            await self._session.close()

    async def until_known(self, namespace: str, pod: str, container: str) -> None:
        """Waits until a pod's logs can be read."""
        assert self._session is not None
        url = f"https://{LOOPBACK}:{self.port}/containerLogs/{namespace}/{pod}/{container}"
        with contextlib.suppress(TimeoutError, aiohttp.ClientError):
            async with asyncio.timeout(_KNOWN_S):
                while True:
                    async with self._session.get(url, params={"tailLines": "1"}) as answer:
                        if _UNKNOWN not in await answer.text(errors="replace"):
                            return
                    await asyncio.sleep(_LOOK_S)
