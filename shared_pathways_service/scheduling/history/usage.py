"""Computes the usage of a service over a time window from its history.

A decision that ends a holding or a wait has its beginning: each one in or after the window may
reach into it. Holdings and waits that have not ended yet are in the status.
"""

from __future__ import annotations

import dataclasses
import enum

from shared_pathways_service.scheduling.book.decisions import Decision
from shared_pathways_service.scheduling.book.holdings import StatusReport, TenantStatus

__all__ = ["Usage", "UsageBy", "UsageRow"]


class UsageBy(enum.StrEnum):
    """The subject of a row of the usage."""

    TENANT = "tenant"
    USER = "user"
    TEAM = "team"
    TYPE = "type"


@dataclasses.dataclass(kw_only=True, slots=True)
class UsageRow:
    """The usage of one tenant, user, team or instance type.

    Attributes:
      slice_s: Slice-seconds: two slices held for 5 s are 10.
      waiting_s: Seconds in the queue, summed over the tenants that waited. By instance type, a
        tenant that wants several waits for each of them.
      holdings: Placements that reach into the window.
      waits: Waits in the queue that reach into it; a wait that ended at once does not count.
    """

    name: str
    slice_s: float = 0.0
    waiting_s: float = 0.0
    holdings: int = 0
    waits: int = 0


class Usage:
    """Counts the usage of a window.

    Args:
      by: The subject of the rows.
      since: The start of the window, by the core's clock.
      until: The end of the window.
    """

    def __init__(self, by: UsageBy, since: float, until: float) -> None:
        self._by = by
        self._since = since
        self._until = until
        self._rows: dict[str, UsageRow] = {}

    def add(self, decision: Decision) -> None:
        """Counts the part of an ended holding or wait that lies in the window."""
        if decision.began is not None:
            self._count(decision, decision.began, decision.time)

    def add_status(self, report: StatusReport, now: float) -> None:
        """Counts holdings and waits that have not ended at the time of a report."""
        tenants = {tenant.name: tenant for tenant in report.tenants}
        for found in report.slices:
            if found.held_since is not None:
                holder = tenants[found.tenant]
                self._count(_use(holder, found.instance_type, now, found.id), found.held_since, now)
        for entry in report.queue:
            wait = _use(tenants[entry.tenant], ",".join(entry.wants), now)
            self._count(wait, now - entry.waiting_s, now)

    def rows(self) -> list[UsageRow]:
        """Returns the rows, the highest usage first."""
        return sorted(self._rows.values(), key=lambda row: (-row.slice_s, -row.waiting_s, row.name))

    def _count(self, what: Decision, began: float, ended: float) -> None:
        seconds = min(ended, self._until) - max(began, self._since)
        if seconds <= 0:
            return
        for name in self._names(what):
            row = self._rows.setdefault(name, UsageRow(name=name))
            if what.slice:
                row.slice_s += seconds
                row.holdings += 1
            else:
                row.waiting_s += seconds
                row.waits += 1

    def _names(self, what: Decision) -> list[str]:
        match self._by:
            case UsageBy.TENANT:
                return [what.tenant]
            case UsageBy.USER:
                return [what.user]
            case UsageBy.TEAM:
                return [what.team]
            case UsageBy.TYPE:
                return [word.partition("=")[0] for word in what.instance_type.split(",")]


def _use(tenant: TenantStatus, instance_type: str, now: float, slice_id: str = "") -> Decision:
    """Returns a holding or a wait in the form of the decision that would end it now."""
    return Decision(
        time=now,
        kind="",
        tenant=tenant.name,
        user=tenant.user,
        team=tenant.team,
        slice=slice_id,
        instance_type=instance_type,
    )
