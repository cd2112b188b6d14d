"""The request of a session: what connect() was given, checked as a whole before anything starts.

`SessionRequest.build` takes connect()'s keywords as the user gave them, and returns a valid request
or raises `InvalidRequestError` with the first wrong field. It is the only place that checks them:
the agent and the homes take a request as it is. The part for the resource manager is the request's
`tenant`.
"""

from __future__ import annotations

import dataclasses
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
    TEAM_LABEL,
    check_bucket,
    check_choice,
    check_labels,
    check_proxy_image,
    check_proxy_job_name,
    check_service_address,
    default_proxy_job_name,
)
from shared_pathways_service.api.service_choice import DEFAULT_NAMESPACE, HomeName, ServiceChoice
from shared_pathways_service.api.tenant_requests import TenantRequest
from shared_pathways_service.api.validation import (
    check_bool,
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
    "ClientOptions",
    "HomeName",
    "ProxyOptions",
    "Requester",
    "SessionRequest",
    "check_proxy_job_name",
    "check_service_address",
    "default_proxy_job_name",
    "parse_instance_counts",
    "parse_instance_texts",
    "parse_instances",
    "parse_virtual_slices",
]

DEFAULT_PROXY_IMAGE: Final = "us-docker.pkg.dev/cloud-tpu-v2-images/pathways/proxy_server:latest"

Wait = Literal["placed", "ready"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Requester:
    """Who asks for a session.

    Attributes:
      user: The user, as the system names them; any text.
      host: The machine of the user.
      suffix: Random lower-case letters and digits, for a name that is made up.
    """

    user: str
    host: str
    suffix: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClientOptions:
    """The part of a request that stays in the process of the user.

    Attributes:
      local_devices: Whether JAX has this machine's CPU beside the proxy's devices.
      strict: Whether programs are refused what Google's proxies refuse; None: as the environment
        says.
      tune_allocator: Whether glibc's allocator is set to keep memory.
      on_event: Called with each event; None: not called.
      profile: A profile of the settings file.
    """

    local_devices: bool = True
    strict: bool | None = None
    tune_allocator: bool = False
    on_event: Callable[[Event], object] | None = None
    profile: str | None = None

    @classmethod
    def check(
        cls,
        local_devices: object,
        strict: object,
        tune_allocator: object,
        on_event: object,
        profile: object,
    ) -> ClientOptions:
        """Checks the keywords of connect() that these are."""
        return cls(
            local_devices=check_bool("local_devices", local_devices),
            strict=None if strict is None else check_bool("strict", strict),
            tune_allocator=check_bool("tune_allocator", tune_allocator),
            on_event=_callback(on_event),
            profile=check_optional_text("profile", profile),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SessionRequest:
    """A valid request; whether the service can meet it is not known yet.

    Names of fields that are numbers of seconds end with ``_s``, as behind connect() all do.

    Attributes:
      service: Where the service is looked for.
      tenant: The slices, and everything else that the resource manager has to know.
      is_name_generated: Whether the tenant's name was made up.
      priority_class: The cluster's PriorityClass that has the tenant's priority; empty: none. The
        cluster's number counts where the two differ.
      gcs_bucket: ``gs://…`` for scratch data; None: where the resource manager has its own.
      proxy_server_image: The proxy's container image; `DEFAULT_PROXY_IMAGE` stands for the one that
        matches the service.
      proxy_options: How the proxy is started.
      labels: Labels added to the proxy's Job.
      local_port: A loopback TCP port, 0 for any; None: a Unix socket.
      collect_service_metrics: Whether metrics are sent to Google Cloud Monitoring.
      wait: Whether placement is waited for, or goes on behind.
      timeout_s: Seconds for the service and the proxy to become ready; then again for placement.
      client: What concerns the process of the user only.
    """

    service: ServiceChoice
    tenant: TenantRequest
    is_name_generated: bool
    priority_class: str
    gcs_bucket: str | None
    proxy_server_image: str
    proxy_options: ProxyOptions
    labels: Mapping[str, str]
    local_port: int | None
    collect_service_metrics: bool
    wait: Wait
    timeout_s: float
    client: ClientOptions = dataclasses.field(default_factory=ClientOptions)

    @property
    def name(self) -> str:
        """The session's name, which is its tenant's and its proxy's."""
        return self.tenant.name

    @property
    def chosen_image(self) -> str:
        """The proxy's container image; empty: the one that matches the service."""
        is_default = self.proxy_server_image == DEFAULT_PROXY_IMAGE
        return "" if is_default else self.proxy_server_image

    def matches(self, started: SessionRequest) -> bool:
        """Returns whether a started request asks for the same.

        Two requests that differ in `on_event` only match, and a generated name matches any.
        """
        name = started.name if self.is_name_generated else self.name
        renamed = dataclasses.replace(
            self,
            tenant=dataclasses.replace(self.tenant, name=name),
            is_name_generated=started.is_name_generated,
            client=dataclasses.replace(self.client, on_event=started.client.on_event),
        )
        return renamed == started

    def to_json(self) -> dict[str, Any]:
        """Returns the request as plain data, without what stays in the process of the user."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        del fields["client"]
        return {
            **fields,
            "service": dataclasses.asdict(self.service),
            "tenant": self.tenant.to_json(),
            "proxy_options": dataclasses.asdict(self.proxy_options),
            "labels": dict(self.labels),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SessionRequest:
        """Makes the request that `to_json` described."""
        return cls(
            **{
                **data,
                "service": ServiceChoice(**data["service"]),
                "tenant": TenantRequest.from_json(data["tenant"]),
                "proxy_options": ProxyOptions(**data["proxy_options"]),
            }
        )

    @classmethod
    def build(
        cls,
        requester: Requester,
        *,
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
    ) -> SessionRequest:
        """Checks connect()'s keywords, each named as there.

        Args:
          requester: Who asks.
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
        gke = cluster, project, region
        service = ServiceChoice.check(gke, context, namespace, pathways_service)
        number, priority_class = _priority(service.home, priority)
        checked_labels = check_labels(labels)
        slices = parse_instances(expected_tpu_instances)
        return cls(
            service=service,
            tenant=TenantRequest(
                name=_job_name(proxy_job_name, requester),
                virtual_slices=slices,
                elastic_slices=_elastic(elastic_slices, len(slices) or 1),
                priority=number,
                queue_timeout_s=_queue_timeout(queue_timeout),
                max_lifetime_s=_max_lifetime(max_lifetime),
                user=requester.user,
                team=checked_labels.get(TEAM_LABEL, ""),
                host=requester.host,
            ),
            is_name_generated=proxy_job_name is None,
            priority_class=priority_class,
            gcs_bucket=check_bucket(gcs_bucket),
            proxy_server_image=check_proxy_image(proxy_server_image, default=DEFAULT_PROXY_IMAGE),
            proxy_options=_options(proxy_options),
            labels=checked_labels,
            local_port=None if local_port is None else check_port("local_port", local_port),
            collect_service_metrics=check_bool("collect_service_metrics", collect_service_metrics),
            wait=cast("Wait", check_choice("wait", wait, ("placed", "ready"))),
            timeout_s=check_seconds("timeout", timeout),
            client=ClientOptions.check(local_devices, strict, tune_allocator, on_event, profile),
        )


def _priority(home: HomeName, value: object) -> tuple[int, str]:
    """Returns the number, and the cluster's PriorityClass that has it, if one does."""
    return cluster_priority(value) if home == "kubernetes" else (parse_priority(value), "")


def _job_name(value: object, requester: Requester) -> str:
    if value is None:
        return default_proxy_job_name(requester.user, requester.suffix)
    return check_proxy_job_name(value)


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
