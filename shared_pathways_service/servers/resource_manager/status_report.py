"""Creates messages of the core's state: `GetStatus` and a watcher's snapshot."""

from __future__ import annotations

import asyncio
import collections
import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType

from shared_pathways_service.events import Event, rfc3339
from shared_pathways_service.events.manager_events import ManagerRecovering, TenantDisconnected
from shared_pathways_service.events.tenants import (
    SlicePlaced,
    SliceUnplaced,
    TenantIdled,
    TenantIdling,
    TenantPreempted,
    TenantPreempting,
    TenantQueued,
    TenantRunning,
    VirtualSliceEvent,
)
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.scheduling.book.holdings import (
    ReservationStatus,
    SliceStatus,
    StatusReport,
    TenantStatus,
)
from shared_pathways_service.scheduling.book.states import (
    SLICE_EVENTS,
    SliceState,
    TenantState,
    VirtualSliceState,
)
from shared_pathways_service.scheduling.history.expectation import Expectation
from shared_pathways_service.servers.resource_manager.executor_directory import ExecutorDirectory

__all__ = ["reservation_message", "snapshot_events", "status_message"]

_PLACEMENT_EVENTS: Mapping[str, Callable[..., VirtualSliceEvent]] = {
    VirtualSliceState.PLACED: SlicePlaced,
    VirtualSliceState.UNPLACED: SliceUnplaced,
}
#: Slices or tenants per piece of an answer: 2 ms.
_PIECE = 200


async def status_message(
    report: StatusReport,
    expectations: Mapping[str, Expectation] = MappingProxyType({}),
    executors: ExecutorDirectory | None = None,
) -> pb.GetStatusResponse:
    """Creates the answer of `GetStatus`, in pieces between which other tasks run."""
    known = executors or ExecutorDirectory(enabled=False)
    message = pb.GetStatusResponse(
        state=report.state,
        types=report.types,
        queue=[
            pb.QueueEntry(
                tenant=entry.tenant,
                position=entry.position,
                wants=entry.wants,
                reason=entry.reason,
                waiting_s=entry.waiting_s,
                expected_wait_s=_wait_of(expectations.get(entry.tenant)),
            )
            for entry in report.queue
        ],
        spares=report.spares,
        since=rfc3339(report.since),
        pid=os.getpid(),
        reservations=map(reservation_message, report.reservations),
        runs_executors=known.enabled,
    )
    for start in range(0, len(report.slices), _PIECE):
        for entry in report.slices[start : start + _PIECE]:
            message.slices.append(_slice(entry, known))
        await asyncio.sleep(0)
    for start in range(0, len(report.tenants), _PIECE):
        message.tenants.extend(map(_tenant, report.tenants[start : start + _PIECE]))
        await asyncio.sleep(0)
    return message


def reservation_message(one: ReservationStatus) -> pb.ReservationStatus:
    """Creates the message of a reservation."""
    about = one.reservation
    return pb.ReservationStatus(
        name=about.name,
        instance_type=about.instance_type,
        count=about.count,
        user=about.user,
        team=about.team,
        starts=about.starts,
        ends=about.ends,
        held=one.held,
    )


def snapshot_events(report: StatusReport) -> Iterator[Event]:
    """Yields the events that lead to the reported state."""
    if report.state == "recovering":
        yield ManagerRecovering(tenants=len(report.tenants))
    ready = collections.Counter(
        entry.instance_type for entry in report.slices if entry.state is SliceState.READY
    )
    for entry in report.slices:
        yield SLICE_EVENTS[entry.state](
            slice=entry.id, instance_type=entry.instance_type, ready=ready[entry.instance_type]
        )
    for tenant in report.tenants:
        yield from _tenant_events(tenant)
    for waiting in report.queue:
        yield TenantQueued(
            tenant=waiting.tenant,
            reason=waiting.reason,
            position=waiting.position,
            holders=tuple(waiting.holders),
        )


def _tenant_events(tenant: TenantStatus) -> Iterator[Event]:
    for virtual in tenant.slices:
        change = _PLACEMENT_EVENTS.get(virtual.state)
        if change is SlicePlaced:
            change = partial(SlicePlaced, starting=virtual.starting)
        if change is not None:
            yield change(
                tenant=tenant.name,
                slice=virtual.slice_id or None,
                virtual_index=virtual.index,
                slice_id=virtual.slice_id,
                generation=virtual.generation,
                instance_type=virtual.instance_type,
            )
    if tenant.state is TenantState.RUNNING:
        placed = sum(v.state is VirtualSliceState.PLACED for v in tenant.slices)
        yield TenantRunning(tenant=tenant.name, placed=placed, wanted=len(tenant.slices))
    if tenant.preempting_by:
        yield TenantPreempting(
            tenant=tenant.name, reason=tenant.preempting_by, grace_s=tenant.preempting_s
        )
    if tenant.idle_release_s is not None:
        yield TenantIdling(
            tenant=tenant.name, idle_s=tenant.idle_s, release_s=tenant.idle_release_s
        )
    if tenant.state is TenantState.IDLE:
        yield TenantIdled(tenant=tenant.name)
    if tenant.state is TenantState.PREEMPTED:
        yield TenantPreempted(tenant=tenant.name)
    if not tenant.connected:
        yield TenantDisconnected(tenant=tenant.name)


def _wait_of(expectation: Expectation | None) -> float | None:
    return None if expectation is None else expectation.wait_s


def _slice(entry: SliceStatus, executors: ExecutorDirectory) -> pb.SliceStatus:
    return pb.SliceStatus(
        id=entry.id,
        instance_type=entry.instance_type,
        state=entry.state,
        tenant=entry.tenant,
        virtual_index=entry.virtual_index,
        since=rfc3339(entry.since),
        node_pool=entry.node_pool,
        generation=entry.generation,
        held_since="" if entry.held_since is None else rfc3339(entry.held_since),
        workers=[
            pb.WorkerStatus(
                host_index=worker.host_index,
                host=worker.host,
                pid=worker.pid,
                address=worker.address,
                incarnation=worker.incarnation,
                executor=executors.status(entry.id, worker),
            )
            for worker in entry.workers
        ],
        kept_for=entry.kept_for,
    )


def _tenant(tenant: TenantStatus) -> pb.TenantStatus:
    return pb.TenantStatus(
        name=tenant.name,
        user=tenant.user,
        host=tenant.host,
        team=tenant.team,
        priority=tenant.priority,
        state=tenant.state,
        slices=[
            pb.VirtualSliceStatus(
                index=virtual.index,
                instance_type=virtual.instance_type,
                state=virtual.state,
                slice_id=virtual.slice_id,
                generation=virtual.generation,
            )
            for virtual in tenant.slices
        ],
        since=rfc3339(tenant.since),
        connected=tenant.connected,
        pid=tenant.pid,
        preempting_by=tenant.preempting_by,
        preempting_s=tenant.preempting_s,
        preemptor=tenant.preemptor,
        preempting_at="" if tenant.preempting_at is None else rfc3339(tenant.preempting_at),
        idle_s=tenant.idle_s,
        idle_release_s=tenant.idle_release_s,
        ends="" if tenant.ends_at is None else rfc3339(tenant.ends_at),
    )
