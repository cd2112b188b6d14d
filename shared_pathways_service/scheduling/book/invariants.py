"""Checks the invariants of a ledger from scratch; tests call it after every event."""

from __future__ import annotations

import itertools

from shared_pathways_service.scheduling.book.ledger import Ledger
from shared_pathways_service.scheduling.book.lines import Entry
from shared_pathways_service.scheduling.book.records import Pool, Slice, Tenant
from shared_pathways_service.scheduling.book.states import SliceMark, SliceState

__all__ = ["validate"]

_IN = frozenset({SliceState.READY, SliceState.CORDONED, SliceState.DRAINING})


def validate(ledger: Ledger, *, recovering: bool) -> None:
    """Raises AssertionError naming the invariant that is violated.

    While the core recovers, it grants nothing, and reports on held slices may be missing.
    """
    for pool in ledger.pools.values():
        _check_pool(ledger, pool)
    for found in ledger.slices.values():
        _check_slice(ledger, found, recovering=recovering)
    for tenant in ledger.tenants.values():
        _check_tenant(ledger, tenant)
    generations = [s.generation for s in ledger.slices.values() if s.tenant]
    assert len(generations) == len(set(generations)), f"a generation twice: {generations}"
    assert ledger.held_generations == set(generations), "the index of generations is wrong"
    assert ledger.last_generation >= max(generations, default=0), "a generation from the future"
    assert all(held.tenant for held in ledger.starting), "a start that no holder waits for"
    orders = [tenant.order for tenant in ledger.tenants.values()]
    assert len(orders) == len(set(orders)), f"an arrival number twice: {orders}"
    assert ledger.last_order >= max(orders, default=0), "an arrival number from the future"
    if not recovering:
        _check_nobody_forgotten(ledger)


def _check_pool(ledger: Ledger, pool: Pool) -> None:
    slices = list(pool.slices.values())
    assert slices == [s for s in ledger.slices.values() if s.pool is pool]
    assert pool.free == sum(s.free for s in slices), f"{pool.name}: free slices miscounted"
    assert pool.ready == sum(s.state is SliceState.READY for s in slices)
    assert pool.held == sum(s.tenant is not None for s in slices)
    in_heap = [s for _, s in pool.free_heap]
    assert len(in_heap) == len(set(map(id, in_heap))), f"{pool.name}: in the heap twice"
    leaked = [s.id for s in slices if s.free and s not in in_heap]
    assert not leaked, f"{pool.name}: free, yet never granted again: {leaked}"
    for line in (pool.repairs, pool.fills, pool.waiting):
        keys = [entry[:3] for entry in line.entries]
        assert keys == sorted(set(keys)), f"{pool.name}: a line out of order"
    tenants = ledger.tenants.values()
    assert _members(pool.waiting.entries) == {
        (t.name, -1) for t in tenants if t.is_queued and pool in t.wants
    }
    unplaced = {
        (t.name, index): index in t.lost
        for t in tenants
        if t.running
        for index, wanted in enumerate(t.pools)
        if wanted is pool and index not in t.placed
    }
    assert _members(pool.planned.entries) == {
        (t.name, -1) for t in tenants if t.has_promise and pool in t.wants
    }
    assert pool.barred == sum(s.state in _IN - {SliceState.READY} for s in slices)
    assert pool.draining == sum(s.state is SliceState.DRAINING for s in slices)
    assert pool.marked == sum(s.mark is not SliceMark.NONE for s in slices)
    assert pool.withdrawn == sum(s.is_withdrawn for s in slices)
    assert _members(pool.repairs.entries) == {key for key, lost in unplaced.items() if lost}
    assert _members(pool.fills.entries) == {key for key, lost in unplaced.items() if not lost}
    held = [s.tenant for s in slices if s.tenant]
    assert pool.holders == {tenant: held.count(tenant) for tenant in held}


def _members(entries: list[Entry[Tenant]]) -> set[tuple[str, int]]:
    return {(tenant.name, index) for _, _, index, tenant in entries}


def _check_slice(ledger: Ledger, found: Slice, *, recovering: bool) -> None:
    assert ledger.slices[found.id] is found
    assert (found.state is SliceState.READY) <= found.complete, f"{found.id}: ready, not complete"
    assert len(found.workers) == found.pool.kind.hosts
    assert all(w.alive and w.slice is found for w in found.workers if w)
    assert found.state in {SliceState.STARTING, SliceState.LOST, found.state_when_complete}
    assert ledger.marks.get(found.id, SliceMark.NONE) is found.mark
    kept_for = found.kept_for
    if kept_for is not None:
        assert found.tenant is None, f"{found.id}: held by one, kept for another"
        assert found.state is SliceState.READY, f"{found.id}: kept, and not ready"
    if isinstance(kept_for, Slice):
        assert kept_for.onto is found
        assert kept_for.state is SliceState.DRAINING
    elif kept_for is not None:
        assert kept_for.has_promise, f"{found.id}: kept for one without a promise"
        assert found in kept_for.promised[found.pool]
    if found.onto is not None:
        assert found.onto.kept_for is found
    drained = found.tenant is not None and found.state is SliceState.DRAINING
    assert (found in found.pool.drains) == (drained and found.onto is None)
    if found.tenant is None:
        return
    tenant = found.tenant
    assert ledger.tenants.get(tenant.name) is tenant, f"{found.id}: leaked by {tenant.name}"
    assert tenant.placed.get(found.index) is found, f"{found.id}: its holder knows nothing of it"
    assert tenant.pools[found.index] is found.pool, f"{found.id}: of another type"
    assert found.state is not SliceState.LOST, f"{found.id}: lost, and held by {tenant.name}"
    assert recovering or found.state in _IN, f"{found.id}: held, its workers are not in"


def _check_tenant(ledger: Ledger, tenant: Tenant) -> None:
    name = tenant.name
    assert ledger.tenants[name] is tenant
    assert not tenant.gone
    assert tenant.running or not tenant.placed, f"{name}: half of a gang is placed"
    for index, held in tenant.placed.items():
        assert held.tenant is tenant, f"{name}: holds a slice of {held.tenant}"
        assert held.index == index
    assert not tenant.lost & tenant.placed.keys(), f"{name}: lost and placed"
    assert tenant.connected == (tenant.ttl_at is None), f"{name}: its time to live"
    assert not (tenant.running and tenant.has_run)
    assert tenant.parked is None or tenant.idled, f"{name}: parked"
    assert tenant.has_promise or not any(tenant.promised.values()), f"{name}: promised"
    assert not (tenant.running and tenant.has_promise)
    if tenant.notice is not None:
        assert tenant.running, f"{name}: under notice, and does not run"


def _check_nobody_forgotten(ledger: Ledger) -> None:
    """Checks by the rules, not by the scheduler's code, that no placeable tenant waits."""
    for pool in ledger.pools.values():
        assert not (pool.repairs and pool.free), f"{pool.name}: a lost slice is not placed again"
        assert not (pool.drains and pool.free), f"{pool.name}: a drained slice's holder stays"
    for tenant in ledger.tenants.values():
        if not tenant.is_queued:
            continue
        could = sum(
            min(count, len(tenant.promised.get(pool, ())) + _for(tenant, pool))
            for pool, count in tenant.wants.items()
        )
        assert could < tenant.gang, f"{tenant.name}: waits, though it could be placed"
    for pool in ledger.pools.values():
        first = _first_in_line(pool)
        stuck = first is not None and first.running and pool.room_for(first) > 0
        assert not stuck, f"{pool.name}: an elastic slice waits, though it could be placed"


def _for(tenant: Tenant, pool: Pool) -> int:
    """Returns how many free slices a waiting tenant could have once those before it are served."""
    before = [
        one for *_, one in pool.waiting.entries if one.rank < tenant.rank and not one.has_promise
    ]
    before += [one for *_, one in pool.fills.entries if one.rank < tenant.rank]
    own = 0 if pool.reserved is None else pool.reserved.own_room(tenant)
    return own if before else max(own, pool.room_for(tenant))


def _first_in_line(pool: Pool) -> Tenant | None:
    waiting = [entry for entry in pool.waiting.entries if not entry[-1].has_promise]
    entries = itertools.chain(pool.fills.entries, waiting)
    return min(entries, key=lambda entry: entry[:3], default=(0, 0, 0, None))[3]
