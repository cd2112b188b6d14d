"""The records of the ledger: worker, slice, notice, tenant, and pool of one type.

They hold data and answer questions about it; only the ledger changes them.
"""

from __future__ import annotations

import bisect
import dataclasses
import re

from shared_pathways_service.api.tenant_requests import TenantRequest
from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.scheduling.book.lines import Entry, Line
from shared_pathways_service.scheduling.book.pool_text import PoolText
from shared_pathways_service.scheduling.book.reserved import Reserved
from shared_pathways_service.scheduling.book.states import SliceMark, SliceState, TenantState

__all__ = ["BARRED", "NOTICE_DELIVERY_S", "Notice", "Pool", "Slice", "Tenant", "Worker"]

#: Seconds that a repeated notice leaves at least, as the first one may not have been received.
NOTICE_DELIVERY_S = 5.0

#: States of slices that an operator has taken out of service.
BARRED = frozenset({SliceState.CORDONED, SliceState.DRAINING})


def _sort_key(name: str) -> str:
    """Returns a text that sorts a name by its numbers' values: slice-2 before slice-10.

    A heap of free slices compares texts several times as fast as tuples of texts and numbers.
    """
    text, *rest = re.split(r"([0-9]+)", name)
    numbers = (number.lstrip("0") or "0" for number in rest[::2])
    # A NUL ends each text. The number after it is led by its length, so a longer one comes later.
    values = [
        f"\0{chr(len(one))}{one}{after}" for one, after in zip(numbers, rest[1::2], strict=True)
    ]
    return f"{text}{''.join(values)}\0\0{name}"


@dataclasses.dataclass(eq=False, slots=True)
class Worker:
    """One worker process that has joined."""

    slice: Slice
    host_index: int
    incarnation: str
    address: str
    host: str
    node_pool: str
    pid: int
    beat_at: float
    alive: bool = True
    #: The generation that it is assigned (0: no executor), and that of its executor that serves.
    assigned: int | None = None
    serves: int = 0


@dataclasses.dataclass(eq=False, slots=True)
class Slice:
    """One physical slice.

    Attributes:
      workers: One per host; None where no worker has joined.
      tenant: The tenant that holds it.
      index: The holder's virtual index.
      generation: The generation of its present or last placement; 0 before the first.
      since: When `state`, or the holder, last changed.
      relied_on: The incarnations of its workers that the holder relies on, one per host; empty
        without a holder, or when they are not known.
      granted: Whether this run of the resource manager has placed a tenant on it.
      void_until: Claims with generations up to this are invalid: the slice was lost since, or its
        workers are younger.
      kept_for: While it has no holder, the waiting tenant that it is promised to, or the slice that
        is drained onto it.
      mark: An operator's mark; empty: none.
      onto: While it is drained: the slice that its holder is moved to.
      moves_at: While it is drained: when its holder is moved.
      in_heap: Whether the pool's heap of free slices has an entry of it, valid or outdated.
      held_since: When the holder got it, also before a restart.
      failed_for: The last tenant whose executors here ended by themselves, or were not reached.
      failed_at: When.
    """

    id: str
    pool: Pool
    since: float
    workers: list[Worker | None]
    state: SliceState = SliceState.STARTING
    tenant: Tenant | None = None
    index: int = -1
    generation: int = 0
    relied_on: tuple[str, ...] = ()
    granted: bool = False
    void_until: float = 0
    kept_for: Tenant | Slice | None = None
    mark: SliceMark = SliceMark.NONE
    onto: Slice | None = None
    moves_at: float | None = None
    in_heap: bool = False
    held_since: float = 0.0
    failed_for: Tenant | None = None
    failed_at: float = 0.0
    sort_key: str = ""

    def __post_init__(self) -> None:
        self.sort_key = _sort_key(self.id)

    def note_failure(self, now: float) -> None:
        """Notes that the executors of its present holder failed here."""
        self.failed_for, self.failed_at = self.tenant, now

    @property
    def free(self) -> bool:
        """Whether it can be granted."""
        return self.tenant is None and self.state is SliceState.READY and self.kept_for is None

    @property
    def is_withdrawn(self) -> bool:
        """Whether an operator took it out of service and no tenant holds it."""
        return self.mark is not SliceMark.NONE and self.tenant is None

    @property
    def complete(self) -> bool:
        """Whether the workers of all its hosts have joined."""
        return None not in self.workers

    @property
    def incarnations(self) -> tuple[str, ...]:
        """The incarnations of its workers, one per host; empty unless all have joined."""
        known = tuple([worker.incarnation for worker in self.workers if worker])
        return known if len(known) == len(self.workers) else ()

    @property
    def state_when_complete(self) -> SliceState:
        """Its state once all its workers have joined."""
        if self.mark is SliceMark.NONE:
            return SliceState.READY
        drained = self.mark is SliceMark.DRAINING and self.tenant is not None
        return SliceState.DRAINING if drained else SliceState.CORDONED

    @property
    def empty(self) -> bool:
        """Whether none of its workers has joined."""
        return not any(self.workers)


@dataclasses.dataclass(eq=False, slots=True)
class Notice:
    """A preemption notice: a running tenant's slices will be taken.

    Attributes:
      by: The name of the preemptor, which gets the slices.
      said: The label of the preemptor in the notice.
      ends_at: When the slices are taken at the earliest.
      heir: The waiting tenant that gets the freed slices as long as it has a promise; None: not
        known yet after a restart.
      is_due: Whether they are being taken.
    """

    by: str
    said: str
    ends_at: float
    heir: Tenant | None = None
    is_due: bool = False


@dataclasses.dataclass(eq=False, slots=True)
class Tenant:
    """One tenant, from its request until it is gone.

    Attributes:
      pools: One per virtual slice.
      wants: Number of virtual slices by pool.
      order: Arrival number.
      placed: Virtual index to physical slice.
      lost: Virtual indices that were placed once and are not now.
      ttl_at: While its stream is broken: when its time to live ends.
      last_place: The last queue message that it was sent: position, reason, holders.
      warned: Warnings that its proxy was sent and that were not withdrawn: the virtual indices to
        be taken (empty: all), by the label in the warning.
      was_notified_running: Whether it was notified over its present stream that it may compute.
      persisted: Whether it is on the disk.
      was_queued: Whether its wait is in the history.
      waits_since: When its present or last wait began: with its request, or its preemption.
      name: As in its request.
      gang: Placed slices that it needs to start.
      label: Its label for other tenants: user@host.
      wanted: Its request, e.g. ``tpuv6e:2x2=2,tpuv5e:2x2=1``.
      ends_at: When its stated lifetime is over; None: it stated none.
      preempted: Whether it waits because it was preempted, and ran before.
      notice: The preemption notice that it is under; None: it is under none.
      has_promise: Whether it waits for slices reserved for it, or that its victims must leave.
      promised: Slices without a holder that are reserved for it, by pool.
      idled: Whether its slices were taken back because it was idle, and it has not run since.
      parked: While it is parked (waits in no line): its count of activity at that time.
      rank: Sorts tenants as the queue does: the smallest is served first.
    """

    request: TenantRequest
    incarnation: str
    pid: int
    pools: tuple[Pool, ...]
    wants: dict[Pool, int]
    order: int
    asked_at: float
    since: float
    ends_at: float | None = None
    running: bool = False
    placed: dict[int, Slice] = dataclasses.field(default_factory=dict)
    lost: set[int] = dataclasses.field(default_factory=set)
    connected: bool = False
    ttl_at: float | None = None
    last_place: tuple[int, str, tuple[str, ...]] | None = None
    warned: dict[tuple[int, ...], str] = dataclasses.field(default_factory=dict)
    was_notified_running: bool = False
    persisted: bool = False
    was_queued: bool = False
    waits_since: float = 0.0
    gone: bool = False
    preempted: bool = False
    notice: Notice | None = None
    has_promise: bool = False
    promised: dict[Pool, list[Slice]] = dataclasses.field(default_factory=dict)
    idled: bool = False
    parked: int | None = None
    rank: tuple[float, int] = (0.0, 0)
    name: str = dataclasses.field(init=False)
    gang: int = dataclasses.field(init=False)
    label: str = dataclasses.field(init=False)
    wanted: str = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        request = self.request
        self.name, self.gang = request.name, request.gang
        who = request.user or request.name
        self.label = f"{who}@{request.host}" if request.host else who
        self.wanted = ",".join([f"{pool.name}={count}" for pool, count in self.wants.items()])

    @property
    def is_queued(self) -> bool:
        """Whether it waits for slices."""
        return not self.running and self.parked is None

    @property
    def state(self) -> TenantState:
        """Its state, as shown to people."""
        if self.running:
            return TenantState.RUNNING
        if self.parked is not None:
            return TenantState.IDLE
        return TenantState.PREEMPTED if self.preempted else TenantState.WAITING

    @property
    def has_run(self) -> bool:
        """Whether it ran before and waits again, which it does without a timeout."""
        return self.preempted or self.idled


@dataclasses.dataclass(eq=False, slots=True)
class Pool:
    """The slices of one instance type, and the tenants that wait for them.

    Attributes:
      count: Configured slices, spares included.
      hosts: Hosts per slice.
      free_heap: Free slices, the first in the order of their names first; entries may be outdated.
      free: Free slices.
      ready: Ready slices, held or not.
      held: Slices that a tenant holds, whatever their state.
      repairs: Lost virtual slices of running tenants; served first, also from spares.
      fills: Elastic virtual slices of running tenants that were never placed.
      waiting: Tenants whose gang wants slices of this type.
      planned: Those of them that have a promise.
      barred: Slices that are cordoned or draining.
      draining: Slices that are draining.
      marked: Slices with an operator's mark, held or not, in whatever state.
      withdrawn: Slices without a holder that are, or will be once their workers return, cordoned.
      drains: Draining slices whose holder has no slice to move to.
      reserved: The reservations of this type; None: none.
      holders: The labels of the holders of slices of this type, in the order of their arrival.
      text: Its description for waiting tenants, until something changes.
    """

    kind: InstanceType
    name: str
    count: int
    spares: int
    slices: dict[str, Slice] = dataclasses.field(default_factory=dict)
    free_heap: list[tuple[str, Slice]] = dataclasses.field(default_factory=list)
    free: int = 0
    ready: int = 0
    held: int = 0
    repairs: Line[Tenant] = dataclasses.field(default_factory=Line)
    fills: Line[Tenant] = dataclasses.field(default_factory=Line)
    waiting: Line[Tenant] = dataclasses.field(default_factory=Line)
    planned: Line[Tenant] = dataclasses.field(default_factory=Line)
    barred: int = 0
    draining: int = 0
    marked: int = 0
    withdrawn: int = 0
    drains: dict[Slice, None] = dataclasses.field(default_factory=dict)
    holders: dict[Tenant, int] = dataclasses.field(default_factory=dict)
    reserved: Reserved[Tenant] | None = None
    text: PoolText | None = None
    hosts: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.hosts = self.kind.hosts

    def first_open(self) -> Entry[Tenant] | None:
        """Returns the first entry of the line whose tenant has no promise."""
        waiting, planned = self.waiting.entries, self.planned.entries
        if not planned:  # called at every event, and nearly always true
            return waiting[0] if waiting else None
        many = len(planned)
        if waiting[many - 1] != planned[-1]:
            # Both lines begin with the same entries; the result is where they begin to differ.
            many = bisect.bisect_left(
                range(many), True, key=lambda place: waiting[place] != planned[place]
            )
        return waiting[many] if many < len(waiting) else None

    @property
    def grantable(self) -> int:
        """Free slices that a new request, or an elastic slice, may take."""
        # Called several times at every event: `spares_kept` and max() would double its cost.
        kept = self.spares - self.withdrawn
        beyond = self.free - kept if kept > 0 else self.free
        return beyond if beyond > 0 else 0  # noqa: FURB136

    def room_for(self, tenant: Tenant) -> int:
        """Returns how many free slices a tenant may take, were it first in line."""
        return self.grantable if self.reserved is None else self.reserved.room_for(tenant)

    def most_for(self, tenant: Tenant) -> int:
        """Returns how many slices a tenant may have if all other holders left."""
        return self.usable if self.reserved is None else self.reserved.most_for(tenant)

    @property
    def spares_kept(self) -> int:
        """Withheld spares: all spares but those that stand in for withdrawn slices.

        A spare stands in for any slice that is out of service. So `usable` slices are available
        while one is cordoned, too.
        """
        kept = self.spares - self.withdrawn
        return kept if kept > 0 else 0  # noqa: FURB136 - called at every event, as `grantable` is

    @property
    def in_service(self) -> int:
        """The slices that a request may have once no other tenant holds or awaits any.

        So many as long as no slice becomes ready or is lost, and none is cordoned or uncordoned.
        """
        return max(0, self.ready - self.spares_beside_marked)

    @property
    def spares_beside_marked(self) -> int:
        """Slices to keep free while no tenant holds any: the spares, less the marked slices."""
        return max(0, self.spares - self.marked)

    @property
    def usable(self) -> int:
        """The most slices that a request may ask for."""
        return max(0, self.count - self.spares)
