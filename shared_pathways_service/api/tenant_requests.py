"""The tenant's part of a session's request: its slices, and its rank among other tenants.

It is sent as the message of the same name and fields (`protocol/tenant.proto`), and to a proxy as
flags (`flags.tenants`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from shared_pathways_service.api.topology import InstanceType

__all__ = ["TenantRequest"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TenantRequest:
    """A tenant's slices and its rank among the other tenants.

    Servers check the fields of a request that they receive
    (`protocol.tenant_requests.read_tenant_request`); this class does not.

    Attributes:
      name: The tenant's name, which is its session's and its proxy's too; a DNS label.
      virtual_slices: The instance type of each virtual slice; empty: one slice of the service's
        first type.
      elastic_slices: Number of virtual slices that may be missing at the start.
      priority: Higher goes first.
      queue_timeout_s: Seconds to wait for slices, may be infinite; None: refused at once if slices
        are taken.
      max_lifetime_s: Seconds after which the tenant ends in any case; None: no limit.
      user: For people and for limits, like `team` and `host`; not trusted.
      team: For limits and usage.
      host: The machine of the user.
    """

    name: str
    virtual_slices: tuple[InstanceType, ...]
    elastic_slices: int = 0
    priority: int = 0
    queue_timeout_s: float | None = None
    max_lifetime_s: float | None = None
    user: str = ""
    team: str = ""
    host: str = ""

    @property
    def type_names(self) -> tuple[str, ...]:
        """The instance type of each virtual slice as text, e.g. ``("tpuv6e:2x2",)``."""
        return tuple(map(str, self.virtual_slices))

    @property
    def gang(self) -> int:
        """Number of slices that must be placed for the tenant to start."""
        return max(len(self.virtual_slices), 1) - self.elastic_slices

    def to_json(self) -> dict[str, Any]:
        """Returns the request as plain data."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**fields, "virtual_slices": list(self.type_names)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TenantRequest:
        """Makes the request from plain data of `to_json`."""
        slices = tuple(InstanceType.parse(text) for text in data["virtual_slices"])
        return cls(**{**data, "virtual_slices": slices})
