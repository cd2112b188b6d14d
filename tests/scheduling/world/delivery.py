"""Carries out the core's instructions: the disk keeps, workers and proxies hear."""

from __future__ import annotations

import math

from shared_pathways_service.events import Event
from shared_pathways_service.events.tenants import TenantPreempted
from shared_pathways_service.scheduling.book import messages as m
from shared_pathways_service.scheduling.book.persisted import (
    Persist,
    PersistedGrant,
)
from shared_pathways_service.scheduling.book.states import (
    SliceMark,
)
from tests.scheduling.world.executors import Executors
from tests.scheduling.world.facts import Facts
from tests.scheduling.world.parties import Placing, Proxy, Worker


class Delivery:
    """Delivers each instruction, and judges whether it may be given at all."""

    def __init__(self, world: Facts, executors: Executors) -> None:
        self._world = world
        self._executors = executors

    def carry_out(self, one: m.Instruction) -> None:
        world = self._world
        match one:
            case Persist():
                self._persist(one)
            case m.WelcomeWorker():
                worker = self._worker(one)
                assert worker.connected
                if worker.welcomed_at is None:
                    worker.welcomed_at = one.last_generation
            case m.RefuseWorker():
                worker = self._worker(one)
                if worker.incarnation == one.incarnation:
                    worker.connected = worker.running = False
            case m.AssignWorker() | m.NotifyExecutors():
                self._executors.hear(one)
            case m.RefuseTenant():
                self._told_refused(one)
            case m.EndTenantStream():
                assert world.proxies[one.tenant].incarnation != one.incarnation
            case m.Announce():
                self._hear(one.make())
            case _:
                self._tell(one)

    def _hear(self, event: Event) -> None:
        if isinstance(event, TenantPreempted):
            # From here on, what it is placed on is placed for the first time.
            self._world.proxies[str(event.tenant)].came_at = self._world.step

    def _judge_end(self, slice_id: str, generation: int) -> None:
        """A placement ends before its tenant does only if something is wrong with its slice."""
        world = self._world
        broken = world.broke.get(slice_id, -1) >= world.placings[generation].step
        silent = world.now >= world.started_at + world.config.recovering_s
        disk_lost = world.disk_lost_at >= 0
        taken = world.placings[generation].tenant in world.taken | world.idled
        drained = world.marked.get(slice_id) is SliceMark.DRAINING
        drained |= slice_id in world.marks and world.marks[slice_id].mark is SliceMark.DRAINING
        given_up = generation in world.given_up
        assert broken or silent or disk_lost or taken or drained or given_up, (
            f"nothing is wrong with {slice_id}"
        )

    def _tell(self, one: m.Instruction) -> None:
        match one:
            case m.NotifyPreempting():
                self._told_preempting(one)
            case m.NotifyIdle():
                self._told_idle(one)
            case m.NotifyPlaced():
                self._told_placed(one)
            case m.NotifyUnplaced():
                self._told_unplaced(one)
            case m.NotifyRunning():
                proxy = self._listening(one.tenant)
                assert one.placed >= proxy.needed, "half of a gang runs"
                assert one.placed == len(proxy.view), "told to run before it was told where"
                proxy.running = proxy.ran = proxy.owes = True
                proxy.parked, proxy.idle_count = False, None
            case m.NotifyQueued():
                proxy = self._listening(one.tenant)
                assert proxy.running or one != proxy.queued, "told the same thing twice"
                proxy.queued = one
                proxy.running = proxy.parked = False
                proxy.idle_count = None

    def _persist(self, one: Persist) -> None:
        world = self._world
        world.disk_missing = False
        for marked in one.marks:
            world.marks[marked.slice_id] = marked
            if marked.mark is SliceMark.NONE:
                del world.marks[marked.slice_id]
        world.reservations.update({new.name: new for new in one.reservations})
        for over in one.reservations_over:
            del world.reservations[over]
        for decision in one.decisions:
            world.books.hear(decision)
        highest = max(world.placings, default=0)
        for grant in one.grants:
            self._granted(grant, highest)
        for name in one.forgotten:
            del world.grants[name]
        assert one.last_generation >= world.last_generation
        assert one.last_order >= world.last_order
        world.state_lost = one.state_lost
        world.last_generation, world.last_order = one.last_generation, one.last_order

    def _granted(self, grant: PersistedGrant, highest: int) -> None:
        world = self._world
        former = world.grants.get(grant.request.name)
        for slice_id, generation in former.placements.values() if former else ():
            if (slice_id, generation) not in grant.placements.values():
                self._judge_end(slice_id, generation)
        world.grants[grant.request.name] = grant
        if grant.ends_at is not None:
            world.proxies[grant.request.name].ends_at = grant.ends_at
        if grant.parked is not None:
            # From here on, what it is placed on is placed for the first time.
            world.proxies[grant.request.name].came_at = world.step
        for index, (slice_id, generation) in grant.placements.items():
            known = world.placings.get(generation)
            what = (grant.request.name, index, slice_id)
            if known is None:
                assert generation > highest, f"generation {generation} after {highest}"
                assert world.core.status(world.now).state == "serving", "granted while recovering"
                world.placings[generation] = Placing(*what, world.step)
            else:
                assert what == (known.tenant, known.index, known.slice_id), "a generation twice"

    def _worker(self, one: m.WelcomeWorker | m.RefuseWorker) -> Worker:
        return self._world.workers[f"{one.slice_id}/{one.host_index}"]

    def _listening(self, name: str) -> Proxy:
        proxy = self._world.proxies[name]
        assert proxy.connected, "a proxy without a stream was told something"
        return proxy

    def _told_placed(self, one: m.NotifyPlaced) -> None:
        proxy = self._listening(one.tenant)
        placing = self._world.placings.get(one.generation)
        what = (one.tenant, one.virtual_index, one.slice_id)
        assert placing is not None, "answered before it was on the disk"
        assert what == (placing.tenant, placing.index, placing.slice_id)
        assert one.virtual_index not in proxy.view, "placed without having been unplaced"
        assert proxy.asks.request.virtual_slices[one.virtual_index] == one.instance_type
        if one.generation > proxy.given_up.get(one.virtual_index, one.generation):
            del proxy.given_up[one.virtual_index]
        proxy.older_view = dict(proxy.view)
        proxy.view[one.virtual_index] = (one.slice_id, one.generation)

    def _told_unplaced(self, one: m.NotifyUnplaced) -> None:
        proxy = self._listening(one.tenant)
        if one.generation >= proxy.given_up.get(one.virtual_index, math.inf):
            del proxy.given_up[one.virtual_index]
        if proxy.view.get(one.virtual_index) != (one.slice_id, one.generation):
            return
        del proxy.view[one.virtual_index]
        proxy.executors.pop(one.virtual_index, None)
        grant = self._world.grants.get(one.tenant)
        is_so = grant and grant.placements.get(one.virtual_index)
        assert is_so != (one.slice_id, one.generation), "unplaced for the proxy, placed on the disk"

    def _told_preempting(self, one: m.NotifyPreempting) -> None:
        proxy = self._listening(one.tenant)
        if not one.indices:
            proxy.noticed_until = None if one.withdrawn else self._world.now + one.grace_s
        assert set(one.indices) <= proxy.view.keys()

    def _told_idle(self, one: m.NotifyIdle) -> None:
        proxy = self._listening(one.tenant)
        if one.released:
            assert not proxy.view, "released, and still placed"
            # (It is told again when it speaks again.)
            proxy.running = proxy.ran = False
            proxy.parked, proxy.idle_count = True, one.count
        elif one.withdrawn:
            proxy.warned_until = None
        else:
            assert proxy.tells, f"{proxy.name} cannot be warned"
            proxy.warned_until = self._world.now + one.release_s
            proxy.answered, proxy.owes = False, True

    def _told_refused(self, one: m.RefuseTenant) -> None:
        world = self._world
        proxy = self._listening(one.tenant)
        if proxy.incarnation != one.incarnation:
            return
        away = world.now - proxy.away_since
        if one.kind is m.RefusalKind.LOST and world.disk_lost_at < 0 and not proxy.released:
            # (After another restart, that a tenant's lifetime was over is not known any more.)
            is_over = world.now >= proxy.ends_at
            assert is_over or away >= world.config.tenant_ttl_s, f"given up after {away} s"
        if one.kind is m.RefusalKind.LOST and self._has_a_right(proxy):
            raise AssertionError(f"{proxy.name} came back in time, and was not believed")
        proxy.refused = one
        proxy.connected = False

    def _has_a_right(self, proxy: Proxy) -> bool:
        """Whether a proxy was there until the disk was lost, and one of its slices still is."""
        world = self._world
        return (
            world.core.status(world.now).state == "recovering"
            and proxy.away_since >= world.disk_lost_at > 0
            and world.now - proxy.away_since < world.config.tenant_ttl_s
            and not proxy.released
            and world.now < proxy.ends_at  # its stated lifetime, after which it is released
            and proxy.honest
            and any(
                world.broke.get(slice_id, -1) < world.placings[generation].step
                for slice_id, generation in proxy.view.values()
            )
        )
