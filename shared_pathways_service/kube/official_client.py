"""Reads the access of the official client (``kubernetes.client``) that a program has set up.

Fields: ``Configuration`` and ``ApiClient`` of the package's versions 31 to 37. The package is never
imported: there is an object of it only if the program has.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.request import getproxies

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from shared_pathways_service.api.given_client import (
    configuration_of,
    is_client,
    server_of_client,
)
from shared_pathways_service.errors import AccessDenied
from shared_pathways_service.kube.given_access import check_access, invalid
from shared_pathways_service.kube.handed_over import HandedOver, Login
from shared_pathways_service.kube.http_proxies import is_named_by
from shared_pathways_service.kube.kubeconfig_entry import NOT_SHOWN

__all__ = ["handed_over", "login_of"]

#: Fields of a ``Configuration`` that have no counterpart here, and what is expected of them.
_REFUSED = {
    "username": "None: the official client does not send it; have api_key contain 'Basic …'",
    "password": "None: the official client does not send it; have api_key contain 'Basic …'",
    "access_token": "None: the official client does not send it; have api_key contain the token",
    "proxy_ssl_context": "None: the authorities for the server count for its proxy, too",
}
#: Header of the official client's login, in lower case.
_LOGIN_HEADER = "authorization"


def handed_over(api_client: object) -> HandedOver:
    """Reads the access of an ``ApiClient`` or a ``Configuration``; may call its hook.

    Settings of requests, such as retries and time-outs, are not part of it.

    Raises:
      InvalidRequestError: A field is invalid, or cannot be carried over.
      AccessDenied: The hook failed.
    """
    configuration = configuration_of(api_client)
    for name, expected in _REFUSED.items():
        if getattr(configuration, name, None) is not None:
            raise invalid(name, NOT_SHOWN, expected)
    checks_host = configuration.assert_hostname
    if checks_host not in (None, False):
        raise invalid("assert_hostname", checks_host, "None or False; tls_server_name names a host")
    server = server_of_client(api_client)
    found = HandedOver(
        server=server,
        authority=_authority(configuration),
        verify=bool(configuration.verify_ssl),
        checks_host=checks_host is None,
        server_name=_text(configuration, "tls_server_name"),
        headers=_headers(api_client),
        login=login_of(api_client),
        **_way(configuration, server),
    )
    check_access(found)
    return found


def login_of(api_client: object) -> Login:
    """Reads the present login; calls the ``refresh_api_key_hook``.

    Raises:
      InvalidRequestError: A field is invalid.
      AccessDenied: The hook failed.
    """
    configuration = configuration_of(api_client)
    try:
        settings = list(configuration.auth_settings().values())
    except Exception as error:  # the hook is the user's code
        raise AccessDenied(
            f"the refresh_api_key_hook of api_client failed: {type(error).__name__}: {error}",
            verb="connect",
            resource="cluster",
        ) from error
    header = next((value for name, value in _default_headers(api_client) if _is_login(name)), "")
    for setting in settings:
        if setting["in"] != "header" or not _is_login(setting["key"]):
            raise invalid("auth_settings()", setting["key"], "only the header Authorization")
        # (The official client sends no header without a value.)
        header = setting["value"] or header
    certificate = _content(configuration, "cert_file")
    return Login(
        header=_one_line("api_key", header),
        certificate=certificate,
        key=_content(configuration, "key_file") or certificate,
    )


def _authority(configuration: Any) -> str:
    # (Both count. Older versions of the package have no ca_cert_data.)
    given = getattr(configuration, "ca_cert_data", None) or ""
    if isinstance(given, bytes):
        try:
            given = x509.load_der_x509_certificate(given).public_bytes(Encoding.PEM).decode()
        except ValueError as error:
            raise invalid("ca_cert_data", NOT_SHOWN, "PEM, or one certificate in DER") from error
    if not isinstance(given, str):
        raise invalid("ca_cert_data", NOT_SHOWN, "PEM certificates")
    given = given.encode("ascii", errors="replace").decode()
    return "\n".join(filter(None, (_content(configuration, "ssl_ca_cert"), given)))


def _way(configuration: Any, server: str) -> dict[str, Any]:
    """Returns the fields of `HandedOver` about proxies."""
    url, no_proxy = _text(configuration, "proxy"), _text(configuration, "no_proxy")
    headers = configuration.proxy_headers or {}
    if url and url in getproxies().values() and not headers:
        # (The official client reads the environment, too, by other rules.)
        return {}
    if not url or is_named_by(no_proxy, server):
        return {"is_direct": True}
    given = tuple((str(name), _one_line("proxy_headers", value)) for name, value in headers.items())
    return {"proxy": url, "proxy_headers": given}


def _headers(api_client: object) -> tuple[tuple[str, str], ...]:
    given = [
        (name, _one_line(f"default_headers[{name!r}]", value))
        for name, value in _default_headers(api_client)
        if name.lower() not in (_LOGIN_HEADER, "user-agent")
    ]
    if cookie := getattr(api_client, "cookie", None):
        given.append(("Cookie", _one_line("cookie", cookie)))
    return tuple(given)


def _default_headers(api_client: object) -> list[tuple[str, Any]]:
    if not is_client(api_client):
        return []
    return [(str(name), value) for name, value in getattr(api_client, "default_headers").items()]  # noqa: B009


def _is_login(header: str) -> bool:
    return header.lower() == _LOGIN_HEADER


def _text(configuration: Any, field: str) -> str:
    value = getattr(configuration, field, None)
    if value is not None and not isinstance(value, str):
        raise invalid(field, type(value).__name__, "text")
    return value or ""


def _one_line(field: str, value: Any) -> str:
    if not isinstance(value, str) or not value.isprintable() or not value.isascii():
        raise invalid(field, NOT_SHOWN, "one line of ASCII text")
    return value


def _content(configuration: Any, field: str) -> str:
    """Returns the content of the file that a field names; empty: the field is not set.

    Read at once: the official client's temporary files end with the program.
    """
    path = getattr(configuration, field, None)
    if not path:
        return ""
    try:
        return Path(path).read_bytes().decode("latin-1")
    except (OSError, TypeError) as error:
        raise invalid(field, str(path), f"a file that can be read, not: {error}") from error
