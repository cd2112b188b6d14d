"""What a tenant, and all tenants of a team together, may have at most.

A request above a limit is refused at once, with the limit named: waiting would not help, or, for a
team that has its share, would take slices from nobody but would hold a place. Tenants without a
team are of none, and no team's limit concerns them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

from shared_pathways_service.scheduling.book.messages import TenantAsked
from shared_pathways_service.scheduling.book.records import Tenant

__all__ = ["Limits", "Teams"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a service; None: there is none.

    Attributes:
      tenant_slices: Virtual slices of one tenant, elastic ones too.
      team_slices: Virtual slices of all tenants of a team, those that wait too.
      team_tenants: Tenants of a team, those that wait too.
      wait_s: Seconds that a tenant may ask to wait for slices.
      memory_bytes: Bytes of device memory that a proxy may give its clients; it is told of it.
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


class Teams:
    """What each team has, counted as tenants come and go."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._tenants: dict[str, int] = {}
        self._slices: dict[str, int] = {}

    def came(self, tenant: Tenant) -> None:
        """Counts a tenant in."""
        self._count(tenant, 1)

    def went(self, tenant: Tenant) -> None:
        """Counts a tenant out."""
        self._count(tenant, -1)

    def exceeded_by(self, event: TenantAsked) -> str:
        """Returns which limit a new tenant would exceed, in words; empty: none."""
        return "; ".join(self._exceeded(event))

    def _exceeded(self, event: TenantAsked) -> Iterable[str]:
        limits, wanted, team = self._limits, len(event.virtual_slices), event.team
        if limits.tenant_slices is not None and wanted > limits.tenant_slices:
            yield f"the limit of slices per tenant is {limits.tenant_slices} ({wanted} wanted)"
        waits = event.queue_timeout_s
        if limits.wait_s is not None and waits is not None and waits > limits.wait_s:
            yield f"the longest allowed wait is {limits.wait_s:g} s (queue_timeout={waits:g} s)"
        if not team:
            return
        has, tenants = self._slices.get(team, 0), self._tenants.get(team, 0)
        if limits.team_slices is not None and has + wanted > limits.team_slices:
            yield (
                f"the limit of slices for team {team} is {limits.team_slices} ({has} in use, "
                f"{wanted} wanted)"
            )
        if limits.team_tenants is not None and tenants >= limits.team_tenants:
            yield f"the limit of tenants for team {team} is {limits.team_tenants} ({tenants} exist)"

    def _count(self, tenant: Tenant, sign: int) -> None:
        team = tenant.team
        if not team:
            return
        for counts, change in ((self._tenants, 1), (self._slices, len(tenant.kinds))):
            counts[team] = counts.get(team, 0) + sign * change
            if not counts[team]:
                del counts[team]
