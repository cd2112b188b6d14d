"""Tokens of the auth-provider ``oidc`` of a kubeconfig's user.

Rules: plugin/pkg/client/auth/oidc of client-go v0.36, except that an expired token is not renewed
with ``refresh-token``: the identity provider may replace that one, too, and then both would have to
be written to the kubeconfig, which is the user's.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from shared_pathways_service.errors import AccessDenied, InvalidRequestError
from shared_pathways_service.kube.kubeconfig_entry import NOT_SHOWN, Entry
from shared_pathways_service.kube.kubeconfig_file import entries_of, read_file
from shared_pathways_service.kube.tokens import Token, TokenSource, bearer

__all__ = ["is_oidc", "provider_tokens"]

_FIELD = "id-token"
#: A token counts as expired this long before it is, as clocks differ (client-go's `expiryDelta`).
_MARGIN_S = 10.0
_TIME = "%Y-%m-%dT%H:%M:%SZ"
_RENEWAL = "run a command of kubectl, which renews it with refresh-token"
_REMEDY = "use kubelogin, an exec plug-in, or connect(api_client=...)"


def is_oidc(provider: Mapping[str, Any]) -> bool:
    """Whether an ``auth-provider`` is one of OpenID Connect."""
    return provider.get("name") == "oidc"


def provider_tokens(user: Entry, *, now: Callable[[], float] = time.time) -> TokenSource:
    """Returns a source of the user's ``id-token``, until it expires.

    Then the kubeconfig is read again: kubectl may have renewed it there.

    Args:
      user: Of the kubeconfig.
      now: Seconds since the epoch.

    Raises:
      InvalidRequestError: A field is missing or invalid, or the provider is not ``oidc``.
    """
    known = _login_of(user)

    async def fetch() -> Token:
        nonlocal known
        # (kubectl may be writing it.)
        with contextlib.suppress(InvalidRequestError):
            known = _login_of(entries_of(read_file(user.file), "users").get(user.name, user))
        expires_at = known.expiry - _MARGIN_S
        if now() >= expires_at:
            raise AccessDenied(
                f"no credentials for the cluster: {_FIELD} of auth-provider of user {user.name} in "
                f"{user.file} expired at {time.strftime(_TIME, time.gmtime(known.expiry))}",
                verb="connect",
                resource="cluster",
                hint=known.remedy,
            )
        return Token(header=bearer(known.token), expires_at=expires_at, renew_at=expires_at)

    return TokenSource(fetch, of=f"user {user.name}", now=now)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Login:
    token: str = dataclasses.field(repr=False)
    #: Seconds since the epoch.
    expiry: float
    #: What to do once it has expired.
    remedy: str


def _login_of(user: Entry) -> _Login:
    provider = user.mapping("auth-provider")
    of = f"auth-provider of user {user.name}"
    if not is_oidc(provider):
        # (The provider may contain secrets.)
        raise InvalidRequestError(
            of,
            provider.get("name"),
            "oidc, a token, a client certificate or exec, as kubectl has it",
            hint=f"correct it in {user.file}",
        )
    config = _config(user, provider)
    token, remedy = config.header_text(_FIELD), _remedy(config)
    if not token:
        raise InvalidRequestError(
            f"{_FIELD} of {of}",
            "",
            "a token",
            message=f"{_FIELD} of {of} is missing in {user.file}",
            hint=remedy,
        )
    return _Login(token=token, expiry=_expiry(config, token), remedy=remedy)


def _config(user: Entry, provider: Mapping[str, Any]) -> Entry:
    given = provider.get("config") or {}
    config = Entry(kind="auth-provider of user", name=user.name, data=given, file=user.file)
    if not isinstance(given, Mapping):
        raise InvalidRequestError(
            f"config of auth-provider of user {user.name}",
            NOT_SHOWN,
            "fields with values",
            hint=f"correct it in {user.file}",
        )
    for field, value in given.items():
        if not isinstance(field, str) or not isinstance(value, str | None):
            # (Not shown: whatever its name, it may be a secret.)
            raise InvalidRequestError(
                f"{field} of auth-provider of user {user.name}",
                NOT_SHOWN,
                "text with a name: put it in quotes",
                hint=f"correct it in {user.file}",
            )
    for field in ("idp-issuer-url", "client-id"):
        if not config.text(field):
            raise config.invalid(field, "text, which kubectl needs, too")
    return config


def _remedy(config: Entry) -> str:
    return f"{_RENEWAL}; or {_REMEDY}" if config.text("refresh-token") else _REMEDY


def _expiry(config: Entry, token: str) -> float:
    """Returns the ``exp`` of a JWT, in seconds since the epoch; 0: it has none.

    Raises:
      InvalidRequestError: It is not a JWT.
    """
    parts = token.split(".")
    try:
        claims: Any = json.loads(_decoded(parts[1])) if len(parts) == 3 else None
        return max(0.0, float(claims.get("exp", 0.0)))
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        # (What the token contains is not shown.)
        raise config.invalid(_FIELD, "a JSON Web Token with a number as exp") from error


def _decoded(part: str) -> bytes:
    if not re.fullmatch(r"[\w-]*", part, re.ASCII):
        raise ValueError("not base64url")
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
