"""Access to an API server, of what a program handed over (`HandedOver`)."""

from __future__ import annotations

import dataclasses
import ssl
import time
from collections.abc import Awaitable, Callable

from shared_pathways_service.errors import AccessDenied, InvalidRequestError
from shared_pathways_service.kube.cluster import ClusterAccess
from shared_pathways_service.kube.handed_over import HandedOver, Login
from shared_pathways_service.kube.http_proxies import NetworkProxy
from shared_pathways_service.kube.kubeconfig_entry import NOT_SHOWN
from shared_pathways_service.kube.tls import client_tls, show_certificate
from shared_pathways_service.kube.tokens import Token, TokenSource, static_token

__all__ = ["access_of", "check_access", "invalid"]

#: Seconds until the program is asked for its login again. The official client calls its hook before
#: each request.
_ASK_INTERVAL_S = 45.0


def check_access(found: HandedOver) -> None:
    """Makes the checks of `access_of`, and of the certificate; raises InvalidRequestError."""
    _proxy(found)
    if found.server.startswith("https://"):
        _show(_tls(found), found.login)


def access_of(found: HandedOver, ask: Callable[[], Awaitable[Login]]) -> ClusterAccess:
    """Returns access to the API server.

    Args:
      found: What the program handed over.
      ask: Asks the program for its present login; has a deadline, raises `SharedPathwaysError`.

    Raises:
      InvalidRequestError: A field is invalid.
    """
    access = ClusterAccess(
        server=found.server,
        tls=None,
        tokens=static_token(),
        name=f"the cluster at {found.server}",
        server_name=found.server_name,
        proxy=_proxy(found),
        is_direct=found.is_direct,
        headers=found.headers,
    )
    if found.server.startswith("http://"):
        # As kubectl, which sends no credentials without TLS.
        return access
    tls = _tls(found)
    return dataclasses.replace(access, tls=tls, tokens=_tokens(found.login, tls, ask))


def _proxy(found: HandedOver) -> NetworkProxy | None:
    if not found.proxy:
        return None
    named = NetworkProxy.parse(found.proxy, "proxy of api_client")
    if named.is_socks and found.proxy_headers:
        raise invalid("proxy_headers", NOT_SHOWN, "None for a SOCKS proxy")
    return dataclasses.replace(named, more_headers=found.proxy_headers)


def _tokens(first: Login, tls: ssl.SSLContext, ask: Callable[[], Awaitable[Login]]) -> TokenSource:
    unused: list[Login] = [first]
    shown = Login()

    async def fetch() -> Token:
        nonlocal shown
        try:
            login = unused.pop() if unused else await ask()
            if (login.certificate, login.key) != (shown.certificate, shown.key):
                _show(tls, login)
                shown = login
        except InvalidRequestError as error:
            # It was valid before: perhaps the program is just writing the files.
            raise AccessDenied(error.message, verb="connect", resource="cluster") from error
        # It is valid until the server refuses it: the program may end before this agent.
        return Token(header=login.header, renew_at=time.time() + _ASK_INTERVAL_S)

    return TokenSource(fetch, of="the program's api_client")


def _tls(found: HandedOver) -> ssl.SSLContext:
    try:
        tls = client_tls(authority=found.authority.encode("latin-1"), verify=found.verify)
    except ssl.SSLError as error:
        raise invalid("ssl_ca_cert", NOT_SHOWN, f"PEM certificates, not: {error}") from error
    tls.check_hostname = tls.check_hostname and found.checks_host
    return tls


def _show(tls: ssl.SSLContext, login: Login) -> None:
    if not login.certificate:
        return
    try:
        show_certificate(tls, login.certificate.encode("latin-1"), login.key.encode("latin-1"))
    except ssl.SSLError as error:
        raise invalid("cert_file", NOT_SHOWN, f"PEM, as key_file, not: {error}") from error


def invalid(field: str, value: object, expected: str) -> InvalidRequestError:
    """Returns the error for a field of the official client."""
    return InvalidRequestError(f"{field} of api_client", value, expected)
