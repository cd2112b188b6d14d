"""Authoritative state: slices, tenants, assignments, queues, kept in step with each other.

The ledger decides nothing: each change is asked of it, and it keeps its indices right by that.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.events.recorded_decisions import DecisionKind
from shared_pathways_service.scheduling.book.config import RmConfig
from shared_pathways_service.scheduling.book.journal import Journal
from shared_pathways_service.scheduling.book.limits import Teams
from shared_pathways_service.scheduling.book.messages import RefusalKind
from shared_pathways_service.scheduling.book.records import (
    BARRED,
    Notice,
    Plan,
    Pool,
    Slice,
    Tenant,
)
from shared_pathways_service.scheduling.book.states import SLICE_EVENTS, SliceMark, SliceState

__all__ = ["Ledger", "could_fit"]

#: Ended tenants that are remembered, so that a proxy which comes back late is told why.
_ENDED_LIMIT = 10_000
#: What a slice's coming to a state is called in the history.
_COME_TO = {state: DecisionKind(event.kind) for state, event in SLICE_EVENTS.items()}


class Ledger(Journal):
    """The resource manager's book.

    Attributes:
      pools: By instance type; a type that only an older configuration had is not among them.
      tenants: Every tenant that is not gone, by name.
      ended: By incarnation, why it is gone.
      unserved: Pools that somebody may have become placeable in, in the order they changed.
      untold: Pools whose line, free slices or holders changed since their waiting were told.
      unplanned: Pools in which somebody may have come to preempt, in the order they changed.
      shaken: Waiting tenants whose plan to preempt has lost something.
      orphans: Tenants under notice for which nobody stands any more.
      reserves: Whether anything is reserved.
      teams: What each team has.
      undecided: Tenants that do not want to queue and are neither placed nor refused yet.
    """

    def __init__(self, config: RmConfig, now: float) -> None:
        super().__init__(now)
        self.pools: dict[InstanceType, Pool] = {
            kind: Pool(kind=kind, name=str(kind), count=count, spares=config.spares)
            for kind, count in config.slices.items()
        }
        self.tenants: dict[str, Tenant] = {}
        self.ended: dict[str, tuple[str, RefusalKind, str]] = {}
        self.unserved: dict[Pool, None] = {}
        self.untold: dict[Pool, None] = {}
        self.unplanned: dict[Pool, None] = {}
        self.shaken: dict[Tenant, None] = {}
        self.orphans: dict[Tenant, None] = {}
        self.undecided: dict[Tenant, None] = {}
        self.reserves = False
        self.teams = Teams(config.limits)

    # ---- slices

    def add_slice(self, slice_id: str, pool: Pool) -> Slice:
        """Enters a slice that was not known, without workers."""
        found = Slice(id=slice_id, pool=pool, since=self.now, workers=[None] * pool.hosts)
        found.mark = self.marks.get(slice_id, SliceMark.NONE)
        self._count_withdrawn(pool, +found.is_withdrawn)
        self.slices[slice_id] = pool.slices[slice_id] = found
        return found

    def remove_slice(self, gone: Slice) -> None:
        """Strikes out a slice that nobody holds and no worker is in."""
        del self.slices[gone.id], (pool := gone.pool).slices[gone.id]
        # A slice that comes back by this name must not meet an outdated entry of itself.
        pool.free_heap = sorted(entry for entry in pool.free_heap if entry[1] is not gone)
        self._count_withdrawn(pool, -gone.is_withdrawn)

    def set_state(self, changed: Slice, state: SliceState, reason: str = "") -> None:
        """Moves a slice to another state."""
        if changed.state is state:
            return
        was_free = changed.free
        changed.pool.ready += (state is SliceState.READY) - (changed.state is SliceState.READY)
        changed.pool.barred += (state in BARRED) - (changed.state in BARRED)
        changed.state = state
        changed.since = self.now
        self._touch(changed.pool)
        if changed.tenant is not None:
            self._holder_changed(changed.pool, changed.tenant)
        self._count_free(changed, was_free)
        self.decide_slice(changed, _COME_TO[state], reason)

    def enter(self, found: Slice) -> None:
        """Gives a slice whose workers are all in the state that its mark wants."""
        self.set_state(found, found.state_when_complete)
        if found.kept_for is not None and found.state is not SliceState.READY:
            self.keep_no_more(found)
        if found.state is SliceState.DRAINING and found.onto is None:
            found.pool.drains[found] = None
            self.unserved[found.pool] = None

    def set_mark(self, marked: Slice, mark: SliceMark) -> None:
        """Enters what an operator says of a slice."""
        was_withdrawn = marked.is_withdrawn
        marked.mark = mark
        self._count_withdrawn(marked.pool, marked.is_withdrawn - was_withdrawn)
        if mark is SliceMark.NONE:
            self.marks.pop(marked.id, None)
        else:
            self.marks[marked.id] = mark
        self.write_mark(marked)

    def void(self, about: Slice, until: float) -> None:
        """Enters that no claim of a generation up to `until` is true of a slice."""
        about.void_until = max(about.void_until, until)

    def take_free(self, pool: Pool) -> Slice:
        """Returns the free slice whose name comes first; the caller places somebody on it."""
        while True:
            _, found = heapq.heappop(pool.free_heap)
            found.in_heap = False
            if found.free:
                return found

    def _touch(self, pool: Pool) -> None:
        """Notes that what is said of a pool has changed."""
        self.untold[pool] = None
        pool.text = None

    def _count_free(self, changed: Slice, was_free: bool) -> None:
        free = changed.free
        if free == was_free:
            return
        pool = changed.pool
        pool.free += 1 if free else -1
        if free:
            self.unserved[pool] = self.unplanned[pool] = None
            if not changed.in_heap:
                changed.in_heap = True
                heapq.heappush(pool.free_heap, (changed.sort_key, changed))

    def _count_withdrawn(self, pool: Pool, change: int) -> None:
        """Counts slices that were withdrawn, which changes how many spares are kept back."""
        if change:
            pool.withdrawn += change
            self.unserved[pool] = self.unplanned[pool] = None
            self._touch(pool)

    # ---- placements

    def place(self, tenant: Tenant, index: int, onto: Slice) -> None:
        """Gives a free slice to a virtual slice, with a generation of its own."""
        self.last_generation += 1
        again = index in tenant.lost
        onto.granted = True
        self.hold(tenant, index, onto, self.last_generation)
        self.decide_held(onto, DecisionKind.REPLACED if again else DecisionKind.PLACED)

    def hold(self, tenant: Tenant, index: int, onto: Slice, generation: int) -> None:
        """Enters that a virtual slice is on a slice that nobody holds.

        Of what is new in that, the caller makes a decision.
        """
        pool = onto.pool
        if onto.free:
            pool.free -= 1
        self._count_withdrawn(pool, -onto.is_withdrawn)
        onto.tenant, onto.index, onto.generation = tenant, index, generation
        onto.since = onto.held_since = self.now
        onto.relied_on = onto.incarnations
        pool.held += 1
        self._touch(pool)
        pool.holders[tenant] = pool.holders.get(tenant, 0) + 1
        self._holder_changed(pool, tenant)
        tenant.placed[index] = onto
        tenant.lost.discard(index)
        self.write(tenant)

    def rely(self, held: Slice) -> None:
        """Enters whom the holder of a slice relies on, where that was not known."""
        if held.tenant is not None and not held.relied_on:
            held.relied_on = held.incarnations
            self.write(held.tenant)

    def let_go(
        self, held: Slice, kind: str = DecisionKind.UNPLACED, reason: str = "", *, related: str = ""
    ) -> None:
        """Enters that a virtual slice is no longer on its slice.

        Args:
          held: The slice.
          kind: What was decided by that.
          reason: Why, for the history.
          related: The other tenant that has to do with it.
        """
        tenant, pool = held.tenant, held.pool
        assert tenant is not None
        self.decide_held(held, kind, reason, began=held.held_since, related=related)
        self._end_move(held)
        del tenant.placed[held.index]
        held.tenant, held.index = None, -1
        self._count_withdrawn(pool, held.is_withdrawn)
        held.since = self.now
        held.relied_on = ()
        pool.held -= 1
        self._touch(pool)
        pool.holders[tenant] -= 1
        if not pool.holders[tenant]:
            del pool.holders[tenant]
        self._holder_changed(pool, tenant)
        if held.state is SliceState.DRAINING:
            self.set_state(held, SliceState.CORDONED)
        if (notice := tenant.notice) is not None and notice.plan is not None:
            self._bequeath(held, notice.plan.preemptor)
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
        """Enters when the holder of a slice that is drained is moved; None: it is not."""
        drained.moves_at = when
        self.write_mark(drained)

    def _holder_changed(self, pool: Pool, tenant: Tenant) -> None:
        if tenant.ends_at is not None:
            self._state(pool, tenant)
        pool.yielding.changed(tenant, pool.yield_of)
        if pool.reserved is not None:
            # (Of one that holds nothing here any more, too: it may hold slices of other types.)
            self._shelter_changed(pool, tenant)
            self.unserved[pool] = None
        self.unplanned[pool] = None
        if tenant.notice is not None and tenant.notice.plan is not None:
            self.shaken[tenant.notice.plan.preemptor] = None

    def _state(self, pool: Pool, tenant: Tenant) -> None:
        """Counts what a holder has that stated its lifetime."""
        if held := pool.holders.get(tenant, 0):
            pool.stated[tenant] = held
        else:
            pool.stated.pop(tenant, None)
        # By that it is known when a head of several types can start at the earliest, and so who may
        # start before it (`scheduling.policies.backfill`), in its other pools too.
        for other in self.pools.values() if len(self.pools) > 1 else ():
            first = other.first_open()
            if first is not None and pool in first[-1].wants:
                self.unserved.update(dict.fromkeys(p for p in first[-1].wants if p.brief))

    # ---- reservations

    def reservations_changed(self, pool: Pool) -> None:
        """Notes that other slices of a pool are reserved than before."""
        self.reserves = any(one.reserved is not None for one in self.pools.values())
        self._shelter_changed(pool)
        self._touch(pool)
        self.unserved[pool] = self.unplanned[pool] = None

    def _shelter_changed(self, pool: Pool, *also: Tenant) -> None:
        """Notes that others may be sheltered now than before: who holds slices there, and `also`.

        What shelters a tenant in one pool shelters it in all, so these are to be planned anew too.
        """
        if pool.reserved is not None:
            pool.reserved.holders_changed()
        for tenant in dict.fromkeys((*pool.holders, *also)):
            for wanted in tenant.wants:
                wanted.yielding.changed(tenant, wanted.yield_of)
                self.unplanned[wanted] = None

    # ---- promises

    def keep(self, free: Slice, for_whom: Tenant | Slice) -> None:
        """Keeps a free slice for a tenant that waits, or for the holder of one that is drained."""
        was_free = free.free
        free.kept_for = for_whom
        if isinstance(for_whom, Slice):
            for_whom.onto = free
        else:
            for_whom.promised.setdefault(free.pool, []).append(free)
        self._count_free(free, was_free)
        self._touch(free.pool)

    def keep_no_more(self, kept: Slice) -> None:
        """Ends what `keep` began."""
        was_free = kept.free
        for_whom, kept.kept_for = kept.kept_for, None
        if isinstance(for_whom, Slice):
            for_whom.onto = None
            if for_whom.state is SliceState.DRAINING and for_whom.tenant is not None:
                for_whom.pool.drains[for_whom] = None
                self.unserved[for_whom.pool] = None
        elif for_whom is not None:
            for_whom.promised[kept.pool].remove(kept)
            if for_whom.plan is not None:
                self.shaken[for_whom] = None
        self._count_free(kept, was_free)
        self._touch(kept.pool)

    def _bequeath(self, left: Slice, heir: Tenant) -> None:
        """Reserves a victim's freed slice for its preemptor."""
        self.shaken[heir] = None
        pool, plan = left.pool, heir.plan
        # Whoever runs and lost a slice comes first, but not when others are preempted just now.
        taken = plan is not None and plan.is_due
        if pool.repairs and not taken:
            return
        if left.free and len(heir.promised.get(pool, ())) < heir.wants.get(pool, 0):
            left.kept_for = heir
            heir.promised.setdefault(pool, []).append(left)

    def give_notice(self, victim: Tenant, notice: Notice) -> None:
        """Enters that a running tenant's slices will be taken."""
        victim.notice = notice
        for pool in victim.wants:
            pool.yielding.changed(victim, pool.yield_of)
        self.write(victim)

    def postpone(self, victim: Tenant, until: float) -> None:
        """Enters that the slices of a tenant under notice are taken no earlier than `until`."""
        notice = victim.notice
        if notice is not None and notice.ends_at < until:
            notice.ends_at = until
            self.write(victim)

    def end_notice(self, victim: Tenant) -> None:
        """Clears a preemption notice (withdrawn or executed)."""
        victim.notice = None
        self.orphans.pop(victim, None)
        for pool in victim.wants:
            self._holder_changed(pool, victim)
        self.write(victim)

    def begin_plan(self, plan: Plan) -> None:
        """Enters that a waiting tenant will have others preempted."""
        tenant = plan.preemptor
        tenant.plan = plan
        for pool in tenant.wants:
            pool.planned.add(tenant)
            # Whoever is behind it is first of those without a plan now.
            self.unserved[pool] = None
        self.undecided.pop(tenant, None)

    def end_plan(self, tenant: Tenant) -> None:
        """Enters that it will not, or that it starts. What it was promised is still kept."""
        plan = tenant.plan
        assert plan is not None
        plan.live = False
        tenant.plan = None
        self.shaken.pop(tenant, None)
        for victim in list(plan.victims):
            self.spare(plan, victim)
        for pool in tenant.wants:
            pool.planned.remove(tenant)
        self._line_changed(tenant.wants)

    def spare(self, plan: Plan, victim: Tenant) -> None:
        """Enters that a plan does without one of its victims."""
        del plan.victims[victim]
        if victim.notice is not None and victim.notice.plan is plan:
            victim.notice.plan = None
            self.orphans[victim] = None
            for pool in victim.wants:
                self.unplanned[pool] = None

    def end_promises(self, tenant: Tenant) -> None:
        """Frees what is still kept for a tenant."""
        for kept in [one for line in tenant.promised.values() for one in line]:
            self.keep_no_more(kept)
        tenant.promised = {}

    # ---- lines

    def enqueue(self, tenant: Tenant) -> None:
        """Puts a tenant in the line of each type that it wants."""
        for pool in tenant.wants:
            if len(self.pools) > 1 and (head := pool.first_open()) and head[:2] > tenant.rank:
                # Who is no head any more holds up nobody in its other lines.
                self.unserved.update(dict.fromkeys(head[-1].wants))
            pool.waiting.add(tenant)
            pool.brief += tenant.ends_at is not None
        if tenant.has_run and not could_fit(tenant.wants, tenant.needed):
            # It ran on more slices than the service has now; at the head it would wait for ever.
            self.undecided[tenant] = None
        self._line_changed(tenant.wants)
        self.write(tenant)

    def dequeue(self, tenant: Tenant) -> None:
        """Takes a waiting tenant out of its lines; its plan to preempt others is over."""
        if tenant.plan is not None:
            self.end_plan(tenant)
        for pool in tenant.wants:
            pool.waiting.remove(tenant)
            pool.brief -= tenant.ends_at is not None
        self._line_changed(tenant.wants)
        self.undecided.pop(tenant, None)

    def want_repair(self, tenant: Tenant, index: int) -> None:
        """Puts a virtual slice that was lost in line for another slice."""
        tenant.lost.add(index)
        tenant.pools[index].repairs.add(tenant, index)
        self._line_changed((tenant.pools[index],))
        self.write(tenant)

    def want_fill(self, tenant: Tenant, index: int) -> None:
        """Puts an elastic virtual slice that was not placed yet in line."""
        tenant.pools[index].fills.add(tenant, index)
        self._line_changed((tenant.pools[index],))

    def stop_wanting(self, tenant: Tenant, index: int) -> None:
        """Takes a virtual slice of a running tenant out of its line."""
        pool = tenant.pools[index]
        (pool.repairs if index in tenant.lost else pool.fills).remove(tenant, index)
        self._line_changed((pool,))

    def _line_changed(self, pools: Sequence[Pool] | dict[Pool, int]) -> None:
        for pool in pools:
            self.unserved[pool] = self.unplanned[pool] = self.untold[pool] = None

    # ---- tenants

    def add_tenant(self, tenant: Tenant) -> None:
        """Enters a tenant; its slices or its place in line are entered after that."""
        self.tenants[tenant.name] = tenant
        self.teams.came(tenant)
        self.write(tenant)

    def remove_tenant(self, tenant: Tenant, reason: str = "") -> None:
        """Strikes out a tenant with all it holds and waits for.

        That it is gone is the caller's decision; `reason` stands with what it held.
        """
        if tenant.running:
            for index in range(len(tenant.kinds)):
                if index not in tenant.placed:
                    self.stop_wanting(tenant, index)
        elif tenant.parked is None:
            self.dequeue(tenant)
        for held in list(tenant.placed.values()):
            self.let_go(held, DecisionKind.FREED, reason)
        if tenant.promised:
            self.end_promises(tenant)
        if tenant.notice is not None:
            if tenant.notice.plan is not None:
                self.spare(tenant.notice.plan, tenant)
            self.end_notice(tenant)
        del self.tenants[tenant.name]
        self.teams.went(tenant)
        self.write_no_more(tenant)
        tenant.gone = True

    def remember_end(self, tenant: Tenant, kind: RefusalKind, why: str) -> None:
        """Remembers what to tell a proxy that comes back after its tenant is gone."""
        self.ended[tenant.incarnation] = (tenant.name, kind, why)
        if len(self.ended) > _ENDED_LIMIT:
            del self.ended[next(iter(self.ended))]


def could_fit(wants: Mapping[Pool, int], needed: int) -> bool:
    """Returns whether a gang could start if all slices of the service were free."""
    return sum([min(count, pool.usable) for pool, count in wants.items()]) >= needed
