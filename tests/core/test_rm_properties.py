"""Whatever workers, proxies, the network and restarts do, in any order, the books stay right."""

from __future__ import annotations

import dataclasses

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from shared_pathways_service.core.rm import messages as m
from shared_pathways_service.core.rm.config import RmConfig
from tests.core.rm_world import LARGE, SMALL, Proxy, World

_TIMES = st.sampled_from([0.0, 0.5, 1.0, 5.0, 12.0, 16.0, 35.0])


class ResourceManagerMachine(RuleBasedStateMachine):
    world: World

    @initialize(spares=st.integers(0, 1), ready=st.booleans(), small=st.integers(2, 5))
    def begin(self, spares: int, ready: bool, small: int) -> None:
        self.world = World(RmConfig(slices={SMALL: small, LARGE: 2}, spares=spares))
        if ready:
            for key in self.world.workers:
                self.world.start_worker(key)

    def some(self, data: st.DataObject, proxies: list[Proxy]) -> Proxy:
        return data.draw(st.sampled_from(proxies))

    @property
    def alive(self) -> list[Proxy]:
        return [proxy for proxy in self.world.proxies.values() if proxy.refused is None]

    @property
    def connected(self) -> list[Proxy]:
        return [proxy for proxy in self.alive if proxy.connected]

    @property
    def away(self) -> list[Proxy]:
        return [proxy for proxy in self.alive if not proxy.connected]

    # ---- workers

    @rule(data=st.data())
    def worker_starts_or_dies(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.world.workers)))
        if self.world.workers[key].running:
            self.world.disconnect_worker(key, dies=True)
        else:
            self.world.start_worker(key)

    @rule(data=st.data())
    def worker_is_cut_off_or_back(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.world.workers)))
        worker = self.world.workers[key]
        if worker.connected:
            self.world.disconnect_worker(key, dies=False)
        elif worker.running:
            self.world.connect_worker(key)

    @rule(data=st.data())
    def worker_replaces_itself(self, data: st.DataObject) -> None:
        self.world.start_worker(data.draw(st.sampled_from(sorted(self.world.workers))))

    @rule(data=st.data())
    def worker_stops_or_goes_on(self, data: st.DataObject) -> None:
        worker = self.world.workers[data.draw(st.sampled_from(sorted(self.world.workers)))]
        worker.stopped = not worker.stopped

    @rule()
    def all_workers_are_back(self) -> None:
        for key, worker in self.world.workers.items():
            if not worker.running:
                self.world.start_worker(key)
            elif not worker.connected:
                self.world.connect_worker(key)

    # ---- tenants

    @rule(
        small=st.integers(0, 3),
        large=st.integers(0, 1),
        elastic=st.integers(0, 2),
        priority=st.sampled_from([0, 0, 0, 1]),
        queue_timeout=st.sampled_from([None, 0.0, 20.0, float("inf"), float("inf")]),
    )
    def tenant_asks(
        self, small: int, large: int, elastic: int, priority: int, queue_timeout: float | None
    ) -> None:
        kinds = (SMALL,) * small + (LARGE,) * large or (SMALL,)
        name = self.world.new_name()
        asks = m.TenantAsked(
            tenant=name,
            incarnation=f"{name}-1",
            virtual_slices=kinds,
            num_elastic=min(elastic, len(kinds) - 1),
            priority=priority,
            queue_timeout_s=queue_timeout,
            user=name,
        )
        proxy = Proxy(name, asks.incarnation, asks, arrival=0)
        self.world.proxies[name] = proxy
        self.world.ask(proxy, {})

    @precondition(lambda self: self.connected)
    @rule(data=st.data())
    def proxy_is_cut_off(self, data: st.DataObject) -> None:
        self.world.cut_proxy(self.some(data, self.connected))

    @precondition(lambda self: self.away)
    @rule(data=st.data())
    def proxy_is_back(self, data: st.DataObject) -> None:
        proxy = self.some(data, self.away)
        self.world.ask(proxy, proxy.view)

    @precondition(lambda self: self.away)
    @rule()
    def all_proxies_are_back(self) -> None:
        for proxy in self.away:
            self.world.ask(proxy, proxy.view)

    @precondition(lambda self: self.away)
    @rule(data=st.data())
    def proxy_is_back_with_stale_claims(self, data: st.DataObject) -> None:
        proxy = self.some(data, self.away)
        self.world.ask(proxy, proxy.older_view)

    @precondition(lambda self: self.connected)
    @rule(data=st.data())
    def proxy_speaks_again_before_its_end_was_seen(self, data: st.DataObject) -> None:
        proxy = self.some(data, self.connected)
        self.world.ask(proxy, proxy.view)

    @precondition(lambda self: self.connected)
    @rule(data=st.data())
    def impostor_is_turned_away(self, data: st.DataObject) -> None:
        proxy = self.some(data, self.connected)
        self.world.do(dataclasses.replace(proxy.asks, incarnation="impostor", claims=()))

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def tenant_is_released(self, data: st.DataObject) -> None:
        self.world.release(self.some(data, self.alive))

    # ---- the manager, and time

    @rule(seconds=_TIMES)
    def time_passes(self, seconds: float) -> None:
        self.world.let_time_pass(seconds)

    @rule()
    def line_is_quiet(self) -> None:
        before = self.world.places()
        self.world.let_time_pass(2 * self.world.config.retell_s)
        if self.world.places() == before:
            self.world.judge_the_told()

    @rule()
    def manager_restarts(self) -> None:
        self.world.restart(lose_disk=False)

    @rule(instructions=st.integers(0, 4))
    def manager_will_die_within_an_event(self, instructions: int) -> None:
        self.world.crash_after = instructions

    @rule()
    def manager_restarts_without_its_disk(self) -> None:
        self.world.restart(lose_disk=True)

    def teardown(self) -> None:
        """When everybody has let go and all workers are there, every slice can be had again."""
        if not hasattr(self, "world") or not self.world.sound:
            return
        world = self.world
        world.crash_after = None
        for worker in world.workers.values():
            worker.stopped = False
        for proxy in self.alive:
            world.release(proxy)
        self.all_workers_are_back()
        world.let_time_pass(60.0)
        self.all_workers_are_back()
        for kind, count in world.config.slices.items():
            name = world.new_name()
            kinds = (kind,) * (count - world.config.spares)
            asks = m.TenantAsked(tenant=name, incarnation=name, virtual_slices=kinds)
            proxy = Proxy(name, name, asks, arrival=0)
            world.proxies[name] = proxy
            world.ask(proxy, {})
            assert len(proxy.view) == len(kinds), f"leaked: {world.core.status(world.now)}"


TestResourceManager = ResourceManagerMachine.TestCase
TestResourceManager.settings = settings()
