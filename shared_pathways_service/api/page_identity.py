"""Options of the signed assertions that tell a page its user, checked. Pure."""

from __future__ import annotations

import dataclasses
import re
from typing import Final
from urllib.parse import urlsplit

from shared_pathways_service.errors import InvalidRequestError

__all__ = ["IAP", "KINDS", "OIDC", "PageIdentity", "is_key_url", "is_page_url"]

IAP: Final = "iap"
OIDC: Final = "oidc"
KINDS: Final = (IAP, OIDC)

#: Source: "Securing your app with signed headers" of the documentation of Identity-Aware Proxy.
_IAP_HEADER: Final = "X-Goog-IAP-JWT-Assertion"
_IAP_ISSUER: Final = "https://cloud.google.com/iap"
_IAP_KEYS: Final = "https://www.gstatic.com/iap/verify/public_key-jwk"
_OIDC_HEADER: Final = "Authorization"

_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
#: Headers that have an ID token, or a proxy's own assertion, and nothing that clients choose: not a
#: plain name, an access token, which any client of the provider has, or a cookie.
_HEADER: Final = re.compile(r"authorization|([a-z0-9]+-)*(id-token|jwt-assertion)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PageIdentity:
    """The assertions that a page accepts.

    Attributes:
      kind: ``iap``: Google's Identity-Aware Proxy; ``oidc``: an ID token of an OpenID provider.
      audience: The audience of the assertions: IAP's backend service, or the client's id.
      issuer: Their issuer, exactly as in the claim ``iss``.
      jwks: The issuer's public keys as a JWK set: an https URL or the path of a file; empty: the
        URL that the issuer's discovery document names.
      header: The header with the assertion; ``Authorization`` has it after ``Bearer``.
    """

    kind: str
    audience: str
    issuer: str
    jwks: str
    header: str

    @classmethod
    def check(
        cls,
        kind: str,
        *,
        audience: str | None,
        issuer: str | None = None,
        jwks: str | None = None,
        header: str | None = None,
        prefix: str = "--",
    ) -> PageIdentity:
        """Checks the options of a page, and adds what they imply.

        Args:
          kind: One of `KINDS`.
          audience: Needed.
          issuer: Needed for ``oidc``; ``iap`` has its own.
          jwks: None: the issuer's.
          header: None: that of the kind; ``iap`` has no other.
          prefix: What the names of the options begin with, for errors: ``--`` or ``--ui-``.

        Raises:
          InvalidRequestError: An option is missing, wrong, or not for this kind.
        """
        if kind not in KINDS:
            raise InvalidRequestError(f"{prefix}identity", kind, " or ".join(KINDS))
        if not audience or audience != audience.strip():
            raise InvalidRequestError(f"{prefix}audience", audience, _AUDIENCES[kind])
        if jwks is not None:
            _check_jwks(f"{prefix}jwks", jwks)
        if kind == IAP:
            for name, value in (("issuer", issuer), ("identity-header", header)):
                if value is not None:
                    expected = f"to be given only with {prefix}identity oidc: IAP has its own"
                    raise InvalidRequestError(f"{prefix}{name}", value, expected)
            keys = _IAP_KEYS if jwks is None else jwks
            return cls(
                kind=kind, audience=audience, issuer=_IAP_ISSUER, jwks=keys, header=_IAP_HEADER
            )
        if issuer is None or not is_page_url(issuer) or not is_key_url(issuer):
            expected = "the https URL of the OpenID provider, as in its tokens' claim iss"
            raise InvalidRequestError(f"{prefix}issuer", issuer, expected)
        return cls(
            kind=kind,
            audience=audience,
            issuer=issuer,
            jwks=jwks or "",
            header=_check_header(f"{prefix}identity-header", header),
        )

    def options(self) -> list[str]:
        """Returns the options of `sps ui` that make this identity."""
        words = [f"--identity={self.kind}", f"--audience={self.audience}"]
        if self.kind == OIDC:
            words += [f"--issuer={self.issuer}", f"--identity-header={self.header}"]
        return [*words, *([f"--jwks={self.jwks}"] if self.jwks else ())]


_AUDIENCES: Final = {
    IAP: "the audience of IAP's assertions, /projects/NUMBER/global/backendServices/ID",
    OIDC: "the audience of the ID tokens, which is the proxy's client id",
}


def is_page_url(url: str) -> bool:
    """Whether a text is an address at which a proxy may serve a page."""
    try:
        # (It leaves out line ends and tabs, and what it returns is not what is used then.)
        parts = urlsplit(url if _is_plain(url) else "")
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    return is_address and not parts.query and not parts.fragment


def is_key_url(url: str) -> bool:
    """Whether keys that are read at a URL come from its host, or from this machine.

    A provider may tell its applications apart by a query.
    """
    try:
        parts = urlsplit(url if _is_plain(url) else "")
        is_address = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    if not is_address or parts.fragment or "@" in parts.netloc:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK)


def _is_plain(url: str) -> bool:
    return url.isprintable() and " " not in url


def _check_jwks(field: str, jwks: str) -> None:
    if not jwks.startswith("/") and not is_key_url(jwks):
        raise InvalidRequestError(field, jwks, "an https URL, or the absolute path of a file")


def _check_header(field: str, header: str | None) -> str:
    if header is None:
        return _OIDC_HEADER
    if not _HEADER.fullmatch(header.lower()):
        expected = "Authorization, or a name that ends with Id-Token or Jwt-Assertion: a signed one"
        raise InvalidRequestError(field, header, expected)
    return header
