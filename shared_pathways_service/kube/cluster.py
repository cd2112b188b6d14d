"""Describes a cluster as the user names it, and access to its API server."""

from __future__ import annotations

import dataclasses
import ssl

from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.kube.command_place import CommandPlace
from shared_pathways_service.kube.http_proxies import NetworkProxy
from shared_pathways_service.kube.tokens import TokenSource

__all__ = ["ClusterAccess", "ClusterChoice"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClusterChoice:
    """The cluster that the user named; without a name: the ambient one.

    Attributes:
      cluster: Name of a GKE cluster; with its `project` and its `region`, or its zone.
      context: A context of the user's kubeconfig.
      kubeconfig: Files to search for the context first; empty: only the current kubeconfig.
      in_cluster: Whether it is the cluster of this pod, regardless of a kubeconfig.
      server: URL that the API server must have; empty: any. Alone: of a program that hands over its
        access (`handed_over`).
    """

    cluster: str = ""
    project: str = ""
    region: str = ""
    context: str = ""
    kubeconfig: tuple[str, ...] = ()
    in_cluster: bool = False
    server: str = ""

    def __post_init__(self) -> None:
        if self.cluster and self.context:
            raise InvalidRequestError(
                "context", self.context, "None where cluster= is given: each names a cluster"
            )
        for name in ("project", "region"):
            if self.cluster and not getattr(self, name):
                raise InvalidRequestError(name, "", f"the {name} of cluster {self.cluster!r}")

    @property
    def is_handed_over(self) -> bool:
        """Whether a program hands over the access."""
        return bool(self.server) and not (self.cluster or self.context or self.in_cluster)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClusterAccess:
    """Access to one cluster's API server.

    Attributes:
      server: URL, without a slash at its end.
      tls: For connections to it; None if the URL is plain HTTP.
      namespace: Of the context; empty if it has none.
      name: The cluster's display name, e.g. ``context kind-dev``.
      server_name: Name to expect in the server's certificate; empty: the URL's host.
      proxy: Of the kubeconfig; None: that of the environment, if it names one for the server.
      is_direct: Whether a proxy that the environment names does not count.
      headers: Sent with every request, as is a token.
      commands: The same cluster, for commands in messages.
    """

    server: str
    tls: ssl.SSLContext | None
    tokens: TokenSource
    namespace: str = ""
    name: str = ""
    server_name: str = ""
    proxy: NetworkProxy | None = None
    is_direct: bool = False
    headers: tuple[tuple[str, str], ...] = dataclasses.field(default=(), repr=False)
    project: str = ""
    commands: CommandPlace = dataclasses.field(default_factory=CommandPlace)
