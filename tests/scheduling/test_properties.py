"""Whatever workers, proxies, the network and restarts do, in any order, the books stay right."""

from __future__ import annotations

import dataclasses

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from shared_pathways_service.api.tenant_requests import TenantRequest
from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.scheduling.book import messages as m
from shared_pathways_service.scheduling.book.config import RmConfig
from shared_pathways_service.scheduling.book.reserved import Reservation
from shared_pathways_service.scheduling.book.states import SliceMark
from shared_pathways_service.scheduling.event_log import replay
from tests.scheduling.worker_machine import WorkerMachine
from tests.scheduling.world import LARGE, SMALL, Proxy, World

_TIMES = st.sampled_from([0.0, 0.5, 1.0, 5.0, 12.0, 16.0, 35.0])


class ResourceManagerMachine(WorkerMachine):
    @initialize(
        spares=st.integers(0, 1),
        ready=st.integers(0, 3),
        small=st.integers(2, 5),
        first_start=st.booleans(),
        grace_s=st.sampled_from([0.0, 3.0, 30.0]),
        aging_s=st.sampled_from([None, 10.0, 3600.0]),
        idle_s=st.sampled_from([None, (8.0, 0.0), (20.0, 5.0), (40.0, 30.0)]),
        executors=st.booleans(),
    )
    def begin(
        self,
        spares: int,
        ready: int,
        small: int,
        first_start: bool,
        grace_s: float,
        aging_s: float | None,
        idle_s: tuple[float, float] | None,
        executors: bool,
    ) -> None:
        slices = {SMALL: small, LARGE: 2}
        config = RmConfig(
            slices=slices,
            spares=spares,
            state_lost=not first_start,
            preemption_grace_s=grace_s,
            aging_s=aging_s,
            idle_release_s=None if idle_s is None else idle_s[0],
            idle_warning_s=0.0 if idle_s is None else idle_s[1],
            executors=executors,
        )
        self.world = World(config)
        if ready:
            for key in self.world.workers:
                self.world.start_worker(key)

    # ---- operators

    @precondition(lambda self: self.world.core.status(self.world.now).slices)
    @rule(data=st.data(), mark=st.sampled_from(list(SliceMark)))
    def operator_says_of_a_slice(self, data: st.DataObject, mark: SliceMark) -> None:
        known = [one.id for one in self.world.core.status(self.world.now).slices]
        self.world.mark(data.draw(st.sampled_from(known)), mark)

    @rule(
        small=st.booleans(),
        count=st.integers(1, 3),
        user=st.sampled_from(["", "", "ada"]),
        starts_in=st.sampled_from([0.0, 0.0, 10.0, 40.0]),
        lasts=st.sampled_from([5.0, 30.0, 100.0]),
    )
    def operator_reserves_slices(
        self, small: bool, count: int, user: str, starts_in: float, lasts: float
    ) -> None:
        world = self.world
        starts = world.now + starts_in
        world.reserve(
            Reservation(
                name=world.new_name(),
                instance_type=str(SMALL if small else LARGE),
                count=count,
                user=user or "bob",
                team="",
                starts=starts,
                ends=starts + lasts,
            )
        )

    @precondition(lambda self: self.world.reservations)
    @rule(data=st.data())
    def operator_cancels_a_reservation(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.world.reservations)))
        self.world.do(m.ReservationCancelled(name=name))

    # ---- tenants

    @rule(
        small=st.integers(0, 3),
        large=st.integers(0, 1),
        elastic=st.integers(0, 2),
        priority=st.sampled_from([0, 0, 0, 1, 3]),
        queue_timeout=st.sampled_from([None, 0.0, 20.0, float("inf")]),
        lifetime_s=st.sampled_from([None, None, 3.0, 20.0, 40.0]),
        tells=st.booleans(),
        user=st.sampled_from(["", "ada", "bob"]),
    )
    def tenant_asks(
        self,
        small: int,
        large: int,
        elastic: int,
        priority: int,
        queue_timeout: float | None,
        lifetime_s: float | None,
        tells: bool,
        user: str,
    ) -> None:
        kinds = (SMALL,) * small + (LARGE,) * large or (SMALL,)
        self.ask(
            kinds,
            min(elastic, len(kinds) - 1),
            priority,
            queue_timeout,
            lifetime_s,
            tells=tells,
            user=user,
        )

    @rule(
        small=st.integers(1, 2),
        elastic=st.integers(0, 1),
        priority=st.sampled_from([0, 0, 1, 2]),
    )
    def tenant_asks_and_waits(self, small: int, elastic: int, priority: int) -> None:
        self.ask((SMALL,) * small, min(elastic, small - 1), priority, float("inf"))

    def ask(
        self,
        kinds: tuple[InstanceType, ...],
        elastic: int = 0,
        priority: int = 0,
        queue_timeout: float | None = None,
        lifetime_s: float | None = None,
        *,
        tells: bool = True,
        user: str = "",
    ) -> Proxy:
        name = self.world.new_name()
        asks = m.TenantAsked(
            request=TenantRequest(
                name=name,
                virtual_slices=kinds,
                elastic_slices=elastic,
                priority=priority,
                queue_timeout_s=queue_timeout,
                max_lifetime_s=lifetime_s,
                user=user or name,
                host=name,
            ),
            incarnation=f"{name}-1",
        )
        proxy = Proxy(name, asks.incarnation, asks, arrival=0, tells=tells)
        self.world.proxies[name] = proxy
        self.world.ask(proxy, {})
        return proxy

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), tells=st.booleans())
    def tenant_works(self, data: st.DataObject, tells: bool) -> None:
        proxy = data.draw(st.sampled_from(self.alive))
        self.world.work(proxy)
        if tells:
            self.world.tell_of_work(proxy)

    @precondition(lambda self: self.connected)
    @rule(data=st.data())
    def proxy_tells_that_nothing_was_done(self, data: st.DataObject) -> None:
        self.world.tell_of_work(data.draw(st.sampled_from(self.connected)))

    @precondition(lambda self: self.connected)
    @rule(data=st.data())
    def proxy_is_cut_off(self, data: st.DataObject) -> None:
        self.world.cut_proxy(data.draw(st.sampled_from(self.connected)))

    @precondition(lambda self: self.away)
    @rule(data=st.data())
    def proxy_is_back(self, data: st.DataObject) -> None:
        proxy = data.draw(st.sampled_from(self.away))
        self.world.ask(proxy, proxy.view)

    @precondition(lambda self: self.away)
    @rule()
    def all_proxies_are_back(self) -> None:
        for proxy in self.away:
            self.world.ask(proxy, proxy.view)

    @precondition(lambda self: self.away)
    @rule(data=st.data())
    def proxy_is_back_with_stale_claims(self, data: st.DataObject) -> None:
        proxy = data.draw(st.sampled_from(self.away))
        self.world.ask(proxy, proxy.older_view)

    @precondition(lambda self: self.connected)
    @rule(data=st.data())
    def proxy_speaks_again_before_its_end_was_seen(self, data: st.DataObject) -> None:
        proxy = data.draw(st.sampled_from(self.connected))
        self.world.ask(proxy, proxy.view)

    @precondition(lambda self: self.connected)
    @rule(data=st.data())
    def impostor_is_turned_away(self, data: st.DataObject) -> None:
        proxy = data.draw(st.sampled_from(self.connected))
        self.world.do(dataclasses.replace(proxy.asks, incarnation="impostor", claims=()))

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def tenant_is_released(self, data: st.DataObject) -> None:
        self.world.release(data.draw(st.sampled_from(self.alive)))

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

    @rule(lose_disk=st.sampled_from([False, False, True]), all_return=st.booleans())
    def manager_restarts(self, lose_disk: bool, all_return: bool) -> None:
        self.world.restart(lose_disk=lose_disk)
        if all_return:
            self.all_workers_are_back()
            self.all_proxies_are_back()

    @rule(instructions=st.integers(0, 4))
    def manager_will_die_within_an_event(self, instructions: int) -> None:
        self.world.crash_after = instructions

    @rule(since=st.floats(-120.0, 0.0), until=st.floats(-120.0, 10.0))
    def usage_is_asked_for(self, since: float, until: float) -> None:
        world = self.world
        report = world.core.status(world.now)
        world.books.judge_usage(report, world.now, world.now + since, world.now + until)

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
        for one in world.core.status(world.now).slices:
            world.mark(one.id, SliceMark.NONE)
        for reserved in list(world.reservations):
            world.do(m.ReservationCancelled(name=reserved))
        for kind, count in world.config.slices.items():
            kinds = (kind,) * (count - world.config.spares)
            proxy = self.ask(kinds)
            assert len(proxy.view) == len(kinds), f"leaked: {world.core.status(world.now)}"
        run_again = replay(world.log)
        assert run_again.difference is None, run_again.difference


TestResourceManager = ResourceManagerMachine.TestCase
# (After each of up to forty steps it judges the whole book: an example costs as much as a hundred
# of other tests.)
TestResourceManager.settings = settings(max_examples=settings().max_examples * 2 // 5)
