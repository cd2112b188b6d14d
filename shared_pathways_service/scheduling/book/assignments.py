"""Assigns slices to tenants: the slices, placements and reserved slices of the book."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.events.recorded_decisions import DecisionKind
from shared_pathways_service.scheduling.book.changes import (
    LifetimeHoldingChanged,
    PromisedSliceLost,
    ShelterChanged,
)
from shared_pathways_service.scheduling.book.config import RmConfig
from shared_pathways_service.scheduling.book.journal import Journal
from shared_pathways_service.scheduling.book.publisher import Publisher
from shared_pathways_service.scheduling.book.records import (
    BARRED,
    Pool,
    Slice,
    Tenant,
)
from shared_pathways_service.scheduling.book.states import SLICE_EVENTS, SliceMark, SliceState

__all__ = ["Assignments"]

#: The kind of decision that records a slice's transition to a state.
_COME_TO = {state: DecisionKind(event.kind) for state, event in SLICE_EVENTS.items()}


class Assignments(Journal):
    """Slices, placements, and slices reserved for a tenant or for a drained slice's holder.

    Attributes:
      pools: By instance type; types that only an older configuration had are missing.
      held_generations: The generations of all held slices; claims of thousands of proxies are
        checked against it.
      has_unplaced: Whether a placement ended since the last batch of messages.
      has_executors: Whether placements have executors.
      knows_starting: Whether executors of slices in `starting` are known not to serve: not during a
        recovery, when their workers may be yet to report.
      changes: Delivers what changes to its consumers.
    """

    def __init__(self, config: RmConfig, now: float) -> None:
        super().__init__(now)
        self.pools: dict[InstanceType, Pool] = {
            kind: Pool(kind=kind, name=str(kind), count=count, spares=config.spares)
            for kind, count in config.slices.items()
        }
        self.held_generations: set[int] = set()
        self.has_unplaced = False
        self.changes = Publisher(self.pools.values())
        self.has_executors = config.executors
        self.knows_starting = True
        #: Slices with another holder, or other workers, since they were last taken.
        self._changed_hosts: dict[Slice, None] = {}

    # ---- slices

    def add_slice(self, slice_id: str, pool: Pool) -> Slice:
        """Adds a new slice without workers."""
        found = Slice(id=slice_id, pool=pool, since=self.now, workers=[None] * pool.hosts)
        found.mark = self.marks.get(slice_id, SliceMark.NONE)
        pool.marked += found.mark is not SliceMark.NONE
        self._count_withdrawn(pool, +found.is_withdrawn)
        self.slices[slice_id] = pool.slices[slice_id] = found
        return found

    def remove_slice(self, gone: Slice) -> None:
        """Removes a slice that has no holder and no workers."""
        del self.slices[gone.id], (pool := gone.pool).slices[gone.id]
        # A slice that comes back by this name must not meet an outdated entry of itself.
        pool.free_heap = sorted(entry for entry in pool.free_heap if entry[1] is not gone)
        pool.marked -= gone.mark is not SliceMark.NONE
        self._count_withdrawn(pool, -gone.is_withdrawn)

    def set_state(self, changed: Slice, state: SliceState, reason: str = "") -> None:
        """Moves a slice to another state."""
        if changed.state is state:
            return
        was_free = changed.free
        changed.pool.ready += (state is SliceState.READY) - (changed.state is SliceState.READY)
        changed.pool.barred += (state in BARRED) - (changed.state in BARRED)
        draining = SliceState.DRAINING
        changed.pool.draining += (state is draining) - (changed.state is draining)
        changed.state = state
        changed.since = self.now
        self._touch(changed.pool)
        if changed.tenant is not None:
            self.holder_changed(changed.pool, changed.tenant)
        self._count_free(changed, was_free)
        self.decide_slice(changed, _COME_TO[state], reason)

    def enter(self, found: Slice) -> None:
        """Sets the state of a slice whose workers have all joined, according to its mark."""
        self.set_state(found, found.state_when_complete)
        if found.kept_for is not None and found.state is not SliceState.READY:
            self.keep_no_more(found)
        if found.state is SliceState.DRAINING and found.onto is None:
            found.pool.drains[found] = None
            self.changes.pool_opened(found.pool)

    def set_mark(self, marked: Slice, mark: SliceMark) -> None:
        """Sets an operator's mark on a slice."""
        was_withdrawn, was_marked = marked.is_withdrawn, marked.mark is not SliceMark.NONE
        marked.mark = mark
        marked.pool.marked += (mark is not SliceMark.NONE) - was_marked
        self._touch(marked.pool)
        self._count_withdrawn(marked.pool, marked.is_withdrawn - was_withdrawn)
        if mark is SliceMark.NONE:
            self.marks.pop(marked.id, None)
        else:
            self.marks[marked.id] = mark
        self.write_mark(marked)

    def hosts_changed(self, about: Slice) -> None:
        """Notes that a slice's holder, its workers, or their executors changed."""
        if self.has_executors:
            self._changed_hosts[about] = None

    def take_changed_hosts(self) -> tuple[Slice, ...]:
        """Returns the slices of `hosts_changed` since the last call."""
        taken = tuple(self._changed_hosts)
        self._changed_hosts.clear()
        return taken

    def void(self, about: Slice, until: float) -> None:
        """Invalidates claims for a slice with generations up to `until`."""
        about.void_until = max(about.void_until, until)

    def take_free(self, pool: Pool, tenant: Tenant) -> Slice:
        """Returns the free slice whose name comes first; the caller must place a tenant on it.

        Those on which the tenant's executors failed come last, the latest of them at the end.
        """
        passed: list[Slice] = []
        while len(passed) < pool.free:
            _, found = heapq.heappop(pool.free_heap)
            found.in_heap = False
            if found.free:
                passed.append(found)
                if found.failed_for is not tenant:
                    break
        else:
            found = min(passed, key=lambda one: one.failed_at)
        for other in passed:
            if other is not found:
                self._push_free(other)
        return found

    def _touch(self, pool: Pool) -> None:
        """Notes that the description of a pool is outdated."""
        pool.text = None
        self.changes.pool_changed(pool)

    def _count_free(self, changed: Slice, was_free: bool) -> None:
        free = changed.free
        if free == was_free:
            return
        pool = changed.pool
        pool.free += 1 if free else -1
        if free:
            self.changes.slices_freed(pool)
            self._push_free(changed)

    def _push_free(self, free: Slice) -> None:
        if not free.in_heap:
            free.in_heap = True
            heapq.heappush(free.pool.free_heap, (free.sort_key, free))

    def _count_withdrawn(self, pool: Pool, change: int) -> None:
        """Counts withdrawn slices, which change how many spares are withheld."""
        if change:
            pool.withdrawn += change
            self.changes.slices_freed(pool)
            self._touch(pool)

    # ---- placements

    def place(self, tenant: Tenant, index: int, onto: Slice) -> None:
        """Places a virtual slice on a free slice, with a new generation."""
        self.last_generation += 1
        again = index in tenant.lost
        onto.granted = True
        self.hold(tenant, index, onto, self.last_generation)
        self.decide_held(onto, DecisionKind.REPLACED if again else DecisionKind.PLACED)

    def hold(self, tenant: Tenant, index: int, onto: Slice, generation: int) -> None:
        """Places a virtual slice on a slice without a holder; the caller records the decision."""
        pool = onto.pool
        if onto.free:
            pool.free -= 1
        if onto.mark is not SliceMark.NONE:
            self._count_withdrawn(pool, -onto.is_withdrawn)
        onto.tenant, onto.index, onto.generation = tenant, index, generation
        self.held_generations.add(generation)
        onto.since = onto.held_since = self.now
        onto.relied_on = onto.incarnations
        if self.has_executors:
            self.starting.add(onto)
        self.hosts_changed(onto)
        pool.held += 1
        self._touch(pool)
        pool.holders[tenant] = pool.holders.get(tenant, 0) + 1
        self.holder_changed(pool, tenant)
        tenant.placed[index] = onto
        tenant.lost.discard(index)
        self.write(tenant)

    def rely(self, held: Slice) -> None:
        """Sets the workers that the holder of a slice relies on, if they were not known."""
        if held.tenant is not None and not held.relied_on:
            held.relied_on = held.incarnations
            self.write(held.tenant)

    def let_go(
        self, held: Slice, kind: str = DecisionKind.UNPLACED, reason: str = "", *, related: str = ""
    ) -> None:
        """Ends the placement of a virtual slice; `related` names the other tenant involved."""
        tenant, pool = held.tenant, held.pool
        assert tenant is not None
        self.decide_held(held, kind, reason, began=held.held_since, related=related)
        self.has_unplaced = True
        if held.mark is not SliceMark.NONE or held.moves_at is not None:
            self._end_move(held)
        del tenant.placed[held.index]
        held.tenant, held.index = None, -1
        self.held_generations.discard(held.generation)
        if held.mark is not SliceMark.NONE:
            self._count_withdrawn(pool, held.is_withdrawn)
        held.since = self.now
        held.relied_on = ()
        self.starting.discard(held)
        self.hosts_changed(held)
        pool.held -= 1
        self._touch(pool)
        pool.holders[tenant] -= 1
        if not pool.holders[tenant]:
            del pool.holders[tenant]
        self.holder_changed(pool, tenant)
        if held.state is SliceState.DRAINING:
            self.set_state(held, SliceState.CORDONED)
        if (notice := tenant.notice) is not None and notice.heir is not None:
            self._bequeath(held, notice.heir, is_due=notice.is_due)
        self._count_free(held, was_free=False)
        self.write(tenant)

    def _end_move(self, held: Slice) -> None:
        if held.onto is not None:
            self.keep_no_more(held.onto)
        held.pool.drains.pop(held, None)
        if held.moves_at is not None:
            held.moves_at = None
            self.write_mark(held)

    def set_moves_at(self, drained: Slice, when: float | None) -> None:
        """Sets when the holder of a drained slice is moved; None: it is not moved."""
        drained.moves_at = when
        self.write_mark(drained)

    def holder_changed(self, pool: Pool, tenant: Tenant) -> None:
        """Publishes that a tenant's slices of a pool, or its notice, changed."""
        if tenant.ends_at is not None:
            self.changes.publish(LifetimeHoldingChanged(pool, tenant))
        if pool.reserved is not None:
            pool.reserved.holders_changed()
            self.changes.publish(ShelterChanged(pool, tenant))
            self.changes.pool_opened(pool)
        self.changes.holding_changed(pool, tenant)

    # ---- reservations

    def reservations_changed(self, pool: Pool) -> None:
        """Notes that a pool's reservations changed."""
        if pool.reserved is not None:
            pool.reserved.holders_changed()
        self.changes.publish(ShelterChanged(pool, None))
        self._touch(pool)
        # (It may keep the holder of a slice of any type from being preempted.)
        for other in self.pools.values():
            other.text = None
        self.changes.slices_freed(pool)

    def open_pools(self, pools: Iterable[Pool]) -> None:
        """Has pools served again."""
        for pool in pools:
            self.changes.pool_opened(pool)

    # ---- promises

    def keep(self, free: Slice, owner: Tenant | Slice) -> None:
        """Reserves a free slice for a waiting tenant, or for the holder of a drained slice."""
        was_free = free.free
        free.kept_for = owner
        if isinstance(owner, Slice):
            owner.onto = free
        else:
            owner.promised.setdefault(free.pool, []).append(free)
        self._count_free(free, was_free)
        self._touch(free.pool)

    def keep_no_more(self, kept: Slice) -> None:
        """Undoes `keep`: the slice can be granted to any tenant again."""
        was_free = kept.free
        owner, kept.kept_for = kept.kept_for, None
        if isinstance(owner, Slice):
            owner.onto = None
            if owner.state is SliceState.DRAINING and owner.tenant is not None:
                owner.pool.drains[owner] = None
                self.changes.pool_opened(owner.pool)
        elif owner is not None:
            owner.promised[kept.pool].remove(kept)
            self.changes.publish(PromisedSliceLost(owner))
        self._count_free(kept, was_free)
        self._touch(kept.pool)

    def _bequeath(self, left: Slice, heir: Tenant, *, is_due: bool) -> None:
        """Reserves a victim's freed slice for its preemptor."""
        pool = left.pool
        # Running tenants that lost a slice come first, unless the preemption is being carried out.
        if not heir.has_promise or (pool.repairs and not is_due):
            return
        if left.free and len(heir.promised.get(pool, ())) < heir.wants.get(pool, 0):
            left.kept_for = heir
            heir.promised.setdefault(pool, []).append(left)
