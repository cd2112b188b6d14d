"""Runs probes of containers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

import aiohttp

__all__ = ["until_ready", "until_started"]

_PERIOD_S = 0.2


async def until_ready(probe: Mapping[str, Any], address: str) -> None:
    """Waits until a container is ready; later failures are not probed.

    Args:
      probe: ``tcpSocket``, ``httpGet``, or ``grpc``, which is as good as ``tcpSocket`` here.
      address: The pod's.
    """
    await asyncio.sleep(probe.get("initialDelaySeconds", 0))
    # The kubelet's 10 s are too long for a test.
    period_s = min(_PERIOD_S, probe.get("periodSeconds", 10))
    # A probe has to poll.
    while not await _succeeds(probe, address):  # noqa: ASYNC110
        await asyncio.sleep(period_s)


async def until_started(probe: Mapping[str, Any], address: str) -> bool:
    """Waits until a startup probe succeeds; returns False once it failed for too long."""
    limit_s = probe.get("failureThreshold", 3) * probe.get("periodSeconds", 10)
    try:
        async with asyncio.timeout(probe.get("initialDelaySeconds", 0) + limit_s):
            await until_ready(probe, address)
    except TimeoutError:
        return False
    return True


async def _succeeds(probe: Mapping[str, Any], address: str) -> bool:
    wanted = probe.get("httpGet") or probe.get("tcpSocket") or probe.get("grpc")
    if wanted is None:
        return True
    with contextlib.suppress(OSError, aiohttp.ClientError, TimeoutError):
        async with asyncio.timeout(probe.get("timeoutSeconds", 1)):
            if "httpGet" in probe:
                url = f"http://{address}:{wanted['port']}{wanted.get('path', '/')}"
                async with aiohttp.ClientSession() as session, session.get(url) as answer:
                    return answer.status < 400
            _, writer = await asyncio.open_connection(address, wanted["port"])
            writer.close()
            return True
    return False
