"""The limits of a tenant, and of all tenants of a team together."""

from __future__ import annotations

import dataclasses
import math

__all__ = ["Limits"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a service; None: unlimited.

    Attributes:
      tenant_slices: Virtual slices of one tenant, elastic ones included.
      team_slices: Virtual slices of all tenants of a team, waiting tenants included.
      team_tenants: Tenants of a team, waiting ones included.
      wait_s: Seconds that a tenant may ask to wait for slices.
      memory_bytes: Bytes of device memory that a proxy may give its clients; sent to the proxy.
    """

    tenant_slices: int | None = None
    team_slices: int | None = None
    team_tenants: int | None = None
    wait_s: float | None = None
    memory_bytes: int | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{field.name}={value} must be more than 0, or None")
