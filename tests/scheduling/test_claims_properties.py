"""Restarts without a state, true and false claims: nobody holds a slice twice, promises are kept.

The proxies' own views are kept from what they were told, over clocks that were set back, too.
"""

from __future__ import annotations

import dataclasses
import math

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from shared_pathways_service.api.tenant_requests import TenantRequest
from shared_pathways_service.events.recorded_decisions import DecisionKind
from shared_pathways_service.scheduling.book import messages as m
from shared_pathways_service.scheduling.book.holdings import StatusReport
from shared_pathways_service.scheduling.book.persisted import Persist
from tests.scheduling.harness import SMALL, Rm

_GHOST = "ghost"
#: Of claims: how far their generations are from those that are given now, and never one of them.
_OFFSETS = st.sampled_from([-9_999_500, -500, 500, 3_600_500, 80_000_500, 2**62])
_MARKS = (m.SliceCordoned, m.SliceDrained, m.SliceUncordoned)


@dataclasses.dataclass
class Proxy:
    asks: m.TenantAsked
    connected: bool = True
    view: dict[int, tuple[str, int]] = dataclasses.field(default_factory=dict)


class ClaimsMachine(RuleBasedStateMachine):
    rm: Rm

    @initialize(
        slices=st.integers(2, 4),
        spares=st.integers(0, 1),
        grace_s=st.sampled_from([3, 30]),
        executors=st.booleans(),
    )
    def begin(self, slices: int, spares: int, grace_s: float, executors: bool) -> None:
        self.rm = Rm(
            slices,
            spares=spares,
            preemption_grace_s=grace_s,
            tenant_ttl_s=15.0,
            hung_after_s=math.inf,
            recovering_s=20.0,
            executors=executors,
        )
        self.assigned: dict[str, int] = {}  # what a worker's process runs an executor for
        self.adopted: set[tuple[str, int]] = set()  # placements that were only claimed
        self.names = [f"slice-{index}" for index in range(slices)]
        self.lives = dict.fromkeys(self.names, 1)
        self.up = set(self.names)
        self.proxies: dict[str, Proxy] = {}
        self.made = 0

    # ---- what happens

    @rule(data=st.data())
    def worker_comes_or_goes(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.names))
        if name in self.up:
            self.up.remove(name)
            self.do(self.ended(name))
            self.lives[name] += data.draw(st.integers(0, 1))
        else:
            self.join(name)

    @rule()
    def all_workers_are_there(self) -> None:
        for name in self.names:
            if name not in self.up:
                self.join(name)

    @rule(
        count=st.integers(1, 2),
        elastic=st.integers(0, 1),
        priority=st.sampled_from([0, 0, 1, 2]),
        queue=st.sampled_from([None, math.inf, math.inf]),
    )
    def tenant_asks(self, count: int, elastic: int, priority: int, queue: float | None) -> None:
        self.ask(count, min(elastic, count - 1), priority, queue)

    @rule(
        names=st.lists(st.integers(0, 4), min_size=1, max_size=2, unique=True),
        offsets=st.lists(_OFFSETS, min_size=2, max_size=2),
        running=st.booleans(),
    )
    def stranger_claims(self, names: list[int], offsets: list[int], running: bool) -> None:
        now = int(self.rm.now * 1000) + 4 * self.made
        claims = {
            index: ([*self.names, _GHOST][min(name, len(self.names))], max(1, now + offset))
            for index, (name, offset) in enumerate(zip(names, offsets, strict=False))
        }
        if len({generation for _, generation in claims.values()}) < len(claims):
            return  # no proxy was ever told such a thing
        if len({slice_id for slice_id, _ in claims.values()}) == len(claims):
            self.ask(len(claims), claims=claims, running=running)

    @precondition(lambda self: self.kept)
    @rule(data=st.data(), offset=_OFFSETS)
    def stranger_claims_what_is_kept(self, data: st.DataObject, offset: int) -> None:
        name = data.draw(st.sampled_from(self.kept))
        generation = max(1, int(self.rm.now * 1000) + 4 * self.made + offset)
        self.ask(1, claims={0: (name, generation)}, running=True)

    @precondition(lambda self: self.connected)
    @rule(data=st.data())
    def proxy_is_cut_off(self, data: st.DataObject) -> None:
        proxy = data.draw(st.sampled_from(self.connected))
        proxy.connected = False
        self.do(
            m.TenantStreamEnded(tenant=proxy.asks.request.name, incarnation=proxy.asks.incarnation)
        )

    @precondition(lambda self: self.away)
    @rule(data=st.data())
    def proxy_is_back(self, data: st.DataObject) -> None:
        self.greet(data.draw(st.sampled_from(self.away)))

    @precondition(lambda self: self.proxies)
    @rule(data=st.data())
    def tenant_is_released(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.proxies)))
        self.do(m.TenantReleased(tenant=name, reason=""))
        self.proxies.pop(name, None)

    @rule(data=st.data(), marked=st.sampled_from(_MARKS))
    def operator_says(self, data: st.DataObject, marked: type[m.SliceCordoned]) -> None:
        name = data.draw(st.sampled_from(self.names))
        if self.rm.core.knows_slice(name):
            self.do(marked(slice_id=name))

    @rule(seconds=st.sampled_from([0.0, 1.0, 5.0, 14.0, 21.0, 35.0]))
    def time_passes(self, seconds: float) -> None:
        end = self.rm.now + seconds
        while (due := self.rm.core.next_deadline()) is not None and due <= end:
            self.rm.now = max(self.rm.now, due)
            self.do(m.Tick())
        self.rm.now = end

    @rule(
        set_back_s=st.sampled_from([0.0, 0.0, 3600.0]),
        ended=st.booleans(),
        back=st.booleans(),
        promises=st.booleans(),
    )
    def state_is_lost(self, set_back_s: float, ended: bool, back: bool, promises: bool) -> None:
        """Killed with its disk; its successor's clock may be behind."""
        self.rm.now -= set_back_s
        self.rm = self.rm.restarted(state_lost=True)
        self.up.clear()
        for proxy in self.proxies.values():
            proxy.connected = False
        if back:
            self.all_workers_are_there()
        if ended:
            self.time_passes(21.0)
        if ended and promises:
            self.ask(1)
            self.ask(2, priority=3, queue=math.inf)

    # ---- parts

    @property
    def connected(self) -> list[Proxy]:
        return [proxy for proxy in self.proxies.values() if proxy.connected]

    @property
    def kept(self) -> list[str]:
        return [one.id for one in self.report.slices if one.kept_for]

    @property
    def away(self) -> list[Proxy]:
        return [proxy for proxy in self.proxies.values() if not proxy.connected]

    def ended(self, name: str) -> m.WorkerEnded:
        incarnation = f"{name}/0/{self.lives[name]}"
        return m.WorkerEnded(slice_id=name, host_index=0, incarnation=incarnation, reason="")

    def join(self, name: str) -> None:
        self.up.add(name)
        incarnation = f"{name}/0/{self.lives[name]}"
        said = self.do(
            m.WorkerJoined(
                slice_id=name,
                instance_type=SMALL,
                host_index=0,
                incarnation=incarnation,
                welcomed_at=self.rm.welcomed.get(incarnation),
            )
        )
        for one in said:
            if isinstance(one, m.WelcomeWorker):
                self.rm.welcomed.setdefault(one.incarnation, one.last_generation)
            elif isinstance(one, m.RefuseWorker):
                self.up.discard(one.slice_id)

    def ask(
        self,
        count: int,
        elastic: int = 0,
        priority: int = 0,
        queue: float | None = None,
        *,
        claims: dict[int, tuple[str, int]] | None = None,
        running: bool = False,
    ) -> None:
        self.made += 1
        name = f"n{self.made}"
        asks = m.TenantAsked(
            request=TenantRequest(
                name=name,
                virtual_slices=(SMALL,) * count,
                elastic_slices=elastic,
                priority=priority,
                queue_timeout_s=queue,
            ),
            incarnation=name,
            running=running,
        )
        self.proxies[name] = Proxy(asks, view=claims or {})
        self.greet(self.proxies[name])

    def greet(self, proxy: Proxy) -> None:
        proxy.connected = True
        claims = tuple(
            m.Claim(virtual_index=index, slice_id=slice_id, generation=generation)
            for index, (slice_id, generation) in proxy.view.items()
        )
        before = self.report
        self.do(dataclasses.replace(proxy.asks, claims=claims))
        known = proxy.asks.request.name in {one.name for one in before.tenants}
        if before.state == "serving" and claims and not known:
            self.judge_claims(proxy, {one.slice_id for one in claims}, before)

    @property
    def report(self) -> StatusReport:
        return self.rm.core.status(self.rm.now)

    def do(self, event: m.ResourceManagerEvent) -> list[m.Instruction]:
        said = self.rm.do(event)
        for one in said:
            match one:
                case m.NotifyPlaced():
                    self.proxies[one.tenant].view[one.virtual_index] = one.slice_id, one.generation
                case m.NotifyUnplaced():
                    view = self.proxies[one.tenant].view
                    if view.get(one.virtual_index, ("", 0))[1] <= one.generation:
                        view.pop(one.virtual_index, None)
                case m.NotifyRunning():
                    proxy = self.proxies[one.tenant]
                    proxy.asks = dataclasses.replace(proxy.asks, running=True)
                case m.NotifyQueued():
                    proxy = self.proxies[one.tenant]
                    proxy.asks = dataclasses.replace(proxy.asks, running=False)
                case m.RefuseTenant():
                    self.proxies.pop(one.tenant, None)
                case Persist():
                    self.adopted.update(
                        (decision.slice, decision.generation)
                        for decision in one.decisions
                        if decision.kind == DecisionKind.CLAIMED
                    )
                case m.AssignWorker():
                    self.judge_assignment(one)
                case _:
                    pass
        self.judge()
        return said

    # ---- whether that was right

    def judge_assignment(self, one: m.AssignWorker) -> None:
        """An executor whose placement is only claimed has not been ended meanwhile."""
        before = self.assigned.get(one.incarnation)
        if (one.slice_id, one.generation) in self.adopted:
            assert before in (None, one.generation), f"{one.slice_id}: its arrays are gone"
        self.assigned[one.incarnation] = one.generation

    def judge(self) -> None:
        """Who is there believes what is so, and no two believe that they hold one slice."""
        known = {tenant.name for tenant in self.report.tenants}
        holders: dict[str, str] = {}
        for name, proxy in self.proxies.items():
            if proxy.connected:
                assert name in known, f"{name} hears nothing more"
                assert proxy.view == self.rm.placed(name)
                for slice_id, _ in proxy.view.values():
                    assert slice_id not in holders, f"{slice_id}: {name} and {holders[slice_id]}"
                    holders[slice_id] = name

    def judge_claims(self, proxy: Proxy, claimed: set[str], before: StatusReport) -> None:
        """Once it serves, a claim takes nothing that somebody was given or promised."""
        after = {one.id: one for one in self.report.slices}
        for one in before.slices:
            if one.tenant:
                assert after[one.id].tenant == one.tenant, f"{one.tenant} lost it to a claim"
            if one.kept_for:
                assert after[one.id].kept_for == one.kept_for, f"promised to {one.kept_for}"
        if proxy.asks.request.name in self.proxies:
            free = {one.id for one in before.slices if not one.tenant and not one.kept_for}
            assert claimed & free, "let in before the line without anything that could be its"


TestClaims = ClaimsMachine.TestCase
# (As of `test_properties`.)
TestClaims.settings = settings(max_examples=settings().max_examples * 2 // 5)
