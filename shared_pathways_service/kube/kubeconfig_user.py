"""Credentials of a kubeconfig's user, in client-go's order of precedence.

Rules: tools/clientcmd, transport and plugin/pkg/client/auth/exec of client-go v0.36.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.kube.auth_provider import is_oidc, provider_tokens
from shared_pathways_service.kube.exec_plugin import Plugin
from shared_pathways_service.kube.kubeconfig_entry import Entry
from shared_pathways_service.kube.tls import show_certificate
from shared_pathways_service.kube.tokens import (
    Token,
    TokenSource,
    basic,
    bearer,
    file_token,
    static_token,
)

__all__ = ["add_credentials", "impersonation_headers"]


def add_credentials(
    user: Entry, tls: ssl.SSLContext, cluster: Mapping[str, Any], login: str = ""
) -> TokenSource:
    """Adds the user's certificate to a TLS context, and returns the source of its headers.

    Args:
      user: Of the kubeconfig.
      tls: For connections to the cluster.
      cluster: Its description, for a plug-in.
      login: Header that counts before all others; empty: none.

    Raises:
      InvalidRequestError: A field is invalid, or two contradict each other.
    """
    has_certificate = _add_certificate(user, tls)
    token, token_file = user.header_text("token"), user.path("tokenFile")
    name, password = user.text("username"), user.text("password")
    if (token and (name or password)) or (token_file and name):
        field = "token" if token else "tokenFile"
        raise user.invalid(field, "only one of token and username with password")
    if login:
        return static_token(login)
    if token_file:
        return file_token(token_file, bearer(token) if token else "")
    if token or name:  # (A password alone is not sent.)
        return static_token(bearer(token) if token else basic(name, password))
    described, provider = user.mapping("exec"), user.mapping("auth-provider")
    # (A certificate is shown beside the token of OpenID Connect.)
    if has_certificate and not is_oidc(provider):
        return static_token()
    if described and provider:
        # (The provider may contain secrets.)
        raise InvalidRequestError(
            f"auth-provider of user {user.name}",
            provider.get("name"),
            "no exec beside it: only one of the two counts",
            hint=f"correct it in {user.file}",
        )
    if described:
        return _plugin_tokens(Plugin(exec=described, cluster=cluster, where=user.file.parent), tls)
    return provider_tokens(user) if provider else static_token()


def _add_certificate(user: Entry, tls: ssl.SSLContext) -> bool:
    certificate = user.content("client-certificate")
    if not certificate:
        return False
    key = user.content("client-key")
    if not key:
        raise user.invalid("client-key", "the key of client-certificate")
    try:
        show_certificate(tls, certificate, key)
    except ssl.SSLError as error:
        raise user.invalid("client-certificate", f"PEM, as client-key, not: {error}") from error
    return True


def _plugin_tokens(plugin: Plugin, tls: ssl.SSLContext) -> TokenSource:
    async def fetch() -> Token:
        given = await plugin.run()
        if given.certificate:
            try:
                show_certificate(tls, given.certificate, given.key)
            except ssl.SSLError as error:
                raise plugin.denied(f"gave no certificate with its key: {error}") from error
        try:
            header = bearer(given.token) if given.token else ""
        except ValueError as error:
            raise plugin.denied(f"gave a token that is none: {error}") from error
        return Token(header=header, expires_at=given.expires_at)

    return TokenSource(fetch, of=plugin.name)


def impersonation_headers(user: Entry) -> tuple[tuple[str, str], ...]:
    """Returns the headers by which the user acts as another.

    Raises:
      InvalidRequestError: A field is invalid, or there is no `as` for its groups, UID or extras.
    """
    name = user.header_text("as")
    headers = [("User", name), ("Uid", user.header_text("as-uid"))]
    headers += [("Group", group) for group in user.texts("as-groups")]
    extras = Entry(
        kind="as-user-extra of user",
        name=user.name,
        data=user.mapping("as-user-extra"),
        file=user.file,
    )
    headers += [
        (f"Extra-{quote(key.lower(), safe='')}", value)
        for key in extras.data
        for value in extras.texts(key)
    ]
    sent = tuple((f"Impersonate-{header}", value) for header, value in headers if value)
    if sent and not name:
        raise user.invalid("as", "the user to whom as-uid, as-groups or as-user-extra belong")
    return sent
