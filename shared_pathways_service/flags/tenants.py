"""Declares a tenant's request as flags of its proxy, and writes it as such flags."""

from __future__ import annotations

import dataclasses
import math

from shared_pathways_service.api.priorities import PRIORITIES, parse_priority
from shared_pathways_service.api.tenant_requests import TenantRequest
from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.api.validation import check_dns_label
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.flags.parsing import (
    comma_separated,
    count,
    flag,
    seconds,
    seconds_or_zero,
)

__all__ = ["TenantOptions", "slice_flags", "tenant_flags", "tenant_variables"]


def _priority(text: str) -> int:
    try:
        return parse_priority(text)
    except InvalidRequestError as error:
        raise ValueError(error.expected) from None


def _queue_timeout(text: str) -> float:
    if text == "inf":
        return math.inf
    try:
        return seconds_or_zero(text)
    except ValueError as error:
        raise ValueError(f"{error}, or inf") from None


@dataclasses.dataclass(frozen=True, kw_only=True)
class TenantOptions:
    """Flags of a proxy for its tenant's request; a proxy's options derive from these."""

    virtual_slices: tuple[str, ...] = flag(
        (), parse=comma_separated, help="Request these slices, e.g. tpuv6e:2x2,tpuv6e:2x2."
    )
    num_elastic_slices: int = flag(
        0, parse=count, help="Start even if so many of the slices are not placed yet."
    )
    tenant_name: str = flag(
        "", env="SPS_TENANT_NAME", help="Name of the tenant, a DNS label. [default: generated]"
    )
    tenant_user: str = flag("", env="SPS_TENANT_USER", help="User of the tenant.")
    tenant_host: str = flag("", env="SPS_TENANT_HOST", help="Host of the tenant.")
    tenant_team: str = flag(
        "", env="SPS_TENANT_TEAM", help="Team of the tenant, for limits and usage."
    )
    tenant_priority: int = flag(
        0,
        parse=_priority,
        env="SPS_TENANT_PRIORITY",
        help=f"Queue with this priority: a number, or {' or '.join(PRIORITIES)}.",
    )
    queue_timeout_s: float | None = flag(
        None,
        parse=_queue_timeout,
        env="SPS_QUEUE_TIMEOUT_S",
        help="Wait so long in the queue for slices; inf: without limit. [default: fail at once]",
    )
    max_lifetime_s: float | None = flag(
        None,
        parse=seconds,
        env="SPS_MAX_LIFETIME_S",
        help="Let the resource manager release the slices after so long. [default: never]",
    )

    def __post_init__(self) -> None:
        """Checks flags against each other."""
        if not self.virtual_slices:
            raise InvalidRequestError("--virtual_slices", "", "at least one instance type")
        if self.num_elastic_slices > len(self.virtual_slices):
            raise InvalidRequestError(
                "--num_elastic_slices",
                self.num_elastic_slices,
                f"at most the {len(self.virtual_slices)} virtual slices",
            )
        if self.tenant_name:
            check_dns_label("--tenant_name", self.tenant_name)
        self.instance_types()

    def instance_types(self) -> tuple[InstanceType, ...]:
        """Returns the type of each virtual slice."""
        return tuple(InstanceType.parse(t, field="--virtual_slices") for t in self.virtual_slices)

    def tenant_request(self, default_name: str) -> TenantRequest:
        """Returns the request.

        Args:
          default_name: The tenant's name if no flag names it.
        """
        return TenantRequest(
            name=self.tenant_name or default_name,
            virtual_slices=self.instance_types(),
            elastic_slices=self.num_elastic_slices,
            priority=self.tenant_priority,
            queue_timeout_s=self.queue_timeout_s,
            max_lifetime_s=self.max_lifetime_s,
            user=self.tenant_user,
            team=self.tenant_team,
            host=self.tenant_host,
        )


def slice_flags(request: TenantRequest) -> list[str]:
    """Returns a request's flags for its slices, which Google's proxies also accept."""
    flags = [f"--virtual_slices={','.join(request.type_names)}"]
    if request.elastic_slices:
        flags.append(f"--num_elastic_slices={request.elastic_slices}")
    return flags


def tenant_flags(request: TenantRequest) -> list[str]:
    """Returns a request as flags of a proxy."""
    own = _own_values(request).items()
    return [*slice_flags(request), *(f"--{name}={value}" for name, value in own)]


def tenant_variables(request: TenantRequest) -> dict[str, str]:
    """Returns the variables that a proxy reads in addition to `slice_flags`."""
    declared = {field.name: field.metadata["flag"] for field in dataclasses.fields(TenantOptions)}
    values = _own_values(request).items()
    return {declared[name].env[0]: value for name, value in values if value}


def _own_values(request: TenantRequest) -> dict[str, str]:
    """Returns the values of `TenantOptions`, except those of the slices, as text."""
    values = {
        "tenant_name": request.name,
        "tenant_user": request.user,
        "tenant_host": request.host,
        "tenant_team": request.team,
        "tenant_priority": str(request.priority),
    }
    numbers = {
        "queue_timeout_s": request.queue_timeout_s,
        "max_lifetime_s": request.max_lifetime_s,
    }
    return values | {name: str(number) for name, number in numbers.items() if number is not None}
