"""Options that name a cluster and a service in it, shared by all commands."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import typer

from shared_pathways_service.agent.journal import Entry
from shared_pathways_service.agent.request import request_of_this_user
from shared_pathways_service.api.requests import DEFAULT_NAMESPACE, SessionRequest
from shared_pathways_service.api.service_choice import (
    HomeName,
    ServiceChoice,
    home_of,
    place_options,
)
from shared_pathways_service.cli.options.option_groups import takes_group
from shared_pathways_service.errors import InvalidRequestError

__all__ = ["Place", "takes_cluster", "takes_place"]

_Result = TypeVar("_Result")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place:
    """The location of a service, as the user named it.

    Attributes:
      cluster: A GKE cluster, with its `project` and `region`.
      context: A kubeconfig context.
      pathways_service: ``host:port`` of the resource manager.
    """

    cluster: str | None = None
    project: str | None = None
    region: str | None = None
    context: str | None = None
    namespace: str = DEFAULT_NAMESPACE
    pathways_service: str | None = None

    @classmethod
    def of(cls, entry: Entry) -> Place:
        """Returns the place of a session in the journal."""
        options = entry.home.options
        place = cls(
            **{field.name: options[field.name] for field in _FIELDS if options.get(field.name)}
        )
        if server := entry.home.server_handed_over:
            with contextlib.suppress(InvalidRequestError):
                return dataclasses.replace(place, context=_context_at(server))
        return place

    @classmethod
    def of_service(cls, entry: Entry) -> Place:
        """Returns the place of the service that a session in the journal uses.

        Raises:
          InvalidRequestError: Its program handed over the access to the cluster, and the
            kubeconfig has no context of it.
        """
        place = cls.of(entry)
        if (server := entry.home.server_handed_over) and not place.context:
            _context_at(server)
        if entry.home.name == "embedded":
            return place
        return dataclasses.replace(place, pathways_service=entry.service or None)

    @property
    def home(self) -> HomeName:
        """The home of the service."""
        return home_of(self.cluster or None, self.context or None, self.pathways_service or None)

    @property
    def service(self) -> ServiceChoice:
        """The place, checked; raises InvalidRequestError."""
        return self.request().service

    @property
    def in_cluster(self) -> ServiceChoice:
        """The place, checked, for a command that is of clusters only: by default the current one.

        Raises:
          InvalidRequestError: A value is wrong, or values contradict each other.
        """
        return ServiceChoice.check(
            (self.cluster, self.project, self.region),
            self.context,
            self.namespace,
            self.pathways_service,
            is_of_cluster=True,
        )

    @property
    def words(self) -> list[str]:
        """The options of a command that name this place."""
        return place_options(dataclasses.asdict(self))

    def command(self, *words: str) -> str:
        """Returns a command of `sps` for a message: in any shell it acts at this place."""
        if self.home != "kubernetes":
            return shlex.join(["sps", *words])
        from shared_pathways_service.kube.access import commands_at  # noqa: PLC0415 - aiohttp
        from shared_pathways_service.kube.cluster import ClusterChoice  # noqa: PLC0415

        choice = ClusterChoice(
            cluster=self.cluster or "",
            project=self.project or "",
            region=self.region or "",
            context=self.context or "",
        )
        service = self.pathways_service or ""
        return commands_at(choice).sps(*words, namespace=self.namespace, service=service)

    def has(self, entry: Entry) -> bool:
        """Whether a session of the journal is at this place; an empty place matches any session."""
        if self == Place():
            return True
        there = Place.of(entry)
        here = self._settled() if there.context else self
        # (The service is not part of the cluster's place.)
        mine, theirs = (dataclasses.replace(p, pathways_service=None) for p in (here, there))
        return entry.home.name == self.home and mine == theirs

    def _settled(self) -> Place:
        """Returns the place with the context of the ambient cluster, as a session records it."""
        from shared_pathways_service.kube.access import settled  # noqa: PLC0415 - aiohttp
        from shared_pathways_service.kube.cluster import ClusterChoice  # noqa: PLC0415

        if self.cluster or self.home != "kubernetes":
            return self
        context = settled(ClusterChoice(context=self.context or "")).context
        return dataclasses.replace(self, context=context or None)

    def request(self, **keywords: object) -> SessionRequest:
        """Checks the place together with other keywords of connect().

        Raises:
          InvalidRequestError: A value is wrong, or values contradict each other.
        """
        return request_of_this_user(**dataclasses.asdict(self), **keywords)


def _context_at(server: str) -> str:
    from shared_pathways_service.kube.access import context_at  # noqa: PLC0415 - aiohttp

    return context_at(server)


_FIELDS = dataclasses.fields(Place)
_OPTIONS: dict[str, Any] = {
    "cluster": Annotated[
        str | None,
        typer.Option("--cluster", help="Use this GKE cluster, with --project and --region."),
    ],
    "project": Annotated[
        str | None, typer.Option("--project", help="Name the cluster's Google Cloud project.")
    ],
    "region": Annotated[
        str | None, typer.Option("--region", help="Name the cluster's region or zone.")
    ],
    "context": Annotated[
        str | None,
        typer.Option("--context", help="Use this kubeconfig context instead of --cluster."),
    ],
    "namespace": Annotated[
        str, typer.Option("--namespace", help="Use the service in this namespace of the cluster.")
    ],
    "pathways_service": Annotated[
        str | None,
        typer.Option(
            "--pathways-service",
            metavar="HOST:PORT",
            help="Use the service with this resource manager. [default: the only service]",
        ),
    ],
}


_CLUSTER_OPTIONS = {name: option for name, option in _OPTIONS.items() if name != "pathways_service"}


def takes_place(command: Callable[..., _Result]) -> Callable[..., _Result]:
    """Adds the options that name a cluster and a service, as the parameter `place`."""
    return takes_group(command, "place", Place, _OPTIONS)


def takes_cluster(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the options that name a cluster, as the parameter `place`; NAME is the service."""
    return takes_group(command, "place", Place, _CLUSTER_OPTIONS)
