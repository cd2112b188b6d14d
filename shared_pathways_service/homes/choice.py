"""Creates homes by name; a choice of a home can be sent to another process."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shared_pathways_service.api.service_choice import ServiceChoice
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.homes.base import Home
from shared_pathways_service.homes.job_home import JobHome
from shared_pathways_service.kube.command_place import CommandPlace, place_in_files
from shared_pathways_service.runtime.settings import Settings

__all__ = ["HomeChoice", "choose_home", "make_home", "make_job_home"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class HomeChoice:
    """The name of a home, and its arguments.

    Attributes:
      name: A name that `make_home` knows.
      options: Keyword arguments of the home's class.
    """

    name: str
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def server_handed_over(self) -> str:
        """URL of the API server to which a program handed over its access; empty: it did not."""
        is_named = any(self.options.get(name) for name in ("cluster", "context", "in_cluster"))
        return "" if is_named else str(self.options.get("server") or "")

    def command(self, *words: str) -> str:
        """Returns a command of `sps` for a message: in any shell it acts where this home is."""
        options = self.options
        if self.name != "kubernetes" or self.server_handed_over:
            # (No option names the cluster that a program handed over.)
            return shlex.join(["sps", *words])
        if context := options.get("context"):
            place = place_in_files(context, [Path(file) for file in options.get("kubeconfig", ())])
        else:
            gke = {name: str(options.get(name) or "") for name in ("cluster", "project", "region")}
            place = CommandPlace(**gke)
        service = "" if context or place.cluster else str(options.get("pathways_service") or "")
        return place.sps(*words, namespace=str(options.get("namespace") or ""), service=service)


def choose_home(service: ServiceChoice, settings: Settings) -> HomeChoice:
    """Returns the home of a service, with options that stay valid in other processes and later."""
    directories = ("runtime_dir", "state_dir", "cache_dir", "config")
    options: dict[str, Any] = {name: str(getattr(settings, name)) for name in directories}
    options["profile"] = settings.profile
    if service.home == "kubernetes":
        options |= _cluster_options(service, settings)
    return HomeChoice(name=service.home, options=options)


def make_home(choice: HomeChoice) -> Home:
    """Creates a home.

    Raises:
      InvalidRequestError: There is no home of that name.
    """
    if choice.name == "embedded":
        # Imported here: a home imports gRPC, which an agent with another home does not need.
        from shared_pathways_service.homes.embedded.home import EmbeddedHome  # noqa: PLC0415

        return EmbeddedHome(**choice.options)
    if choice.name == "kubernetes":
        from shared_pathways_service.homes.kubernetes.home import KubernetesHome  # noqa: PLC0415

        return KubernetesHome(**choice.options)
    if choice.name == "pod":
        from shared_pathways_service.homes.pod.home import PodHome  # noqa: PLC0415

        return PodHome(**choice.options)
    raise InvalidRequestError("home", choice.name, "'embedded', 'kubernetes' or 'pod'")


def make_job_home(service: ServiceChoice, settings: Settings, user: str) -> JobHome:
    """Creates the home of a user's submitted jobs at a service.

    Raises:
      InvalidRequestError: There is no home of that name, or it has no jobs.
    """
    if service.home == "kubernetes":
        from shared_pathways_service.homes.kubernetes.cluster_jobs import (  # noqa: PLC0415
            ClusterJobs,
        )

        return ClusterJobs(service, user)
    if service.home != "embedded":
        raise InvalidRequestError("home", service.home, "'embedded' or 'kubernetes'")
    from shared_pathways_service.homes.embedded.embedded_jobs import EmbeddedJobs  # noqa: PLC0415

    return EmbeddedJobs(settings)


def _cluster_options(service: ServiceChoice, settings: Settings) -> dict[str, Any]:
    """Returns arguments of `KubernetesHome` that stay valid in other processes and later."""
    # Imported here because only requests with a cluster need it.
    from shared_pathways_service.kube.access import settled  # noqa: PLC0415
    from shared_pathways_service.kube.cluster import ClusterChoice  # noqa: PLC0415

    if service.server:
        choice = ClusterChoice(server=service.server)
    else:
        choice = settled(
            ClusterChoice(
                cluster=service.cluster or "",
                project=service.project or "",
                region=service.region or "",
                context=service.context or "",
            )
        )
    return {
        **dataclasses.asdict(choice),
        "pathways_service": service.pathways_service or "",
        "namespace": service.namespace,
        "proxy_deadline_s": settings.proxy_deadline_s,
        "link_image": settings.link_image,
    }
