"""State of the simulated world, and what follows from it alone."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter

from shared_pathways_service.scheduling.book.census import Census
from shared_pathways_service.scheduling.book.config import RmConfig
from shared_pathways_service.scheduling.book.holdings import StatusReport
from shared_pathways_service.scheduling.book.persisted import (
    PersistedGrant,
    PersistedMark,
)
from shared_pathways_service.scheduling.book.reserved import Reservation
from shared_pathways_service.scheduling.book.states import (
    SliceMark,
    SliceState,
    TenantState,
)
from shared_pathways_service.scheduling.core import ResourceManagerCore
from tests.scheduling.books import Books
from tests.scheduling.world.parties import Placing, Proxy, Worker


class Facts:
    """What is on the disk, what workers and proxies are at, and what the last event meant."""

    def __init__(self, config: RmConfig) -> None:
        self.config = config
        self.now = 1e9
        self.step = 0
        self.grants: dict[str, PersistedGrant] = {}
        self.last_generation = 0
        self.last_order = 0
        self.state_lost = False
        self.marks: dict[str, PersistedMark] = {}
        self.reservations: dict[str, Reservation] = {}
        self.disk_missing = False
        self.core = ResourceManagerCore(config, None, self.now)
        self.workers = {
            f"{kind.family}-{i}/{host}": Worker(f"{kind.family}-{i}", kind, host)
            for kind, count in config.slices.items()
            for i in range(count)
            for host in range(kind.hosts)
        }
        self.proxies: dict[str, Proxy] = {}
        self.placings: dict[int, Placing] = {}
        self.broke: dict[str, int] = {}  # slice: step in which it last had a reason to be lost
        self.replaced: dict[str, int] = {}  # slice: step in which it last got another process
        #: When this manager was first told that a placement cannot be used, by generation.
        self.reported_at: dict[int, float] = {}
        self.given_up: set[int] = set()  # generations of which any manager was told that
        self.disk_lost_at = -math.inf
        self.started_at = self.now
        self.made = 0
        self.crash_after: int | None = None
        self.sound = True  # no judgement has failed
        self.planned: set[str] = set()  # who waited for a preemption before the last event
        self.marked: dict[str, SliceMark] = {}  # what operators had said before it
        self.taken: dict[str, str] = {}  # who was preempted by the last event: why
        self.idled: dict[str, str] = {}  # whose slices were taken back by the last event: why
        self.listening: set[str] = set()  # whose proxies were connected when it came
        self.log: list[str] = []
        self.books = Books()

    def placed_before(self, step: int) -> set[tuple[str, int]]:
        """Virtual slices that were placed earlier, since their tenants came."""
        return {
            (placing.tenant, placing.index)
            for placing in self.placings.values()
            if self.proxies[placing.tenant].came_at <= placing.step < step
        }

    def kept(self, kind: str, after: StatusReport) -> int:
        """Returns how many spares are kept back, with a cordoned slice without holder as one."""
        cordoned = sum(
            one.instance_type == kind and one.id in self.marks and not one.tenant
            for one in after.slices
        )
        return max(0, self.config.spares - cordoned)

    def barred(self, proxy: Proxy) -> bool:
        """Whether others' reservations of a type that one wants may keep it waiting."""
        kinds = set(map(str, proxy.asks.request.virtual_slices))
        return any(
            one.instance_type in kinds and one.user != proxy.asks.request.user
            for one in self.reservations.values()
        )

    def has_a_reservation(self, proxy: Proxy) -> bool:
        kinds = set(map(str, proxy.asks.request.virtual_slices))
        return any(
            one.instance_type in kinds and one.user == proxy.asks.request.user
            for one in self.reservations.values()
        )

    def judge_restored(self) -> None:
        """What was written down is so again."""
        known = {tenant.name: tenant for tenant in self.core.status(self.now).tenants}
        reserved = {one.reservation for one in self.core.status(self.now).reservations}
        assert reserved == set(self.reservations.values())
        assert known.keys() == self.grants.keys()
        for name, grant in self.grants.items():
            placed = {
                one.index: (one.slice_id, one.generation)
                for one in known[name].slices
                if one.slice_id
            }
            assert placed == dict(grant.placements)
            state = known[name].state
            assert (state is TenantState.RUNNING) == grant.running
            assert (state is TenantState.PREEMPTED) == grant.preempted
            assert (state is TenantState.IDLE) == (grant.parked is not None)
            assert bool(known[name].preempting_by) == (grant.notice is not None)


def named_tenant(said: str) -> str:
    """Returns the tenant that a notice names: it is its own host."""
    return said.split(" of priority ", maxsplit=1)[0].rpartition("@")[2]


def planned_tenants(report: StatusReport) -> set[str]:
    """Returns who waits for others to be preempted."""
    said = {named_tenant(tenant.preempting_by) for tenant in report.tenants}
    waiting = {entry.tenant for entry in report.queue}
    return waiting & (said | {one.kept_for for one in report.slices})


def free_slices(report: StatusReport) -> Counter[str]:
    return Counter(
        one.instance_type
        for one in report.slices
        if one.state is SliceState.READY and not one.tenant and not one.kept_for
    )


def check_census(census: Census, report: StatusReport) -> None:
    """What is counted is what is described."""
    # (What hosts are assigned follows in a moment, and not before the end of a recovery.)
    assert census.executors.total() <= sum(len(one.workers) for one in report.slices if one.tenant)
    assert dataclasses.replace(census, executors=Counter()) == Census(
        slices=Counter((one.instance_type, one.state) for one in report.slices),
        held={
            kind: sum(one.instance_type == kind and one.tenant != "" for one in report.slices)
            for kind in report.types
        },
        tenants=Counter(one.state for one in report.tenants),
        queue_length=len(report.queue),
        oldest_wait_s=max((one.waiting_s for one in report.queue), default=0.0),
        recovering=report.state == "recovering",
        executors=Counter(),
    )
