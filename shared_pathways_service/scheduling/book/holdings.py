"""The status of slices, tenants, queue and reservations, as the status call reports it.

(Classes with thousands of instances are not frozen: that would make them take 50% longer to create,
and the resource manager is blocked while it describes all of them.)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping

from shared_pathways_service.scheduling.book.ledger import Ledger
from shared_pathways_service.scheduling.book.records import Pool, Slice, Tenant
from shared_pathways_service.scheduling.book.reserved import Reservation
from shared_pathways_service.scheduling.book.states import (
    SliceState,
    TenantState,
    VirtualSliceState,
)
from shared_pathways_service.scheduling.book.wait_reasons import holders_of, position_of

__all__ = [
    "IdleStatus",
    "QueueEntry",
    "ReservationStatus",
    "SliceStatus",
    "StatusReport",
    "TenantStatus",
    "VirtualSliceStatus",
    "WorkerStatus",
    "executors_serve",
    "report",
    "reservations",
    "slice_status",
]


@dataclasses.dataclass(kw_only=True, slots=True)
class WorkerStatus:
    """A worker that has joined.

    Attributes:
      executor_generation: The placement that it runs an executor for; 0: none.
    """

    host_index: int
    host: str
    pid: int
    address: str
    incarnation: str
    executor_generation: int = 0


@dataclasses.dataclass(kw_only=True, slots=True)
class SliceStatus:
    """A physical slice.

    Attributes:
      tenant: The name of its holder; empty: none.
      virtual_index: The index of the holder's virtual slice; None: no holder.
      since: When its state or its holder last changed, by the core's clock.
      generation: The generation of its placement; 0: no holder.
      kept_for: A waiting tenant that it is reserved for, or a slice that is drained onto it; empty:
        neither.
      onto: While it is drained: the slice that its holder is moved to; empty: none.
      moves_in_s: The seconds until that move.
      held_since: When the holder got it, also before a restart; None: no holder.
    """

    id: str
    instance_type: str
    state: SliceState
    tenant: str
    virtual_index: int | None
    since: float
    node_pool: str
    generation: int
    workers: tuple[WorkerStatus, ...]
    kept_for: str = ""
    onto: str = ""
    moves_in_s: float = 0.0
    held_since: float | None = None


@dataclasses.dataclass(kw_only=True, slots=True)
class VirtualSliceStatus:
    """A virtual slice; without a placement, `slice_id` is empty and `generation` 0.

    Attributes:
      starting: Whether its executors do not all serve yet; None: unknown, as after a restart.
    """

    index: int
    instance_type: str
    state: VirtualSliceState
    slice_id: str
    generation: int
    starting: bool | None = None


@dataclasses.dataclass(kw_only=True, slots=True)
class IdleStatus:
    """How idle a tenant is.

    Attributes:
      idle_s: Seconds since it was last at work.
      release_s: While it is warned: the seconds until its slices are taken back.
    """

    idle_s: float
    release_s: float | None


@dataclasses.dataclass(kw_only=True, slots=True)
class TenantStatus:
    """A tenant.

    Attributes:
      since: When it began to wait, or to run.
      preempting_by: While it is under notice: the preemptor, for people; empty: no notice.
      preempting_s: The seconds until the preemption.
      preempting_at: When it is, by the core's clock; None: no notice.
      preemptor: The name of the preemptor; empty: no notice.
      ends_at: When its stated lifetime is over, by the core's clock; None: it stated none.
      idle_s: Seconds since it was last at work; None: it does not run, or does not report it.
      idle_release_s: While it is warned: the seconds until its slices are taken back.
      free: By instance type of the slices that it waits for: how many it could take now, were it
        first in line.
    """

    name: str
    incarnation: str
    user: str
    host: str
    team: str
    priority: int
    state: TenantState
    slices: tuple[VirtualSliceStatus, ...]
    since: float
    connected: bool
    pid: int
    preempting_by: str = ""
    preempting_s: float = 0.0
    preempting_at: float | None = None
    preemptor: str = ""
    ends_at: float | None = None
    idle_s: float | None = None
    idle_release_s: float | None = None
    free: Mapping[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class QueueEntry:
    """A tenant that waits.

    Attributes:
      position: From 1: the farthest back of its places in the lines of its types.
      holders: The holders of slices of these types, as sent to the tenant.
    """

    tenant: str
    position: int
    wants: Mapping[str, int]
    reason: str
    holders: tuple[str, ...]
    waiting_s: float


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ReservationStatus:
    """A reservation.

    Attributes:
      reservation: The reservation.
      held: How many of its slices the owner holds; 0 before its start.
    """

    reservation: Reservation
    held: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StatusReport:
    """The status of the whole service.

    Attributes:
      state: ``serving`` or ``recovering``.
      queue: In the order of priority, then arrival.
      spares: Configured spares by type.
      spares_kept: How many of those are withheld, by type: a cordoned slice without a holder counts
        as one of the spares.
      since: When the core was started, by its clock.
      reservations: In the order of their starts.
    """

    state: str
    types: tuple[str, ...]
    slices: tuple[SliceStatus, ...]
    tenants: tuple[TenantStatus, ...]
    queue: tuple[QueueEntry, ...]
    spares: int
    spares_kept: Mapping[str, int]
    since: float
    reservations: tuple[ReservationStatus, ...] = ()


def report(
    ledger: Ledger,
    *,
    state: str,
    since: float,
    spares: int,
    reason_of: Callable[[Tenant], str],
    idle_of: Callable[[Tenant, float], IdleStatus | None],
    now: float,
    only: str = "",
) -> StatusReport:
    """Describes a ledger; or, if `only` names a tenant, only that tenant and no slices.

    (Each connection requests the status of its tenant; that of a large service takes long.)
    """
    tenants = list(ledger.tenants.values())
    slices: list[Slice] = []
    if only:
        tenants = [tenant for tenant in (ledger.tenants.get(only),) if tenant is not None]
    else:
        slices = sorted(ledger.slices.values(), key=lambda s: (s.pool.kind, s.sort_key))
    waiting = sorted((tenant for tenant in tenants if tenant.is_queued), key=lambda t: t.rank)
    return StatusReport(
        state=state,
        types=tuple(pool.name for pool in ledger.pools.values()),
        slices=tuple(slice_status(one, now) for one in slices),
        tenants=tuple(_tenant(ledger, tenant, idle_of(tenant, now), now) for tenant in tenants),
        queue=tuple(_queue_entry(tenant, reason_of(tenant), now) for tenant in waiting),
        spares=spares,
        spares_kept={pool.name: pool.spares_kept for pool in ledger.pools.values()},
        since=since,
        reservations=reservations(ledger),
    )


def reservations(ledger: Ledger) -> tuple[ReservationStatus, ...]:
    """Describes the reservations, by start time."""
    found = [
        ReservationStatus(reservation=one, held=pool.reserved.held(one))
        for pool in ledger.pools.values()
        if pool.reserved is not None
        for one in pool.reserved.entries
    ]
    return tuple(sorted(found, key=lambda one: (one.reservation.starts, one.reservation.name)))


def slice_status(about: Slice, now: float) -> SliceStatus:
    """Describes one slice."""
    workers = [worker for worker in about.workers if worker is not None]
    held = about.tenant is not None
    return SliceStatus(
        id=about.id,
        instance_type=about.pool.name,
        state=about.state,
        tenant=about.tenant.name if about.tenant else "",
        virtual_index=about.index if held else None,
        since=about.since,
        node_pool=workers[0].node_pool if workers else "",
        generation=about.generation if held else 0,
        kept_for=_name(about.kept_for),
        onto=_name(about.onto),
        moves_in_s=max(0.0, about.moves_at - now) if about.moves_at is not None else 0.0,
        held_since=about.held_since if held else None,
        workers=tuple(
            WorkerStatus(
                host_index=worker.host_index,
                host=worker.host,
                pid=worker.pid,
                address=worker.address,
                incarnation=worker.incarnation,
                executor_generation=worker.assigned or 0,
            )
            for worker in workers
        ),
    )


def _tenant(ledger: Ledger, about: Tenant, idle: IdleStatus | None, now: float) -> TenantStatus:
    notice = about.notice
    return TenantStatus(
        name=about.name,
        incarnation=about.incarnation,
        user=about.request.user,
        host=about.request.host,
        team=about.request.team,
        priority=about.request.priority,
        state=about.state,
        slices=tuple(_virtual_slice(ledger, about, index) for index in range(len(about.pools))),
        since=about.since if about.running else about.waits_since,
        connected=about.connected,
        pid=about.pid,
        preempting_by=notice.said if notice else "",
        preempting_s=max(0.0, notice.ends_at - now) if notice else 0.0,
        preempting_at=notice.ends_at if notice else None,
        preemptor=notice.by if notice else "",
        ends_at=about.ends_at,
        idle_s=None if idle is None else idle.idle_s,
        idle_release_s=None if idle is None else idle.release_s,
        free={pool.name: pool.room_for(about) for pool in _missing(about)},
    )


def _missing(tenant: Tenant) -> Collection[Pool]:
    """Returns the pools of which a tenant waits for slices."""
    if len(tenant.placed) == len(tenant.pools) or tenant.state is TenantState.IDLE:
        return ()  # nearly always so
    return {pool: None for index, pool in enumerate(tenant.pools) if index not in tenant.placed}


def _name(owner: Tenant | Slice | None) -> str:
    if isinstance(owner, Slice):
        return owner.id
    return owner.name if owner else ""


def _virtual_slice(ledger: Ledger, tenant: Tenant, index: int) -> VirtualSliceStatus:
    held = tenant.placed.get(index)
    if held is not None:
        state = VirtualSliceState.PLACED
    else:
        state = VirtualSliceState.QUEUED if tenant.is_queued else VirtualSliceState.UNPLACED
    return VirtualSliceStatus(
        index=index,
        instance_type=tenant.pools[index].name,
        state=state,
        slice_id=held.id if held else "",
        generation=held.generation if held else 0,
        starting=_is_starting(ledger, held) if held and ledger.has_executors else None,
    )


def _is_starting(ledger: Ledger, held: Slice) -> bool | None:
    if held not in ledger.starting or executors_serve(held):
        return False
    return True if ledger.knows_starting else None


def executors_serve(held: Slice) -> bool:
    """Returns whether the executors of a placement all serve."""
    return all(worker and worker.serves == held.generation for worker in held.workers)


def _queue_entry(tenant: Tenant, reason: str, now: float) -> QueueEntry:
    return QueueEntry(
        tenant=tenant.name,
        position=position_of(tenant),
        wants={pool.name: count for pool, count in tenant.wants.items()},
        reason=reason,
        holders=holders_of(tenant.wants),
        waiting_s=max(0.0, now - tenant.waits_since),
    )
