"""A tenant's request as flags of its proxy: written by its starter, read by the proxy."""

from __future__ import annotations

import dataclasses
import math

from shared_pathways_service.api.priorities import PRIORITIES, parse_priority
from shared_pathways_service.api.tenant_requests import TenantRequest
from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.api.validation import check_dns_label
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.flags.parsing import comma_separated, count, flag, seconds

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
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < math.inf:
        raise ValueError("seconds from 0 up, or inf")
    return number


@dataclasses.dataclass(frozen=True, kw_only=True)
class TenantOptions:
    """The tenant's request among a proxy's flags; a proxy's options are derived from these."""

    virtual_slices: tuple[str, ...] = flag(
        (), parse=comma_separated, help="The tenant's slices, e.g. tpuv6e:2x2,tpuv6e:2x2."
    )
    num_elastic_slices: int = flag(
        0, parse=count, help="How many of the slices may be missing at the start."
    )
    tenant_name: str = flag("", env="SPS_TENANT_NAME", help="DNS label; by default made up.")
    tenant_user: str = flag("", env="SPS_TENANT_USER", help="Who holds the slices.")
    tenant_host: str = flag("", env="SPS_TENANT_HOST", help="On which machine.")
    tenant_team: str = flag("", env="SPS_TENANT_TEAM", help="For limits and usage.")
    tenant_priority: int = flag(
        0,
        parse=_priority,
        env="SPS_TENANT_PRIORITY",
        help=f"Higher goes first: a number, or {' or '.join(PRIORITIES)}.",
    )
    queue_timeout_s: float | None = flag(
        None,
        parse=_queue_timeout,
        env="SPS_QUEUE_TIMEOUT_S",
        help="Seconds to wait for slices; inf: for ever; by default refused at once.",
    )
    max_lifetime_s: float | None = flag(
        None,
        parse=seconds,
        env="SPS_MAX_LIFETIME_S",
        help="Seconds after which the resource manager takes the slices back; by default never.",
    )

    def __post_init__(self) -> None:
        """Checks what concerns several flags."""
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
          default_name: The tenant's name where no flag has one.
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
    """Returns the flags of a request that Google's proxies know too: those of its slices."""
    flags = [f"--virtual_slices={','.join(request.type_names)}"]
    if request.elastic_slices:
        flags.append(f"--num_elastic_slices={request.elastic_slices}")
    return flags


def tenant_flags(request: TenantRequest) -> list[str]:
    """Returns a request as flags of a proxy."""
    own = _own_values(request).items()
    return [*slice_flags(request), *(f"--{name}={value}" for name, value in own)]


def tenant_variables(request: TenantRequest) -> dict[str, str]:
    """Returns the variables that a proxy reads beside `slice_flags`."""
    declared = {field.name: field.metadata["flag"] for field in dataclasses.fields(TenantOptions)}
    values = _own_values(request).items()
    return {declared[name].env[0]: value for name, value in values if value}


def _own_values(request: TenantRequest) -> dict[str, str]:
    """Returns the texts of `TenantOptions` beside those of the slices."""
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
