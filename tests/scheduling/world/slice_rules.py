"""Rules for slices: who may hold them, lose them, and be kept from them."""

from __future__ import annotations

from collections import Counter

from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.events.tenants import SlicePlaced
from shared_pathways_service.scheduling.book import messages as m
from shared_pathways_service.scheduling.book.holdings import StatusReport
from shared_pathways_service.scheduling.book.states import (
    SliceState,
    TenantState,
    VirtualSliceState,
)
from tests.scheduling.harness import events_of
from tests.scheduling.world.facts import Facts, free_slices, named_tenant
from tests.scheduling.world.parties import Proxy


class SliceRules:
    """Judges holders after each event by what proxies were told."""

    def __init__(self, world: Facts) -> None:
        self._world = world

    def judge_views(self, after: StatusReport) -> None:
        """What proxies were told is what is so, and nothing is held twice."""
        world = self._world
        holders = {one.id: (one.tenant, one.virtual_index) for one in after.slices if one.tenant}
        assert len({one.id for one in after.slices}) == len(after.slices)
        for tenant in after.tenants:
            proxy = world.proxies[tenant.name]
            assert proxy.incarnation == tenant.incarnation
            placed = {
                one.index: (one.slice_id, one.generation)
                for one in tenant.slices
                if one.state is VirtualSliceState.PLACED
            }
            for index, (slice_id, _) in placed.items():
                assert holders.pop(slice_id) == (tenant.name, index)
            assert tenant.state is TenantState.RUNNING or not placed, "half a gang"
            assert tenant.connected == proxy.connected
            if proxy.connected:
                assert proxy.view == placed, f"{proxy.name} believes {proxy.view}"
                runs = tenant.state is TenantState.RUNNING
                is_parked = tenant.state is TenantState.IDLE
                assert is_parked == proxy.parked, "parked and does not know"
                waits = not proxy.running and proxy.queued
                assert runs or is_parked or waits, "waits and does not know"
                assert proxy.running or not runs or len(placed) < proxy.needed, "never told to run"
        assert not holders, f"leaked: {holders}"
        known = {tenant.name for tenant in after.tenants}
        for proxy in world.proxies.values():
            assert not proxy.connected or proxy.name in known, f"{proxy.name} hears nothing more"

    def judge_preempted(self) -> None:
        """Only for one of higher priority who starts by that, and no sooner than was told."""
        world = self._world
        holds = {
            placing.tenant for placing in world.placings.values() if placing.step == world.step
        }
        for name, reason in world.taken.items():
            victim = world.proxies[name]
            by = world.proxies[named_tenant(reason.removeprefix("preempted by "))]
            assert by.asks.request.priority > victim.asks.request.priority
            assert by.name in holds, f"{name} was preempted for {by.name}, which did not start"
            if victim.connected and world.config.preemption_grace_s:
                assert victim.noticed_until is not None, f"{name} was not told"
                assert world.now >= victim.noticed_until - 1e-3, f"{name} was told of more time"
            victim.noticed_until = None

    def judge_released(self) -> None:
        """Only who was warned, in time, and is known to have done nothing since."""
        world = self._world
        for name in world.idled:
            proxy = world.proxies[name]
            release_s = world.config.idle_release_s
            assert release_s is not None
            # (The same event may refuse it after that, as its lifetime is over too.)
            assert name in world.listening
            assert proxy.warned_until is not None, f"{name} was not warned"
            assert proxy.answered, f"{name} was taken at its silence"
            assert world.now >= proxy.warned_until - 1e-3, f"{name} was told of more time"
            if proxy.told == proxy.worked:
                assert world.now - proxy.active_at >= release_s - 1e-3, f"{name} is not idle"
            proxy.warned_until = None

    def judge_reserved(self, after: StatusReport) -> None:
        """Whoever starts, or gets more, leaves those alone for whom slices are reserved."""
        world = self._world
        assert {one.reservation for one in after.reservations} == set(world.reservations.values())
        late = [one for one in world.reservations.values() if one.ends < world.now - 1e-3]
        assert not late, f"over, and still there: {late}"
        placed_before = world.placed_before(world.step)
        got = {
            (
                placing.tenant,
                world.proxies[placing.tenant].asks.request.virtual_slices[placing.index],
            )
            for placing in world.placings.values()
            if placing.step == world.step and (placing.tenant, placing.index) not in placed_before
        }
        for name, kind in got if world.disk_lost_at < 0 else ():
            if name in world.planned:
                continue  # on what others were preempted from, or was promised before
            lacking = self._lacking(world.proxies[name], kind, after)
            free = free_slices(after)[str(kind)] - world.kept(str(kind), after)
            assert not lacking or free >= lacking, f"{name} got what was reserved for others"

    def _lacking(self, proxy: Proxy, kind: InstanceType, after: StatusReport) -> int:
        """Returns how many slices others lack of what is reserved for them and in force."""
        world = self._world
        users = {tenant.name: tenant.user for tenant in after.tenants}
        held = Counter(
            users[one.tenant]
            for one in after.slices
            if one.tenant and one.instance_type == str(kind)
        )
        lacking = 0
        for one in sorted(world.reservations.values(), key=lambda one: (one.starts, one.name)):
            if one.instance_type != str(kind) or one.starts > world.now - 1e-3:
                continue
            has = min(held[one.user], one.count)
            held[one.user] -= has
            if one.user != proxy.asks.request.user:
                lacking += one.count - has
        return lacking

    def judge_marked(self, after: StatusReport) -> None:
        """Nothing is placed on a slice that an operator has taken out."""
        world = self._world
        for placing in world.placings.values():
            if placing.step == world.step and world.disk_lost_at < 0:
                barred = world.marked.keys() & world.marks.keys()
                assert placing.slice_id not in barred, f"{placing.slice_id} is cordoned"
        for one in after.slices:
            if one.state in (SliceState.CORDONED, SliceState.DRAINING, SliceState.READY):
                marked = one.id in world.marks
                assert marked == (one.state is not SliceState.READY)
            if one.state is SliceState.DRAINING:
                assert one.tenant

    def judge_broken(self, after: StatusReport) -> None:
        """No placement outlives a break of its slice, whether the manager saw it or was away."""
        world = self._world
        for one in after.slices:
            if one.tenant:
                # Without the disk, that a stream broke and was taken up again is not known.
                trouble = world.broke if world.disk_lost_at < 0 else world.replaced
                placed = world.placings[one.generation].step
                assert trouble.get(one.id, -1) <= placed, f"{one.id} broke, and is held"

    def judge_spares(self, after: StatusReport, instructions: list[m.Instruction]) -> None:
        """Only what was placed before is placed on spares."""
        world = self._world
        if world.disk_lost_at >= 0:
            return  # what was placed before is not known for sure
        free = free_slices(after)
        for event in events_of(instructions):
            if isinstance(event, SlicePlaced):
                if event.tenant in world.planned or world.taken:
                    continue  # on what others were preempted from
                where = (event.tenant, event.virtual_index)
                if where not in world.placed_before(world.step):
                    kind = str(event.instance_type)
                    assert free[kind] >= world.kept(kind, after), "a spare was granted"
