"""The records that the ledger keeps: worker, slice, tenant, pool of one type, sorted line.

They hold data and answer questions about it; only the ledger changes them.
"""

from __future__ import annotations

import bisect
import dataclasses
import re

from shared_pathways_service.core.rm.messages import SliceState
from shared_pathways_service.core.topology import InstanceType

__all__ = ["Line", "Pool", "Slice", "Tenant", "Words", "Worker"]


@dataclasses.dataclass(eq=False, slots=True)
class Worker:
    """One worker process that is in."""

    slice: Slice
    host_index: int
    incarnation: str
    address: str
    host: str
    node_pool: str
    pid: int
    beat_at: float
    alive: bool = True


@dataclasses.dataclass(eq=False, slots=True)
class Slice:
    """One physical slice.

    Attributes:
      workers: One place a host; None where no worker is in.
      tenant: Who holds it.
      index: The holder's virtual index.
      generation: Of the placement that holds it, or of the last one; 0 before the first.
      since: When `state`, or the holder, last changed.
      relied_on: The incarnations of its workers that the holder relies on, one a host; empty when
        nobody holds it, or when they are not known.
      void_until: No placement of a generation up to this is on it, whoever claims it: it was lost
        since, or its workers are younger.
      in_heap: Whether the pool's heap of free slices has an entry of it, true or outdated.
      held_since: When the holder got it, also before a restart.
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
    void_until: float = 0
    in_heap: bool = False
    held_since: float = 0.0
    sort_key: tuple[object, ...] = ()

    def __post_init__(self) -> None:
        # slice-2 before slice-10: text and numbers alternate, so that like is compared to like.
        parts = re.split(r"([0-9]+)", self.id)
        natural = tuple(int(part) if i % 2 else part for i, part in enumerate(parts))
        self.sort_key = (natural, self.id)

    @property
    def free(self) -> bool:
        """Whether it could be granted."""
        return self.tenant is None and self.state is SliceState.READY

    @property
    def complete(self) -> bool:
        """Whether the workers of all its hosts are in."""
        return None not in self.workers

    @property
    def empty(self) -> bool:
        """Whether no worker of it is in."""
        return not any(self.workers)


@dataclasses.dataclass(eq=False, slots=True)
class Tenant:
    """One tenant, from its request until it is gone.

    Attributes:
      pools: One a virtual slice.
      wants: Virtual slices by pool.
      needed: Placed slices that the gang needs to start.
      order: Arrival number.
      placed: Virtual index to physical slice.
      lost: Virtual indices that were placed once and are not now.
      ttl_at: While its stream is broken: when it is given up.
      told: What it last heard of its place in the queue: position, reason, holders.
      heard_running: Whether its proxy, over the stream that it has now, heard that it may compute.
      persisted: Whether the disk knows it.
      was_queued: Whether the history has that it waits.
      label: How other tenants are told of this one: user@host.
      rank: Sorts tenants as the queue does: the smallest is served first.
    """

    name: str
    incarnation: str
    kinds: tuple[InstanceType, ...]
    pools: tuple[Pool, ...]
    wants: dict[Pool, int]
    needed: int
    priority: int
    queue_timeout: float | None
    user: str
    team: str
    host: str
    pid: int
    order: int
    asked_at: float
    since: float
    running: bool = False
    placed: dict[int, Slice] = dataclasses.field(default_factory=dict)
    lost: set[int] = dataclasses.field(default_factory=set)
    connected: bool = False
    ttl_at: float | None = None
    told: tuple[int, str, tuple[str, ...]] | None = None
    heard_running: bool = False
    persisted: bool = False
    was_queued: bool = False
    gone: bool = False
    rank: tuple[int, int] = dataclasses.field(init=False)
    label: str = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.rank = (-self.priority, self.order)
        who = self.user or self.name
        self.label = f"{who}@{self.host}" if self.host else who

    @property
    def wanted(self) -> str:
        """What it asked for, e.g. ``tpuv6e:2x2=2,tpuv5e:2x2=1``."""
        return ",".join(f"{pool.name}={count}" for pool, count in self.wants.items())


#: Rank of a tenant, a virtual index (-1: the whole gang), and the tenant.
Entry = tuple[int, int, int, Tenant]


class Line:
    """Entries sorted by rank, then virtual index. No two share both, so tenants never compare."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: list[Entry] = []

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def entries(self) -> list[Entry]:
        """All of them, first served first; to be read only."""
        return self._entries

    def first(self) -> Entry | None:
        """Returns who is served next."""
        return self._entries[0] if self._entries else None

    def add(self, tenant: Tenant, index: int = -1) -> None:
        """Puts an entry in its place."""
        bisect.insort(self._entries, (*tenant.rank, index, tenant))

    def remove(self, tenant: Tenant, index: int = -1) -> None:
        """Takes out an entry that is there."""
        del self._entries[self.ahead_of(tenant, index)]

    def ahead_of(self, tenant: Tenant, index: int = -1) -> int:
        """Returns how many entries come before this one."""
        key = (*tenant.rank, index)
        # A shorter tuple sorts before a longer one that begins with it.
        return bisect.bisect_left(self._entries, key)


@dataclasses.dataclass(frozen=True, slots=True)
class Words:
    """What is said of a pool.

    Attributes:
      free: Goes behind the number wanted.
      holders: Who holds its slices.
    """

    free: str
    holders: tuple[str, ...]


@dataclasses.dataclass(eq=False, slots=True)
class Pool:
    """The slices of one instance type, and who waits for them.

    Attributes:
      count: Slices that there should be, spares included.
      free_heap: Free slices, the first in the order of their names first; entries may be outdated.
      free: Slices that are free.
      ready: Slices that are ready, held or not.
      held: Slices that a tenant holds, whatever their state.
      repairs: Virtual slices of running tenants that were lost; served first, from spares too.
      fills: Elastic virtual slices of running tenants that were never placed.
      waiting: Tenants whose gang wants slices of this type.
      holders: Who holds slices of this type, as others are told, in the order they came.
      words: What the speaker says of it to all who wait, until something changes.
      told_at: When the line was last told of changes.
      retell_at: When it is told of changes since; None: there are none.
    """

    kind: InstanceType
    name: str
    count: int
    spares: int
    slices: dict[str, Slice] = dataclasses.field(default_factory=dict)
    free_heap: list[tuple[tuple[object, ...], Slice]] = dataclasses.field(default_factory=list)
    free: int = 0
    ready: int = 0
    held: int = 0
    repairs: Line = dataclasses.field(default_factory=Line)
    fills: Line = dataclasses.field(default_factory=Line)
    waiting: Line = dataclasses.field(default_factory=Line)
    holders: dict[Tenant, int] = dataclasses.field(default_factory=dict)
    words: Words | None = None
    told_at: float = float("-inf")
    retell_at: float | None = None

    @property
    def grantable(self) -> int:
        """Free slices that a new request, or an elastic slice, may take."""
        beyond = self.free - self.spares
        return beyond if beyond > 0 else 0  # noqa: FURB136 - asked at every event; max() is slower

    @property
    def usable(self) -> int:
        """Slices that a request may ask for at most."""
        return max(0, self.count - self.spares)
