"""Refuses requests above the limits of a tenant, or of all tenants of a team together.

They are refused at once, with the limit named: waiting would not help or, for a team that has its
share, would only occupy a place in line. A tenant without a team counts as a team of its user where
users are verified; elsewhere the limits of teams do not apply to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shared_pathways_service.api.priorities import describe_priority
from shared_pathways_service.api.tenant_requests import TenantRequest
from shared_pathways_service.scheduling.book.changes import (
    Change,
    Consumer,
    TenantEntered,
    TenantLeft,
)
from shared_pathways_service.scheduling.book.config import Limits, RmConfig
from shared_pathways_service.scheduling.book.deadlines import Deadlines
from shared_pathways_service.scheduling.book.ledger import Ledger
from shared_pathways_service.scheduling.book.records import Tenant
from shared_pathways_service.scheduling.policies.policy import Policy

__all__ = ["TeamLimits"]


class TeamLimits(Policy):
    """Its state: how many tenants and slices each group has, counted as tenants come and go.

    A group is a team or, if its tenants name none, a user; it is described in words.
    """

    def __init__(self, config: RmConfig, ledger: Ledger, _deadlines: Deadlines) -> None:
        self._limits = config.limits
        self._is_limited = config.limits != Limits(memory_bytes=config.limits.memory_bytes)
        self._users_count = config.users_verified
        self._ledger = ledger
        self._tenants: dict[str, int] = {}
        self._slices: dict[str, int] = {}

    @property
    def consumes(self) -> Mapping[type[Change], Consumer]:
        """Tenants that enter and leave."""
        return {
            TenantEntered: lambda change: self._count(change.tenant, 1),
            TenantLeft: lambda change: self._count(change.tenant, -1),
        }

    def forbids(self, request: TenantRequest) -> str:
        """Returns the limits that a new tenant would exceed, in words; empty: none."""
        return "; ".join(self._exceeded(request)) if self._is_limited else ""

    def validate(self, *, recovering: bool) -> None:
        """Checks the counts against the book."""
        del recovering
        tenants = [one for one in self._ledger.tenants.values() if self._group(one.request)]
        assert sum(self._tenants.values()) == len(tenants)
        assert sum(self._slices.values()) == sum(len(one.pools) for one in tenants)

    def _exceeded(self, request: TenantRequest) -> Iterable[str]:
        limits, wanted = self._limits, len(request.virtual_slices)
        if limits.tenant_slices is not None and wanted > limits.tenant_slices:
            yield f"the limit of slices per tenant is {limits.tenant_slices} ({wanted} wanted)"
        waits = request.queue_timeout_s
        if limits.wait_s is not None and waits is not None and waits > limits.wait_s:
            yield f"the longest allowed wait is {limits.wait_s:g} s (queue_timeout={waits:g} s)"
        if limits.priority is not None and request.priority > limits.priority:
            highest, asked = map(describe_priority, (limits.priority, request.priority))
            yield f"the highest allowed priority is {highest} ({asked} wanted)"
        group = self._group(request)
        if not group:
            return
        has, tenants = self._slices.get(group, 0), self._tenants.get(group, 0)
        if limits.team_slices is not None and has + wanted > limits.team_slices:
            yield (
                f"the limit of slices for {group} is {limits.team_slices} ({has} in use, "
                f"{wanted} wanted)"
            )
        if limits.team_tenants is not None and tenants >= limits.team_tenants:
            yield f"the limit of tenants for {group} is {limits.team_tenants} ({tenants} exist)"

    def _count(self, tenant: Tenant, sign: int) -> None:
        group = self._group(tenant.request)
        if not group:
            return
        for counts, change in ((self._tenants, 1), (self._slices, len(tenant.pools))):
            counts[group] = counts.get(group, 0) + sign * change
            if not counts[group]:
                del counts[group]

    def _group(self, request: TenantRequest) -> str:
        """Returns the group of a tenant; empty: it has none."""
        if request.team:
            return f"team {request.team}"
        return f"user {request.user}" if self._users_count and request.user else ""
