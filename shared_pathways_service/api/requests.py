"""What connect() was asked for, checked as a whole before anything is started.

`ConnectRequest.build` takes connect()'s keywords as the user gave them and returns a request that
is right, or raises `InvalidRequestError` naming the first field that is not.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal, cast

from shared_pathways_service.api.instances import (
    parse_instance_counts,
    parse_instance_texts,
    parse_instances,
    parse_virtual_slices,
)
from shared_pathways_service.api.priorities import cluster_priority, parse_priority
from shared_pathways_service.api.proxy_options import ProxyOptions
from shared_pathways_service.api.request_fields import (
    check_bucket,
    check_choice,
    check_labels,
    check_proxy_image,
    check_proxy_job_name,
    check_service_address,
    default_proxy_job_name,
)
from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.api.validation import (
    check_bool,
    check_dns_label,
    check_int,
    check_optional_text,
    check_port,
    check_seconds,
)
from shared_pathways_service.constants import LONGEST_LIFETIME_S
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.events import Event

__all__ = [
    "DEFAULT_NAMESPACE",
    "DEFAULT_PROXY_IMAGE",
    "ConnectRequest",
    "HomeName",
    "ProxyOptions",
    "check_proxy_job_name",
    "check_service_address",
    "default_proxy_job_name",
    "parse_instance_counts",
    "parse_instance_texts",
    "parse_instances",
    "parse_virtual_slices",
]

DEFAULT_PROXY_IMAGE: Final = "us-docker.pkg.dev/cloud-tpu-v2-images/pathways/proxy_server:latest"
DEFAULT_NAMESPACE: Final = "default"

HomeName = Literal["embedded", "kubernetes"]
Wait = Literal["placed", "ready"]

_PROJECT: Final = re.compile(r"([a-z0-9.-]+:)?[a-z]([-a-z0-9]{0,28}[a-z0-9])?")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConnectRequest:
    """A request that is right in itself; whether the service can meet it is not known yet.

    Attributes:
      home: Where the service lives.
      virtual_slices: One instance type a virtual slice; empty: one of the service's first type.
      proxy_job_name: The session's name, made up where the user gave none.
      is_name_generated: Whether it was made up.
      queue_timeout: None: fail at once when slices are taken; else seconds, infinity too.
      timeout: Seconds for the service and the proxy to become ready.
      elastic_slices: How many of the virtual slices may be missing at the start.
      priority: A number; that of `priority_class` where the cluster does not know better.
      priority_class: The PriorityClass of the cluster that has the number; empty: none.
      max_lifetime: Seconds; None: as long as the block lasts.
      local_port: None: a Unix socket; else a loopback TCP port, 0 for any.
    """

    home: HomeName
    cluster: str | None
    project: str | None
    region: str | None
    context: str | None
    namespace: str
    gcs_bucket: str | None
    pathways_service: str | None
    virtual_slices: tuple[InstanceType, ...]
    proxy_job_name: str
    is_name_generated: bool
    proxy_server_image: str
    proxy_options: ProxyOptions
    collect_service_metrics: bool
    wait: Wait
    queue_timeout: float | None
    timeout: float
    elastic_slices: int
    priority: int
    priority_class: str
    labels: Mapping[str, str]
    max_lifetime: float | None
    local_port: int | None
    local_devices: bool
    strict: bool | None
    tune_allocator: bool
    on_event: Callable[[Event], object] | None
    profile: str | None

    @property
    def team(self) -> str:
        """The team, from the label ``sps.dev/team``; empty when there is none."""
        return self.labels.get("sps.dev/team", "")

    def matches(self, started: ConnectRequest) -> bool:
        """Returns whether a started request asks for the same.

        Two requests that differ in `on_event` only match, and a generated name matches any.
        """
        name = started.proxy_job_name if self.is_name_generated else self.proxy_job_name
        renamed = dataclasses.replace(
            self,
            proxy_job_name=name,
            is_name_generated=started.is_name_generated,
            on_event=started.on_event,
        )
        return renamed == started

    @classmethod
    def build(
        cls,
        *,
        user: str,
        suffix: str,
        cluster: object = None,
        project: object = None,
        region: object = None,
        gcs_bucket: object = None,
        pathways_service: object = None,
        expected_tpu_instances: object = None,
        proxy_job_name: object = None,
        proxy_server_image: object = None,
        proxy_options: object = None,
        collect_service_metrics: object = False,
        context: object = None,
        namespace: object = DEFAULT_NAMESPACE,
        wait: object = "placed",
        queue_timeout: object = None,
        timeout: object = 300.0,
        elastic_slices: object = 0,
        priority: object = None,
        labels: object = None,
        max_lifetime: object = None,
        local_port: object = None,
        local_devices: object = True,
        strict: object = None,
        tune_allocator: object = False,
        on_event: object = None,
        profile: object = None,
    ) -> ConnectRequest:
        """Checks connect()'s keywords, each named as there.

        Args:
          user: Who asks, as the system names them; any text.
          suffix: Random lower-case letters and digits for a name that is made up.
          cluster: A GKE cluster; needs `project` and `region`, and excludes `context`.
          project: Its project.
          region: Its region or zone.
          gcs_bucket: ``gs://name[/path]``; ``gs://`` may be left out.
          pathways_service: ``host:port`` of the resource manager.
          expected_tpu_instances: e.g. ``{"tpuv6e:2x2": 2}``; None: one slice of the first type.
          proxy_job_name: A DNS label; None: ``isc-proxy-USER-SUFFIX``.
          proxy_server_image: The proxy's container image; None: the one that matches the service.
          proxy_options: `ProxyOptions`, or its ``key:value`` texts.
          collect_service_metrics: Whether the service's metrics are collected.
          context: A kubeconfig context.
          namespace: The namespace of the service in a cluster.
          wait: ``placed``, or ``ready`` to return when the proxy answers.
          queue_timeout: Seconds to wait for slices, infinity too; None: fail at once.
          timeout: Seconds for the service and the proxy to become ready.
          elastic_slices: From 0 to one less than the virtual slices.
          priority: A number, higher goes first, or a name of `PRIORITIES`, in a cluster of any
            PriorityClass; None: 0.
          labels: Labels added to the proxy's Job.
          max_lifetime: Seconds until the proxy ends in any case, a hundred years at the most; None:
            no limit.
          local_port: A loopback TCP port, 0 for any; None: a Unix socket.
          local_devices: Whether JAX has this machine's CPU beside the proxy's devices.
          strict: Whether programs are refused what Google's proxies refuse; None: as the
            environment says.
          tune_allocator: Whether glibc's allocator is set to keep memory.
          on_event: Called with each `Event`.
          profile: A profile of the settings file.

        Raises:
          InvalidRequestError: A field is wrong, or two do not go together.
        """
        virtual_slices = parse_instances(expected_tpu_instances)
        place = _Place.check((cluster, project, region), context, namespace, pathways_service)
        number, priority_class = _priority(place.home, priority)
        return cls(
            **dataclasses.asdict(place),
            gcs_bucket=check_bucket(gcs_bucket),
            virtual_slices=virtual_slices,
            proxy_job_name=_job_name(proxy_job_name, user, suffix),
            is_name_generated=proxy_job_name is None,
            proxy_server_image=check_proxy_image(proxy_server_image, default=DEFAULT_PROXY_IMAGE),
            proxy_options=_options(proxy_options),
            collect_service_metrics=check_bool("collect_service_metrics", collect_service_metrics),
            wait=cast("Wait", check_choice("wait", wait, ("placed", "ready"))),
            queue_timeout=_queue_timeout(queue_timeout),
            timeout=check_seconds("timeout", timeout),
            elastic_slices=_elastic(elastic_slices, len(virtual_slices) or 1),
            priority=number,
            priority_class=priority_class,
            labels=check_labels(labels),
            max_lifetime=_max_lifetime(max_lifetime),
            local_port=None if local_port is None else check_port("local_port", local_port),
            local_devices=check_bool("local_devices", local_devices),
            strict=None if strict is None else check_bool("strict", strict),
            tune_allocator=check_bool("tune_allocator", tune_allocator),
            on_event=_callback(on_event),
            profile=check_optional_text("profile", profile),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Place:
    """Where the service is looked for."""

    home: HomeName
    cluster: str | None
    project: str | None
    region: str | None
    context: str | None
    namespace: str
    pathways_service: str | None

    @classmethod
    def check(
        cls,
        gke: tuple[object, object, object],
        context: object,
        namespace: object,
        pathways_service: object,
    ) -> _Place:
        """Checks a GKE cluster with its project and region, and what else names a service."""
        cluster, project, region = gke
        place = cls(
            home=_home(cluster, context, pathways_service),
            cluster=check_optional_text("cluster", cluster),
            project=check_optional_text("project", project),
            region=check_optional_text("region", region),
            context=check_optional_text("context", context),
            namespace=check_dns_label("namespace", namespace),
            pathways_service=check_service_address(pathways_service),
        )
        if place.project is not None and not _PROJECT.fullmatch(place.project):
            raise InvalidRequestError("project", project, "the id of a Google Cloud project")
        if place.cluster is not None:
            place._check_gke()
        else:
            place._check_without_cluster()
        return place

    def _check_gke(self) -> None:
        for field in ("project", "region"):
            if getattr(self, field) is None:
                raise InvalidRequestError(field, None, f"the {field} of cluster {self.cluster!r}")
        if self.context is not None:
            raise InvalidRequestError(
                "context",
                self.context,
                "None beside cluster: either names the cluster",
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


def _home(cluster: object, context: object, pathways_service: object) -> HomeName:
    given = any(value is not None for value in (cluster, context, pathways_service))
    return "kubernetes" if given else "embedded"


def _priority(home: HomeName, value: object) -> tuple[int, str]:
    """Returns the number, and the cluster's PriorityClass that has it, if one does."""
    return cluster_priority(value) if home == "kubernetes" else (parse_priority(value), "")


def _job_name(value: object, user: str, suffix: str) -> str:
    return default_proxy_job_name(user, suffix) if value is None else check_proxy_job_name(value)


def _queue_timeout(value: object) -> float | None:
    return None if value is None else check_seconds("queue_timeout", value, infinity=True)


def _max_lifetime(value: object) -> float | None:
    if value is None:
        return None
    return check_seconds("max_lifetime", value, zero=False, high=LONGEST_LIFETIME_S)


def _options(value: object) -> ProxyOptions:
    if isinstance(value, ProxyOptions):
        return value
    return ProxyOptions.from_list(cast("Iterable[str] | None", value))


def _elastic(value: object, slices: int) -> int:
    try:
        return check_int("elastic_slices", value, low=0, high=slices - 1)
    except InvalidRequestError as error:
        expected = f"{error.expected}: of {slices} virtual slice(s) at least one is needed to start"
        raise InvalidRequestError("elastic_slices", value, expected) from None


def _callback(value: object) -> Callable[[Event], object] | None:
    if value is None or callable(value):
        return cast("Callable[[Any], object] | None", value)
    raise InvalidRequestError("on_event", value, "a function of one event, or None")
