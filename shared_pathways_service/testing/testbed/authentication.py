"""Authenticates tokens for the API server; users can be added, and tokens revoked, while it runs.

The API server asks over HTTPS (TokenReview, ``authentication.k8s.io/v1``). It caches a refusal for
`CACHE_S`, and believes an accepted token for ten seconds (`access_changes`).
"""

from __future__ import annotations

import dataclasses
import json
import ssl
import time
from pathlib import Path
from typing import Any

from aiohttp import web

from shared_pathways_service.constants import LOOPBACK
from shared_pathways_service.testing.testbed.certificates import Certificates
from shared_pathways_service.testing.testbed.users import User

__all__ = ["CACHE_S", "Authentication"]

#: Seconds for which the API server caches a refusal.
CACHE_S = 1

_PATH = "/authenticate"


@dataclasses.dataclass(frozen=True)
class _Known:
    user: User
    ends: float


class Authentication:
    """The users that were added after the start; start it before the API server.

    Args:
      certificates: The server's certificates.
      port: Its port on loopback.
    """

    def __init__(self, certificates: Certificates, port: int) -> None:
        self._certificates = certificates
        self._port = port
        self._tokens: dict[str, _Known] = {}
        app = web.Application()
        app.router.add_post(_PATH, self._authenticate)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)

    async def start(self) -> None:
        """Starts to serve."""
        await self._runner.setup()
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(self._certificates.certificate, self._certificates.key)
        await web.TCPSite(self._runner, LOOPBACK, self._port, ssl_context=tls).start()

    async def stop(self) -> None:
        """Stops."""
        await self._runner.cleanup()

    def write_config(self, path: Path) -> Path:
        """Writes the file that configures the API server to ask this webhook."""
        server = f"https://{LOOPBACK}:{self._port}{_PATH}"
        cluster = {"server": server, "certificate-authority": str(self._certificates.authority)}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "testbed", "cluster": cluster}],
            "users": [{"name": "api-server", "user": {}}],
            "contexts": [
                {"name": "testbed", "context": {"cluster": "testbed", "user": "api-server"}}
            ],
            "current-context": "testbed",
        }
        path.write_text(json.dumps(content), encoding="utf-8")
        return path

    def add(self, user: User, lifetime_s: float | None = None) -> None:
        """Adds a user with a token, for a limited time if one is given."""
        ends = float("inf") if lifetime_s is None else time.monotonic() + lifetime_s
        self._tokens[user.token] = _Known(user, ends)

    def end(self, token: str) -> None:
        """Revokes a token."""
        self._tokens.pop(token, None)

    async def _authenticate(self, request: web.Request) -> web.Response:
        review = await request.json()
        return web.json_response(
            {
                "apiVersion": "authentication.k8s.io/v1",
                "kind": "TokenReview",
                "status": self._status(review["spec"]["token"]),
            }
        )

    def _status(self, token: str) -> dict[str, Any]:
        known = self._tokens.get(token)
        if known is None or time.monotonic() >= known.ends:
            return {"authenticated": False}
        name = known.user.name
        user = {"username": name, "uid": name, "groups": list(known.user.groups)}
        return {"authenticated": True, "user": user}
