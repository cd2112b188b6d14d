"""The request of a session: connect()'s arguments, checked as a whole before anything starts.

`SessionRequest.build` takes the user's arguments of connect(), and returns a valid request or
raises `InvalidRequestError` with the first invalid field. Only this module checks them: the agent
and the homes trust a request. Its `tenant` is the part for the resource manager.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal, cast

from shared_pathways_service.api.given_client import check_api_client
from shared_pathways_service.api.instances import parse_instances
from shared_pathways_service.api.priorities import cluster_priority, parse_priority
from shared_pathways_service.api.proxy_options import ProxyOptions
from shared_pathways_service.api.request_fields import (
    TEAM_LABEL,
    check_bucket,
    check_choice,
    check_keep_for,
    check_labels,
    check_proxy_image,
    check_proxy_job_name,
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
    "DEFAULT_LINK",
    "DEFAULT_NAMESPACE",
    "DEFAULT_PROXY_IMAGE",
    "ClientOptions",
    "HomeName",
    "LinkKind",
    "ProxyOptions",
    "Requester",
    "SessionRequest",
]

DEFAULT_PROXY_IMAGE: Final = "us-docker.pkg.dev/cloud-tpu-v2-images/pathways/proxy_server:latest"

Wait = Literal["placed", "ready"]
LinkKind = Literal["resumable", "plain"]
DEFAULT_LINK: Final = "resumable"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Requester:
    """The user that requests a session, with a random suffix for a generated name."""

    user: str
    host: str
    suffix: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClientOptions:
    """The part of a request that stays in the user's process; see connect()."""

    local_devices: bool = True
    strict: bool | None = None
    tune_allocator: bool = False
    on_event: Callable[[Event], object] | None = None
    profile: str | None = None
    api_client: object | None = dataclasses.field(default=None, repr=False)

    @classmethod
    def check(
        cls,
        *,
        local_devices: object = True,
        strict: object = None,
        tune_allocator: object = False,
        on_event: object = None,
        profile: object = None,
        api_client: object = None,
    ) -> ClientOptions:
        """Checks these arguments of connect()."""
        return cls(
            local_devices=check_bool("local_devices", local_devices),
            strict=None if strict is None else check_bool("strict", strict),
            tune_allocator=check_bool("tune_allocator", tune_allocator),
            on_event=_callback(on_event),
            profile=check_optional_text("profile", profile),
            api_client=check_api_client(api_client),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SessionRequest:
    """A valid request, which the service may or may not be able to satisfy.

    connect() describes most fields. Names of fields in seconds end with ``_s``, as everywhere
    behind it.

    Attributes:
      tenant: The part for the resource manager, such as the slices.
      is_name_generated: Whether the tenant's name was generated.
      priority_class: The cluster's PriorityClass with the tenant's priority; empty: none. If the
        numbers differ, the cluster's counts.
      proxy_server_image: The proxy's container image; `DEFAULT_PROXY_IMAGE` stands for the one that
        matches the service.
      link: Whether a broken connection with the proxy is resumed. The embedded service ignores it.
      keep_for_s: Seconds for which the proxy outlives the last sign of life of the session; None:
        the setting `proxy_deadline_s`. The embedded service ignores it.
      client: Options for the user's process only.
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
    link: LinkKind
    keep_for_s: float | None
    client: ClientOptions = dataclasses.field(default_factory=ClientOptions)

    @property
    def name(self) -> str:
        """The session's name, which is also its tenant's and its proxy's."""
        return self.tenant.name

    @property
    def chosen_image(self) -> str:
        """The proxy's container image; empty: the one that matches the service."""
        is_default = self.proxy_server_image == DEFAULT_PROXY_IMAGE
        return "" if is_default else self.proxy_server_image

    def matches(self, started: SessionRequest) -> bool:
        """Returns whether a started request is equivalent to this one.

        `on_event` is not compared, a generated name matches any name, and an `api_client` any of
        the same API server: a notebook's cell makes a new one each time it is run.
        """
        name = started.name if self.is_name_generated else self.name
        renamed = dataclasses.replace(
            self,
            tenant=dataclasses.replace(self.tenant, name=name),
            is_name_generated=started.is_name_generated,
            client=dataclasses.replace(
                self.client,
                on_event=started.client.on_event,
                api_client=started.client.api_client,
            ),
        )
        return renamed == started

    def to_json(self) -> dict[str, Any]:
        """Returns the request as plain data, without the part that stays in the user's process."""
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
        """Makes the request from plain data of `to_json`."""
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
        api_client: object = None,
        namespace: object = DEFAULT_NAMESPACE,
        wait: object = "placed",
        queue_timeout: object = None,
        timeout: object = 300.0,
        elastic_slices: object = 0,
        priority: object = None,
        labels: object = None,
        max_lifetime: object = None,
        link: object = DEFAULT_LINK,
        keep_for: object = None,
        local_port: object = None,
        **client: object,
    ) -> SessionRequest:
        """Checks connect()'s arguments, which have the same names and meanings here."""
        gke = cluster, project, region
        service = ServiceChoice.check(gke, context, namespace, pathways_service, api_client)
        number, priority_class = _priority(service.home, priority)
        checked_labels = check_labels(labels)
        return cls(
            service=service,
            tenant=TenantRequest(
                name=_job_name(proxy_job_name, requester),
                virtual_slices=(slices := parse_instances(expected_tpu_instances)),
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
            link=cast("LinkKind", check_choice("link", link, ("resumable", "plain"))),
            keep_for_s=None if keep_for is None else check_keep_for("keep_for", keep_for),
            client=ClientOptions.check(api_client=api_client, **client),
        )


def _priority(home: HomeName, value: object) -> tuple[int, str]:
    """Returns the number, and the cluster's PriorityClass of this number, if any."""
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
