"""An issuer of signed assertions: its keys, what it signs, and its server."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from shared_pathways_service.api.page_identity import IAP, OIDC, PageIdentity

__all__ = ["AUDIENCE", "IAP_ISSUER", "Issuer", "iap", "oidc", "serving_documents"]

AUDIENCE = "/projects/1/global/backendServices/2"
IAP_ISSUER = "https://cloud.google.com/iap"
_FORMS: Mapping[str, Any] = {
    "ES256": jwt.algorithms.ECAlgorithm,
    "RS256": jwt.algorithms.RSAAlgorithm,
}


def iap(jwks: str = "/no/such/file") -> PageIdentity:
    return PageIdentity.check(IAP, audience=AUDIENCE, jwks=jwks)


def oidc(issuer: str, **options: str) -> PageIdentity:
    return PageIdentity.check(OIDC, audience="tpus", issuer=issuer, **options)


class Issuer:
    """Signs assertions with the latest of its keys.

    Attributes:
      name: The claim ``iss``.
    """

    def __init__(self, name: str = IAP_ISSUER, algorithm: str = "ES256") -> None:
        self.name = name
        self._algorithm = algorithm
        self._keys: dict[str, Any] = {}
        self.rotate()

    def rotate(self, *, keep: bool = False) -> None:
        """Makes a new key; with `keep` beside those that were there."""
        if not keep:
            self._keys.clear()
        is_ec = self._algorithm == "ES256"
        made = ec.generate_private_key(ec.SECP256R1()) if is_ec else _rsa_key()
        self._keys[f"key-{time.monotonic_ns()}"] = made

    def jwks(self) -> dict[str, Any]:
        """Returns the public keys."""
        return {"keys": [self._public(name) for name in self._keys]}

    def pem(self) -> bytes:
        """Returns the latest public key as text."""
        [*_, key] = self._keys.values()
        return bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))

    def claims(self, **changed: Any) -> dict[str, Any]:
        """Returns the claims of a good assertion, with changes; None: without that claim."""
        now = int(time.time())
        claims = {
            "iss": self.name,
            "aud": AUDIENCE if self.name == IAP_ISSUER else "tpus",
            "sub": "accounts.google.com:117",
            "email": "ada@example.org",
            "iat": now,
            "exp": now + 600,
            **changed,
        }
        return {name: value for name, value in claims.items() if value is not None}

    def signed(
        self, *, kid: str | None = None, headers: Mapping[str, Any] | None = None, **changed: Any
    ) -> str:
        """Returns an assertion."""
        [*_, (name, key)] = self._keys.items()
        named = {"kid": name if kid is None else kid, **(headers or {})}
        # (`jwt.encode` refuses some wrong claims itself.)
        claims = json.dumps(self.claims(**changed)).encode()
        return jwt.api_jws.encode(claims, key, self._algorithm, headers=named)

    def _public(self, name: str) -> dict[str, Any]:
        form = _FORMS[self._algorithm]
        public: Any = self._keys[name].public_key()
        return {**json.loads(form.to_jwk(public)), "kid": name, "use": "sig"}


def _rsa_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@contextlib.contextmanager
def serving_documents(documents: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Serves JSON by path; yields the URL, and the paths that were asked for.

    A document that is a text is where the answer leads to.
    """
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            found = documents.get(self.path)
            self.send_response(404 if found is None else 302 if isinstance(found, str) else 200)
            if isinstance(found, str):
                self.send_header("Location", found)
            body = b"" if found is None else json.dumps(found).encode()
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", asked
        finally:
            server.shutdown()
            thread.join()
