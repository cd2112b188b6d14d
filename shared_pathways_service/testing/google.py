"""A loopback stand-in for the two Google endpoints that access to GKE needs.

They are the token endpoint of OAuth 2.0 (RFC 7523: a service account's signed assertion is
exchanged for an access token), and ``clusters.get`` and ``clusters.list`` of the Kubernetes Engine
API, v1.
"""

from __future__ import annotations

import base64
import dataclasses
import http.server
import json
import re
import ssl
import threading
import time
import urllib.parse
import uuid
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, Self

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.auth import jwt
from google.auth.exceptions import GoogleAuthError

__all__ = ["FakeCluster", "FakeGoogle"]

#: The audience of google-auth's assertions, regardless of the key file.
_AUDIENCE = "https://oauth2.googleapis.com/token"
_GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_CLUSTERS = re.compile(r"/v1/projects/([^/]+)/locations/([^/]+)/clusters(?:/([^/]+))?")
_MAX_BODY_BYTES = 1 << 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class FakeCluster:
    """One cluster, as the Kubernetes Engine API describes it.

    Attributes:
      authority: PEM certificate of the authority of the address endpoints.
      dns_endpoint: Host, with a port unless it is 443; the other endpoints: address, in the same
        way. Empty: the cluster has none.
      dns_is_open: Whether it admits traffic from outside Google's network.
    """

    name: str
    project: str
    region: str
    authority: str
    dns_endpoint: str = ""
    dns_is_open: bool = True
    public_endpoint: str = ""
    private_endpoint: str = ""

    def to_json(self) -> dict[str, Any]:
        """Returns the answer of ``clusters.get``."""
        addresses = {
            "enabled": True,
            "publicEndpoint": self.public_endpoint,
            "privateEndpoint": self.private_endpoint,
        }
        name = {"endpoint": self.dns_endpoint, "allowExternalTraffic": self.dns_is_open}
        return {
            "name": self.name,
            "location": self.region,
            "status": "RUNNING",
            "endpoint": self.public_endpoint or self.private_endpoint,
            "masterAuth": {
                "clusterCaCertificate": base64.b64encode(self.authority.encode()).decode()
            },
            "controlPlaneEndpointsConfig": {
                "dnsEndpointConfig": {k: v for k, v in name.items() if v},
                "ipEndpointsConfig": {k: v for k, v in addresses.items() if v},
            },
        }


class _Server(http.server.ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """Prints nothing: clients may go, and may refuse the certificate."""


class FakeGoogle:
    """Both endpoints, on one loopback port, in a thread. Use as a context manager.

    Args:
      clusters: The existing clusters.
      new_token: Creates access tokens; a test uses tokens that its API server knows.
      token_life_s: Seconds until a token expires.
      may_look_up: Whether holders of a token may read clusters.
      tls: For https://; None: http://.

    Attributes:
      url: Of both endpoints, without a slash at its end.
      requests: Method and path of each request, in order.
    """

    def __init__(
        self,
        clusters: Sequence[FakeCluster] = (),
        *,
        new_token: Callable[[], str] = lambda: uuid.uuid4().hex,
        token_life_s: int = 3600,
        may_look_up: bool = True,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._clusters = tuple(clusters)
        self._new_token = new_token
        self._token_life_s = token_life_s
        self._may_look_up = may_look_up
        self._good_until: dict[str, float] = {}
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.requests: list[tuple[str, str]] = []
        self._server = _Server(("127.0.0.1", 0), self._handler())
        scheme = "http"
        if tls is not None:
            # (The handshake is the request's first reading, in its thread.)
            self._server.socket = tls.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
            scheme = "https"
        self.url = f"{scheme}://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="fake-google")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def write_credentials(self, path: Path) -> None:
        """Writes a service account's key file, for ``GOOGLE_APPLICATION_CREDENTIALS``."""
        key = self._key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        document = {
            "type": "service_account",
            "project_id": "fake-project",
            "private_key_id": "fake-key",
            "private_key": key.decode(),
            "client_email": "tenant@fake-project.iam.gserviceaccount.com",
            "client_id": "1",
            "token_uri": f"{self.url}/token",
        }
        path.write_text(json.dumps(document))

    def revoke_tokens(self) -> None:
        """Revokes all tokens."""
        self._good_until.clear()

    def _token(self, form: Mapping[str, Sequence[str]]) -> tuple[HTTPStatus, dict[str, Any]]:
        if form.get("grant_type") != [_GRANT] or not form.get("assertion"):
            return HTTPStatus.BAD_REQUEST, {"error": "unsupported_grant_type"}
        if not self._is_signed(form["assertion"][0]):
            error = {"error": "invalid_grant", "error_description": "Invalid JWT Signature."}
            return HTTPStatus.BAD_REQUEST, error
        token = self._new_token()
        self._good_until[token] = time.monotonic() + self._token_life_s
        answer = {"access_token": token, "expires_in": self._token_life_s, "token_type": "Bearer"}
        return HTTPStatus.OK, answer

    def _is_signed(self, assertion: str) -> bool:
        public = self._key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        try:
            jwt.decode(assertion, certs=public, audience=_AUDIENCE)
        except GoogleAuthError:
            return False
        return True

    def _clusters_of(
        self, project: str, region: str, name: str | None
    ) -> tuple[HTTPStatus, dict[str, Any]]:
        found = [c for c in self._clusters if c.project == project and region in {c.region, "-"}]
        if name is None:
            return HTTPStatus.OK, {"clusters": [c.to_json() for c in found]} if found else {}
        if cluster := next((c for c in found if c.name == name), None):
            return HTTPStatus.OK, cluster.to_json()
        where = f"projects/{project}/locations/{region}/clusters/{name}"
        return _error(HTTPStatus.NOT_FOUND, "NOT_FOUND", f"Not found: {where}.")

    def _look_up(self, path: str, authorization: str) -> tuple[HTTPStatus, dict[str, Any]]:
        token = authorization.removeprefix("Bearer ")
        if self._good_until.get(token, 0.0) <= time.monotonic():
            return _error(HTTPStatus.UNAUTHORIZED, "UNAUTHENTICATED", "Invalid credentials.")
        if not self._may_look_up:
            text = 'Required "container.clusters.get" permission(s).'
            return _error(HTTPStatus.FORBIDDEN, "PERMISSION_DENIED", text)
        match = _CLUSTERS.fullmatch(path)
        if match is None:
            return _error(HTTPStatus.NOT_FOUND, "NOT_FOUND", "Method not found.")
        return self._clusters_of(*match.groups())

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        google = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                google.requests.append(("GET", self.path))
                authorization = self.headers.get("Authorization", "")
                self._answer(*google._look_up(self.path, authorization))

            def do_POST(self) -> None:
                google.requests.append(("POST", self.path))
                size = min(int(self.headers.get("Content-Length", 0)), _MAX_BODY_BYTES)
                form = urllib.parse.parse_qs(self.rfile.read(size).decode())
                self._answer(*google._token(form))

            def _answer(self, status: HTTPStatus, body: Mapping[str, Any]) -> None:
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json; charset=UTF-8")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                """Logs nothing: `FakeGoogle.requests` has the request."""

        return Handler


def _error(status: HTTPStatus, word: str, text: str) -> tuple[HTTPStatus, dict[str, Any]]:
    return status, {"error": {"code": int(status), "message": text, "status": word}}
