"""Serves ``/metrics`` over HTTP, as OpenMetrics text."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Iterable

from aiohttp import web

from shared_pathways_service.errors import SharedPathwaysError
from shared_pathways_service.metrics.exposition import CONTENT_TYPE_LATEST, render
from shared_pathways_service.metrics.families import Family
from shared_pathways_service.patience import timeouts
from shared_pathways_service.protocol.auth import shows
from shared_pathways_service.runtime.listeners import listen

__all__ = ["Serving", "serve_metrics"]


@dataclasses.dataclass(frozen=True)
class Serving:
    """A running metrics server; `close` stops it."""

    url: str
    close: Callable[[], Awaitable[None]]


async def serve_metrics(
    families: Callable[[], Iterable[Family]], *, address: str, port: int, token: str | None
) -> Serving:
    """Serves the current result of `families` at each request.

    Args:
      families: Called on this event loop; its result is read on another thread.
      address: To bind; without brackets.
      port: To bind; 0: any.
      token: The bearer token that a scraper must send; None: no token.

    Raises:
      SharedPathwaysError: The port cannot be bound.
    """

    async def answer(request: web.Request) -> web.Response:
        if not shows(request.headers.get("Authorization", ""), token):
            raise web.HTTPUnauthorized(headers={"WWW-Authenticate": "Bearer"})
        # Those of a thousand tenants take seconds.
        text = await asyncio.to_thread(render, families())
        return web.Response(body=text.encode(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.router.add_get("/metrics", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=timeouts.HTTP_SHUTDOWN.s)
    await runner.setup()
    try:
        await web.SockSite(runner, listen(address, port)).start()
    except OSError as error:
        await runner.cleanup()
        raise SharedPathwaysError(
            f"cannot serve metrics on {address}:{port}: {error.strerror}",
            hint="--metrics_port=0 takes any port that is free",
        ) from error
    host = f"[{address}]" if ":" in address else address
    return Serving(f"http://{host}:{runner.addresses[0][1]}/metrics", runner.cleanup)
