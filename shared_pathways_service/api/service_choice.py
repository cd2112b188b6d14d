"""Identifies the service of a session: its home, and its cluster or address."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Final, Literal

from shared_pathways_service.api.given_client import server_of_client
from shared_pathways_service.api.request_fields import check_service_address
from shared_pathways_service.api.validation import (
    check_context,
    check_dns_label,
    check_optional_text,
)
from shared_pathways_service.errors import InvalidRequestError

__all__ = ["DEFAULT_NAMESPACE", "HomeName", "ServiceChoice", "home_of", "place_options"]

DEFAULT_NAMESPACE: Final = "default"

HomeName = Literal["embedded", "kubernetes"]

#: Fields that options of `sps` name, and the value of each without its option.
_OPTIONS: Final[Mapping[str, str]] = {
    "cluster": "",
    "project": "",
    "region": "",
    "context": "",
    "namespace": DEFAULT_NAMESPACE,
    "pathways_service": "",
}
_PROJECT: Final = re.compile(r"([a-z0-9.-]+:)?[a-z]([-a-z0-9]{0,28}[a-z0-9])?")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServiceChoice:
    """The location of the service.

    Attributes:
      home: Where the service lives.
      cluster: A GKE cluster; with `project` and `region`.
      context: A kubeconfig context, instead of `cluster`.
      pathways_service: ``host:port`` of its resource manager; None: of the only service.
      server: URL of the API server to which the program hands over its access, instead of
        `cluster` and `context`.
    """

    home: HomeName
    cluster: str | None
    project: str | None
    region: str | None
    context: str | None
    namespace: str
    pathways_service: str | None
    server: str | None = None

    @classmethod
    def check(
        cls,
        gke: tuple[object, object, object],
        context: object,
        namespace: object,
        pathways_service: object,
        api_client: object = None,
        *,
        is_of_cluster: bool = False,
    ) -> ServiceChoice:
        """Checks a GKE cluster with its project and region, or another choice of a service.

        With `is_of_cluster`, it is in the current cluster where nothing names one.
        """
        cluster, project, region = gke
        server = None if api_client is None else server_of_client(api_client)
        choice = cls(
            home="kubernetes"
            if server or is_of_cluster
            else home_of(cluster, context, pathways_service),
            cluster=check_optional_text("cluster", cluster),
            project=check_optional_text("project", project),
            region=check_optional_text("region", region),
            context=check_context(context),
            namespace=check_dns_label("namespace", namespace),
            pathways_service=check_service_address(pathways_service),
            server=server,
        )
        if server is not None:
            choice._check_only_server()
        if choice.project is not None and not _PROJECT.fullmatch(choice.project):
            raise InvalidRequestError("project", project, "the id of a Google Cloud project")
        if choice.cluster is not None:
            choice._check_gke()
        else:
            choice._check_without_cluster()
        return choice

    def _check_only_server(self) -> None:
        for field in ("cluster", "context"):
            if (value := getattr(self, field)) is not None:
                raise InvalidRequestError(
                    field, value, "None beside api_client: either names the cluster"
                )

    def _check_gke(self) -> None:
        for field in ("project", "region"):
            if getattr(self, field) is None:
                raise InvalidRequestError(field, None, f"the {field} of cluster {self.cluster!r}")
        if self.context is not None:
            raise InvalidRequestError(
                "context", self.context, "None beside cluster: either names the cluster"
            )

    def _check_without_cluster(self) -> None:
        for field in ("project", "region"):
            if (value := getattr(self, field)) is not None:
                raise InvalidRequestError(field, value, "None, or a cluster beside it")
        if self.home == "embedded" and self.namespace != DEFAULT_NAMESPACE:
            raise InvalidRequestError(
                "namespace",
                self.namespace,
                "a cluster, a context or a pathways_service beside it: "
                "the embedded service has no namespaces",
            )


def home_of(cluster: object, context: object, pathways_service: object) -> HomeName:
    """Returns the home that the given values choose; None: not given."""
    given = any(value is not None for value in (cluster, context, pathways_service))
    return "kubernetes" if given else "embedded"


def place_options(place: Mapping[str, object]) -> list[str]:
    """Returns the options of an `sps` command that name a place.

    Args:
      place: The fields of a `ServiceChoice`, of which some may be missing, None or empty.
    """
    return [
        f"--{name.replace('_', '-')}={place[name]}"
        for name, usual in _OPTIONS.items()
        if place.get(name) and place[name] != usual
    ]
