"""Reads and merges the user's kubeconfig files; never writes them.

Rules of the format: "Organizing Cluster Access Using kubeconfig Files" and "kubeconfig (v1)" of
the Kubernetes documentation. `docs/adr/0021-requests-to-the-api-server-use-aiohttp.md` says why the
official client is not used.
"""

from __future__ import annotations

import base64
import dataclasses
import os
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from shared_pathways_service.api.validation import server_url
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.kube.cluster import ClusterAccess
from shared_pathways_service.kube.http_proxies import NetworkProxy
from shared_pathways_service.kube.kubeconfig_entry import Entry
from shared_pathways_service.kube.kubeconfig_file import entries_of, read_file
from shared_pathways_service.kube.kubeconfig_user import add_credentials, impersonation_headers
from shared_pathways_service.kube.tls import client_tls
from shared_pathways_service.kube.tokens import basic, static_token

__all__ = ["Kubeconfig", "access_of_context", "kubeconfig_paths", "read_kubeconfig", "server_of"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kubeconfig:
    """All files of ``KUBECONFIG``, merged: for each name, the first file that has it counts."""

    current: str = ""
    contexts: Mapping[str, Entry] = dataclasses.field(default_factory=dict)
    clusters: Mapping[str, Entry] = dataclasses.field(default_factory=dict)
    users: Mapping[str, Entry] = dataclasses.field(default_factory=dict)


def kubeconfig_paths() -> list[Path]:
    """Returns the user's kubeconfig files: those of ``KUBECONFIG``, or ``~/.kube/config``."""
    if listed := os.environ.get("KUBECONFIG"):
        return [Path(path) for path in dict.fromkeys(listed.split(os.pathsep)) if path]
    return [Path.home() / ".kube" / "config"]


def read_kubeconfig(paths: Sequence[Path] | None = None) -> Kubeconfig:
    """Reads these files, or the user's kubeconfig files, where they exist.

    Raises:
      InvalidRequestError: A file is not a kubeconfig.
    """
    current = ""
    found: dict[str, dict[str, Entry]] = {"contexts": {}, "clusters": {}, "users": {}}
    for path in kubeconfig_paths() if paths is None else paths:
        file = read_file(path)
        current = current or file.text("current-context")
        for kind, entries in found.items():
            entries.update(entries_of(file, kind) | entries)
    return Kubeconfig(current=current, **found)


def access_of_context(config: Kubeconfig, context: str = "") -> ClusterAccess:
    """Returns access to the cluster of a context; empty: the current one.

    Raises:
      InvalidRequestError: There is no such context, or its cluster or user is missing or invalid.
    """
    name = context or config.current
    known = ", ".join(sorted(config.contexts)) or "none: no kubeconfig has any"
    chosen = _named(config.contexts, name, "context", f"a context of the kubeconfig ({known})")
    cluster = _named(
        config.clusters, chosen.text("cluster"), f"cluster of context {name}", "its name"
    )
    user = Entry(kind="user", name="", data={}, file=cluster.file)
    if who := chosen.text("user"):
        user = _named(config.users, who, f"user of context {name}", "a user of the kubeconfig")
    server = server_of(cluster)
    proxy = cluster.text("proxy-url")
    common = ClusterAccess(
        server=server,
        tls=None,
        tokens=static_token(_login_of_url(cluster)),
        namespace=chosen.text("namespace"),
        name=f"context {name}",
        server_name=cluster.text("tls-server-name"),
        proxy=NetworkProxy.parse(proxy, f"proxy-url of cluster {cluster.name}") if proxy else None,
        headers=impersonation_headers(user),
    )
    if server.startswith("http://"):
        # As kubectl, which sends no credentials without TLS.
        return common
    authority = cluster.content("certificate-authority")
    tls = _tls(cluster, authority)
    described = {
        **cluster.data,
        "certificate-authority-data": base64.b64encode(authority).decode(),
    }
    tokens = add_credentials(user, tls, described, _login_of_url(cluster))
    return dataclasses.replace(common, tls=tls, tokens=tokens)


def server_of(cluster: Entry) -> str:
    """Returns the URL of a cluster's API server, without user, query, and slash at its end.

    Raises:
      InvalidRequestError: It is not a URL of a server.
    """
    url = server_url(cluster.text("server"))
    if url is None:
        raise cluster.invalid("server", "https://HOST or https://HOST:PORT")
    place = url.netloc.rpartition("@")[2]
    return url._replace(netloc=place, path=url.path.rstrip("/"), query="", fragment="").geturl()


def _login_of_url(cluster: Entry) -> str:
    url = urlsplit(cluster.text("server"))
    return basic(unquote(url.username or ""), unquote(url.password or "")) if url.username else ""


def _named(entries: Mapping[str, Entry], name: str, field: str, expected: str) -> Entry:
    if name not in entries:
        raise InvalidRequestError(field, name, expected)
    return entries[name]


def _tls(cluster: Entry, authority: bytes) -> ssl.SSLContext:
    is_insecure = cluster.flag("insecure-skip-tls-verify")
    if is_insecure and authority:
        raise cluster.invalid(
            "insecure-skip-tls-verify", "no certificate-authority beside it: one contradicts it"
        )
    try:
        return client_tls(authority=authority, verify=not is_insecure)
    except ssl.SSLError as error:
        given = "certificate-authority"
        field = f"{given}-data" if cluster.text(f"{given}-data") else given
        raise cluster.invalid(field, f"PEM certificates, not: {error}") from error
