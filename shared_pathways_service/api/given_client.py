"""Checks the official Kubernetes client that a program hands over, without importing it."""

from __future__ import annotations

import sys
from typing import Any

from shared_pathways_service.api.validation import server_url
from shared_pathways_service.errors import InvalidRequestError

__all__ = ["check_api_client", "configuration_of", "is_client", "server_of_client"]

_MODULE = "kubernetes.client"
_EXPECTED = "a kubernetes.client.ApiClient or a kubernetes.client.Configuration"


def check_api_client(value: object) -> object | None:
    """Returns the client; None: not given.

    Raises:
      InvalidRequestError: It is no client of the package ``kubernetes``, or has no valid host.
    """
    if value is not None:
        server_of_client(value)
    return value


def configuration_of(value: object) -> Any:
    """Returns the ``Configuration`` of a client, or the value if it is one.

    Raises:
      InvalidRequestError: It is neither.
    """
    if is_client(value):
        value = getattr(value, "configuration", None)
    if _is_a(value, "Configuration"):
        return value
    # (Not the value itself: its text may contain secrets.)
    kind = type(value)
    hint = "pass its attribute api_client" if _is_client_of(value) else ""
    name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    raise InvalidRequestError(
        "api_client",
        name,
        _EXPECTED,
        message=f"api_client is not valid: expected {_EXPECTED}, not an object of type {name}",
        hint=hint,
    )


def is_client(value: object) -> bool:
    """Whether a value is an ``ApiClient``."""
    return _is_a(value, "ApiClient")


def server_of_client(value: object) -> str:
    """Returns the URL of a client's API server, without a slash at its end.

    Raises:
      InvalidRequestError: It is no client, or its host is not a URL of a server.
    """
    host = configuration_of(value).host
    url = server_url(host) if isinstance(host, str) else None
    if url is None:
        raise InvalidRequestError("host of api_client", host, "https://HOST or https://HOST:PORT")
    if url.username is not None or url.query or url.fragment:
        raise InvalidRequestError(
            "host of api_client", "(not shown)", "a URL without a user, a query and a fragment"
        )
    return url._replace(path=url.path.rstrip("/")).geturl()


def _is_a(value: object, name: str) -> bool:
    # Without the package, there is no object of it.
    kind = getattr(sys.modules.get(_MODULE), name, None)
    return isinstance(kind, type) and isinstance(value, kind)


def _is_client_of(value: object) -> bool:
    return _is_a(getattr(value, "api_client", None), "ApiClient")
