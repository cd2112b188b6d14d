"""API servers that record who asks them for what, and sessions in their clusters."""

from __future__ import annotations

import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from aiohttp import web

from shared_pathways_service.agent.journal import Entry
from shared_pathways_service.agent.messages import Start
from shared_pathways_service.agent.request import start_of, this_requester
from shared_pathways_service.api.requests import SessionRequest
from shared_pathways_service.homes.choice import HomeChoice
from shared_pathways_service.runtime.processes import identity_of
from shared_pathways_service.runtime.settings import Settings

__all__ = ["EXEC", "SERVICE", "Clusters", "entry_of", "started", "two_clusters"]

EXEC = "client.authentication.k8s.io/v1"
SERVICE = "p-pathways-head-0-0.p:29001"


class Clusters:
    """API servers that have nothing, by the name of the context; `asked` hears of requests."""

    def __init__(self) -> None:
        self.urls: dict[str, str] = {}
        self.asked: list[str] = []

    async def answer(self, request: web.Request) -> web.Response:
        name = next(n for n, url in self.urls.items() if url.endswith(f"://{request.host}"))
        self.asked.append(f"{name}: {request.method} {request.path}")
        body = {"kind": "Status", "reason": "NotFound", "code": 404, "message": "not found"}
        return web.json_response(body, status=404)

    def kubeconfig(self, path: Path, current: str, **urls: str) -> Path:
        """Writes a kubeconfig, with other URLs where some are given.

        Its user's credentials come from a program beside it, `plugin`, where there is one.
        """
        plugin = path.with_name("plugin")
        spec = {"apiVersion": EXEC, "command": str(plugin), "interactiveMode": "Never"}
        user = {"exec": spec} if plugin.exists() else {}
        document: dict[str, Any] = {
            "current-context": current,
            "users": [{"name": "me", "user": user}],
            "contexts": [{"name": n, "context": {"cluster": n, "user": "me"}} for n in self.urls],
            "clusters": [
                {"name": n, "cluster": {"server": url, "insecure-skip-tls-verify": True}}
                for n, url in {**self.urls, **urls}.items()
            ],
        }
        path.write_text(json.dumps(document))
        return path


@contextlib.asynccontextmanager
async def two_clusters(tls: ssl.SSLContext | None = None) -> AsyncIterator[Clusters]:
    """Serves them; a client sends its credentials only with TLS."""
    clusters = Clusters()
    async with contextlib.AsyncExitStack() as stack:
        for name in "AB":
            app = web.Application()
            app.router.add_route("*", "/{path:.*}", clusters.answer)
            runner = web.AppRunner(app)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
            host, port = runner.addresses[0]
            clusters.urls[name] = f"{'https' if tls else 'http'}://{host}:{port}"
        yield clusters


def started(**request: Any) -> Start:
    return start_of(
        SessionRequest.build(this_requester(), pathways_service=SERVICE, **request), Settings.load()
    )


def entry_of(start: Start, **options: Any) -> Entry:
    return Entry(
        session=start.session,
        name=start.request.name,
        home=HomeChoice(name=start.home.name, options={**start.home.options, **options}),
        owner=identity_of(),
        agent=identity_of(),
        since="2026",
        uid="uid-in-A",
    )
