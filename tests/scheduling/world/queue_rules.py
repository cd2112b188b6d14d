"""Rules for the queue: who may start before whom, and who must not wait."""

from __future__ import annotations

import math
from collections import Counter

from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.scheduling.book.holdings import StatusReport
from shared_pathways_service.scheduling.book.states import (
    TenantState,
    VirtualSliceState,
)
from shared_pathways_service.scheduling.policies.aging import longest_lead
from tests.scheduling.world.facts import Facts, free_slices, planned_tenants
from tests.scheduling.world.parties import Proxy


class QueueRules:
    """Judges the order of starts, and that no slice is idle that a waiting tenant could have."""

    def __init__(self, world: Facts) -> None:
        self._world = world

    def judge_overtaking(self, started: Proxy, waits: list[Proxy], after: StatusReport) -> None:
        world = self._world
        if self._keeps_nobody(started, waits, after) or world.has_a_reservation(started):
            return
        kinds = _kinds_of(started, after)
        for other in waits:
            shares = kinds & set(other.asks.request.virtual_slices)
            exempt = (
                world.barred(other)
                or started.name in world.planned
                or other.name in world.planned | world.taken.keys()
            )
            assert exempt or not (shares and self._ahead(other, started)), (
                f"{started.name} was placed before {other.name}"
            )

    def _heads(self, waits: list[Proxy]) -> list[Proxy]:
        """Returns who is first in the line of any type, of those that were promised nothing."""
        world = self._world
        planned = planned_tenants(world.core.status(world.now))
        heads: dict[str, Proxy] = {}
        for kind in world.config.slices:
            line = [
                p for p in waits if kind in p.asks.request.virtual_slices and p.name not in planned
            ]
            for one in line:
                if not any(self._ahead(other, one) for other in line):
                    heads[one.name] = one
        return list(heads.values())

    def _left(self, kind: InstanceType, heads: list[Proxy], after: StatusReport) -> int:
        """Returns the free slices of a type beyond all that the heads want."""
        wanted = sum(head.asks.request.virtual_slices.count(kind) for head in heads)
        return free_slices(after)[str(kind)] - self._world.kept(str(kind), after) - wanted

    def _keeps_nobody(self, started: Proxy, waits: list[Proxy], after: StatusReport) -> bool:
        """Whether all heads have what they want without what one that started has, or in time."""
        world = self._world
        kinds = _kinds_of(started, after)
        heads = self._heads(waits)
        if all(self._left(kind, heads, after) >= 0 for kind in kinds):
            return True
        ends_at = {tenant.name: tenant.ends_at for tenant in after.tenants}
        mine = ends_at[started.name]
        if mine is None:
            return False
        held = [one for one in after.slices if one.tenant and ends_at[one.tenant] is not None]
        for head in heads:
            if not kinds & set(head.asks.request.virtual_slices):
                continue
            if head.asks.request.elastic_slices:
                return False  # which of its slices it starts with is open
            starts_at = -math.inf
            for kind, wanted in Counter(head.asks.request.virtual_slices).items():
                ends = sorted(
                    float(ends_at[one.tenant] or 0.0)
                    for one in held
                    if one.instance_type == str(kind)
                    and one.tenant != started.name
                    and world.proxies[one.tenant].asks.request.priority
                    >= head.asks.request.priority
                )
                others = world.config.slices[kind] - world.config.spares - len(ends)
                if wanted > others:
                    starts_at = max(starts_at, ends[wanted - others - 1])
            if mine > starts_at:
                return False
        return True

    def _judge_idle(self, after: StatusReport, waits: list[Proxy]) -> None:
        """No slices are idle that one behind the heads could have without keeping them."""
        missing = {
            one.instance_type
            for tenant in after.tenants
            for one in tenant.slices
            if one.state is VirtualSliceState.UNPLACED and tenant.state is TenantState.RUNNING
        }
        heads, planned = self._heads(waits), planned_tenants(after)
        for proxy in waits:
            if proxy in heads or proxy.name in planned or self._world.barred(proxy):
                continue
            could = sum(
                min(wanted, max(0, self._left(kind, heads, after)))
                for kind, wanted in Counter(proxy.asks.request.virtual_slices).items()
                if str(kind) not in missing
            )
            assert could < proxy.needed, f"{proxy.name} waits, and would keep nobody"

    def judge_waiting(self, after: StatusReport, waits: list[Proxy]) -> None:
        world = self._world
        self._judge_idle(after, waits)
        for proxy in waits:
            assert not self.fits(proxy, after, waits), f"{proxy.name} waits, though it would fit"
        free = free_slices(after)
        once_placed = world.placed_before(world.step + 1)
        for tenant in after.tenants:
            for one in tenant.slices:
                if one.state is not VirtualSliceState.UNPLACED:
                    continue
                if tenant.state is TenantState.IDLE:
                    continue
                if (tenant.name, one.index) in once_placed and world.disk_lost_at < 0:
                    assert not free[one.instance_type], "lost, and not placed again"
                elif world.barred(world.proxies[tenant.name]):
                    continue
                elif not self._preceded(world.proxies[tenant.name], one.instance_type, waits):
                    kept = world.kept(one.instance_type, after)
                    assert free[one.instance_type] <= kept, "missing, though a slice is free"

    def fits(self, proxy: Proxy, after: StatusReport, waits: list[Proxy]) -> bool:
        world = self._world
        if world.barred(proxy):
            return False  # what is left to it is judged by the core's own invariants
        free = free_slices(after)
        could = 0
        for kind, wanted in Counter(proxy.asks.request.virtual_slices).items():
            if not self._preceded(proxy, str(kind), waits):
                could += min(wanted, max(0, free[str(kind)] - world.kept(str(kind), after)))
        return could >= proxy.needed

    def _preceded(self, proxy: Proxy, kind: str, waits: list[Proxy]) -> bool:
        """Whether somebody before this one waits for slices of a type."""
        world = self._world
        planned = planned_tenants(world.core.status(world.now))
        return any(
            self._ahead(other, proxy)
            and kind in map(str, other.asks.request.virtual_slices)
            and other.name not in planned
            for other in waits
        )

    def _ahead(self, one: Proxy, other: Proxy) -> bool:
        """Whether one is served before the other: by priority, save for who came long before."""
        aging_s = self._world.config.aging_s
        if aging_s is None:
            key = (-one.asks.request.priority, one.arrival)
            return key < (-other.asks.request.priority, other.arrival)
        lead = longest_lead(0, one.asks.request.priority, aging_s) - longest_lead(
            0, other.asks.request.priority, aging_s
        )
        return (one.asked_at - lead, one.arrival) < (other.asked_at, other.arrival)


def _kinds_of(proxy: Proxy, after: StatusReport) -> set[InstanceType]:
    """Returns the types that a tenant has slices of.

    (By the manager: its proxy, if cut off, has not heard of all.)
    """
    held = {one.instance_type for one in after.slices if one.tenant == proxy.name}
    return {kind for kind in proxy.asks.request.virtual_slices if str(kind) in held}
