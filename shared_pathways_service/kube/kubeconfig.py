"""Reads and merges the user's kubeconfig files; never writes them.

Rules of the format: "Organizing Cluster Access Using kubeconfig Files" and "kubeconfig (v1)" of
the Kubernetes documentation. `docs/adr/0021-requests-to-the-api-server-use-aiohttp.md` says why the
official client is not used.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import os
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml

from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.kube.cluster import ClusterAccess
from shared_pathways_service.kube.exec_plugin import Plugin
from shared_pathways_service.kube.tls import client_tls, show_certificate
from shared_pathways_service.kube.tokens import Token, TokenSource, file_token, static_token

__all__ = ["Kubeconfig", "access_of_context", "kubeconfig_paths", "read_kubeconfig"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """One cluster, user or context.

    Attributes:
      where: Directory of its file; paths in the entry are relative to it.
    """

    name: str
    data: Mapping[str, Any] = dataclasses.field(repr=False)
    where: Path

    def text(self, field: str) -> str:
        """Returns the content of ``FIELD-data`` (base64) or of the file that FIELD names, or "".

        Raises:
          InvalidRequestError: The content cannot be read.
        """
        try:
            if encoded := self.data.get(f"{field}-data"):
                return base64.b64decode(encoded, validate=True).decode()
            if path := self.data.get(field):
                return (self.where / Path(path).expanduser()).read_text()
        except (OSError, binascii.Error, UnicodeDecodeError, TypeError) as error:
            raise InvalidRequestError(
                f"kubeconfig's {field} of {self.name}", "", f"what can be read, not: {error}"
            ) from error
        return ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kubeconfig:
    """All files of ``KUBECONFIG``, merged: for each name, the first file that has it counts."""

    current: str = ""
    contexts: Mapping[str, Entry] = dataclasses.field(default_factory=dict)
    clusters: Mapping[str, Entry] = dataclasses.field(default_factory=dict)
    users: Mapping[str, Entry] = dataclasses.field(default_factory=dict)


def kubeconfig_paths() -> list[Path]:
    """Returns the user's kubeconfig files: those of ``KUBECONFIG``, or ``~/.kube/config``."""
    listed = [Path(path) for path in os.environ.get("KUBECONFIG", "").split(os.pathsep) if path]
    return listed or [Path.home() / ".kube" / "config"]


def read_kubeconfig(paths: Sequence[Path] | None = None) -> Kubeconfig:
    """Reads these files, or the user's kubeconfig files, where they exist.

    Raises:
      InvalidRequestError: A file is not a kubeconfig.
    """
    current = ""
    found: dict[str, dict[str, Entry]] = {"contexts": {}, "clusters": {}, "users": {}}
    for path in kubeconfig_paths() if paths is None else paths:
        document = _read(path)
        current = current or str(document.get("current-context") or "")
        for kind, entries in found.items():
            for entry in _entries(document, kind, path):
                entries.setdefault(entry.name, entry)
    return Kubeconfig(current=current, **found)


def _entries(document: Mapping[str, Any], kind: str, path: Path) -> list[Entry]:
    try:
        return [
            Entry(
                name=str(item["name"]),
                data=item.get(kind.removesuffix("s")) or {},
                where=path.absolute().parent,
            )
            for item in document.get(kind) or ()
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidRequestError(
            "kubeconfig", str(path), f"a name for each of the {kind}, each a mapping"
        ) from error


def _read(path: Path) -> Mapping[str, Any]:
    expected = "a kubeconfig: YAML with clusters, users and contexts"
    try:
        document = yaml.safe_load(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InvalidRequestError("kubeconfig", str(path), f"{expected}, not: {error}") from error
    if document is None:
        return {}
    if not isinstance(document, Mapping):
        raise InvalidRequestError("kubeconfig", str(path), expected)
    return document


def access_of_context(config: Kubeconfig, context: str = "") -> ClusterAccess:
    """Returns access to the cluster of a context; empty: the current one.

    Raises:
      InvalidRequestError: There is no such context, or its cluster or user is missing or invalid.
    """
    name = context or config.current
    known = ", ".join(sorted(config.contexts)) or "none: no kubeconfig has any"
    chosen = _named(config.contexts, name, "context", f"a context of the kubeconfig ({known})")
    cluster = _named(
        config.clusters, chosen.data.get("cluster", ""), f"cluster of context {name}", "its name"
    )
    user = Entry(name="", data={}, where=cluster.where)
    if who := chosen.data.get("user"):
        user = _named(config.users, who, f"user of context {name}", "a user of the kubeconfig")
    server = str(cluster.data.get("server") or "").rstrip("/")
    if not server.startswith(("https://", "http://")):
        raise InvalidRequestError(f"server of cluster {cluster.name}", server, "https://HOST")
    proxy = str(cluster.data.get("proxy-url") or "")
    if proxy and not proxy.startswith(("http://", "https://")):
        raise InvalidRequestError(f"proxy-url of cluster {cluster.name}", proxy, "http://HOST:PORT")
    tls = _tls(cluster, user) if server.startswith("https://") else None
    return ClusterAccess(
        server=server,
        tls=tls,
        tokens=_tokens(user, cluster, tls),
        namespace=str(chosen.data.get("namespace") or ""),
        name=f"context {name}",
        server_name=str(cluster.data.get("tls-server-name") or ""),
        proxy=proxy,
        headers=_impersonation(user),
    )


def _named(entries: Mapping[str, Entry], name: str, field: str, expected: str) -> Entry:
    if name not in entries:
        raise InvalidRequestError(field, name, expected)
    return entries[name]


def _tls(cluster: Entry, user: Entry) -> ssl.SSLContext:
    try:
        context = client_tls(
            authority=cluster.text("certificate-authority"),
            verify=not cluster.data.get("insecure-skip-tls-verify", False),
        )
        if certificate := user.text("client-certificate"):
            show_certificate(context, certificate, user.text("client-key"))
    except ssl.SSLError as error:
        raise InvalidRequestError(
            f"certificates of cluster {cluster.name}", "", f"PEM certificates, not: {error}"
        ) from error
    return context


def _tokens(user: Entry, cluster: Entry, tls: ssl.SSLContext | None) -> TokenSource:
    if plugin := user.data.get("exec"):
        return _plugin_tokens(Plugin(exec=plugin, cluster=cluster.data, where=user.where), tls)
    if provider := user.data.get("auth-provider"):
        raise InvalidRequestError(
            f"auth-provider of user {user.name}",
            provider.get("name"),
            "a token, a client certificate or an exec plug-in, as kubectl has them since 1.26",
        )
    if path := user.data.get("tokenFile"):
        return file_token(user.where / Path(path).expanduser())
    if token := user.data.get("token"):
        return static_token(f"Bearer {token}")
    if name := user.data.get("username"):
        pair = f"{name}:{user.data.get('password', '')}"
        return static_token(f"Basic {base64.b64encode(pair.encode()).decode()}")
    return static_token()


def _plugin_tokens(plugin: Plugin, tls: ssl.SSLContext | None) -> TokenSource:
    async def fetch() -> Token:
        given = await plugin.run()
        if given.certificate and tls is not None:
            try:
                show_certificate(tls, given.certificate, given.key)
            except ssl.SSLError as error:
                raise plugin.denied(f"gave no certificate with its key: {error}") from error
        header = f"Bearer {given.token}" if given.token else ""
        return Token(header=header, expires_at=given.expires_at)

    return TokenSource(fetch, of=plugin.name)


def _impersonation(user: Entry) -> tuple[tuple[str, str], ...]:
    headers = [("User", user.data.get("as")), ("Uid", user.data.get("as-uid"))]
    headers += [("Group", group) for group in user.data.get("as-groups") or ()]
    headers += [
        (f"Extra-{quote(key.lower(), safe='')}", value)
        for key, values in (user.data.get("as-user-extra") or {}).items()
        for value in values
    ]
    return tuple((f"Impersonate-{name}", str(value)) for name, value in headers if value)
