"""The world itself: what happens in it, and what the core says to that."""

from __future__ import annotations

import dataclasses
import math

from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.events.tenants import TenantRunning
from shared_pathways_service.scheduling.book import messages as m
from shared_pathways_service.scheduling.book.config import RmConfig
from shared_pathways_service.scheduling.book.holdings import StatusReport
from shared_pathways_service.scheduling.book.persisted import (
    Persist,
    Restored,
)
from shared_pathways_service.scheduling.book.reserved import Reservation
from shared_pathways_service.scheduling.book.states import (
    SliceMark,
)
from shared_pathways_service.scheduling.core import ResourceManagerCore
from shared_pathways_service.scheduling.event_log import decisions_of, epoch_line, event_line
from tests.scheduling.books import Books
from tests.scheduling.harness import events_of
from tests.scheduling.world.delivery import Delivery
from tests.scheduling.world.executors import Executors
from tests.scheduling.world.facts import Facts, check_census, planned_tenants
from tests.scheduling.world.parties import BEAT_S, Proxy, Worker
from tests.scheduling.world.queue_rules import QueueRules
from tests.scheduling.world.slice_rules import SliceRules


class World(Facts):
    """Carries out instructions as the server does, and judges by the rules of the service alone.

    It keeps what each proxy was told, and never looks into the core but through `status`.
    """

    def __init__(self, config: RmConfig) -> None:
        super().__init__(config)
        self.executors = Executors(self)
        self._delivery = Delivery(self, self.executors)
        self._slice_rules = SliceRules(self)
        self._queue_rules = QueueRules(self)
        self._begin_log(config, Restored())

    def _begin_log(self, config: RmConfig, restored: Restored) -> None:
        self.log.append(epoch_line(config, restored, self.now, "test"))

    def new_name(self) -> str:
        self.made += 1
        return f"n{self.made}"

    def start_worker(self, key: str) -> None:
        worker = self.workers[key]
        self.executors.end(worker)
        worker.over.clear()
        worker.incarnation = self.new_name()
        worker.running = True
        worker.stopped = False
        worker.welcomed_at = None
        self.broke[worker.slice_id] = self.replaced[worker.slice_id] = self.step + 1
        self.connect_worker(key)

    def connect_worker(self, key: str) -> None:
        worker = self.workers[key]
        if worker.connected and self._is_heard:
            self.broke[worker.slice_id] = self.step + 1
        # The stream is a new one: until its first report, the manager cannot notify the holder.
        worker.connected, worker.reported = True, False
        self.do(
            m.WorkerJoined(
                slice_id=worker.slice_id,
                instance_type=worker.kind,
                host_index=worker.host,
                incarnation=worker.incarnation,
                welcomed_at=worker.welcomed_at,
            )
        )
        self.report_executor(worker)

    def report_executor(self, worker: Worker) -> None:
        """Has a worker report whether its executor serves, or ended by itself."""
        report = self.executors.report_of(worker)
        if worker.connected and report is not None:
            worker.reported = self._is_heard
            if isinstance(report, m.ExecutorEnded) and self._is_heard:
                self._break_placement(worker.slice_id, report.generation)
            self.do(report)

    def _break_placement(self, slice_id: str, generation: int) -> None:
        """Breaks a slice for this placement: it may have a later one, not yet assigned."""
        if generation not in self.reported_at:  # else the proxy's report, which may wait, ends it
            broke = self.placings[generation].step + 1
            self.broke[slice_id] = max(broke, self.broke.get(slice_id, -1))

    def disconnect_worker(self, key: str, *, dies: bool) -> None:
        worker = self.workers[key]
        was_connected = worker.connected
        worker.connected = False
        if dies:
            worker.running = False
        if dies or self._is_heard:
            self.broke[worker.slice_id] = self.step + 1
        if was_connected:
            self.do(
                m.WorkerEnded(
                    slice_id=worker.slice_id,
                    host_index=worker.host,
                    incarnation=worker.incarnation,
                    reason="cut",
                )
            )

    @property
    def _is_heard(self) -> bool:
        """Whether the manager lives long enough to write down what the next event means."""
        return self.crash_after is None or self.crash_after > 0

    def ask(self, proxy: Proxy, claims: dict[int, tuple[str, int]]) -> None:
        if not self.core.knows(proxy.name):
            self.made += 1
            proxy.arrival = self.made
            proxy.asked_at = self.now
            proxy.came_at = self.step + 1
        given_up = proxy.given_up.values()
        claims = {i: claim for i, claim in claims.items() if claim[1] not in given_up}
        proxy.honest = claims == {i: c for i, c in proxy.view.items() if c[1] not in given_up}
        proxy.running = False
        proxy.connected = self._is_heard
        proxy.queued = None
        proxy.parked = False
        proxy.owes = True
        proxy.view, proxy.executors = dict(claims), {}
        self.do(
            dataclasses.replace(
                proxy.asks,
                running=proxy.ran,
                idle_count=proxy.idle_count,
                claims=tuple(
                    m.Claim(virtual_index=index, slice_id=slice_id, generation=generation)
                    for index, (slice_id, generation) in claims.items()
                ),
            )
        )

        for index, generation in list(proxy.given_up.items()):
            if proxy.connected:
                self.do(self.executors.unreachable(proxy, index, generation))

    def work(self, proxy: Proxy) -> None:
        """Has a proxy compute, of which it has yet to tell."""
        proxy.worked += 1
        proxy.active_at = self.now

    def tell_of_work(self, proxy: Proxy) -> None:
        """Has a proxy tell whether it works."""
        if not (proxy.connected and proxy.tells and self.config.idle_release_s):
            return
        proxy.owes = False
        if self._is_heard:
            proxy.told = proxy.worked
            proxy.answered = proxy.warned_until is not None
        grant = self.grants.get(proxy.name)
        if grant is not None and grant.parked is not None and proxy.worked > grant.parked:
            # It asks anew by that.
            self.made += 1
            proxy.arrival, proxy.asked_at = self.made, self.now
        self.do(
            m.TenantActivity(
                tenant=proxy.name,
                incarnation=proxy.incarnation,
                count=proxy.worked,
                idle_s=self.now - max(proxy.active_at, proxy.asked_at),
            )
        )

    def _tell_what_is_owed(self) -> None:
        for proxy in self.proxies.values():
            if proxy.owes or proxy.told != proxy.worked:
                self.tell_of_work(proxy)
        for worker in self.workers.values():
            if worker.ended and not worker.reported:
                self.report_executor(worker)

    def release(self, proxy: Proxy) -> None:
        proxy.released = True
        self.do(m.TenantReleased(tenant=proxy.name, reason="its owner let go"))

    def cut_proxy(self, proxy: Proxy) -> None:
        proxy.connected = False
        proxy.away_since = self.now
        self.do(m.TenantStreamEnded(tenant=proxy.name, incarnation=proxy.incarnation))

    def let_time_pass(self, seconds: float) -> None:
        """Ticks at each of the core's deadlines; workers that are not stopped beat meanwhile."""
        end = self.now + seconds
        beat_at = self.now
        while True:
            due = self.core.next_deadline()
            due = math.inf if due is None else max(due, self.now)
            self.now = min(end, due, beat_at)
            self._tell_what_is_owed()
            if self.now == beat_at:
                self._beat()
                beat_at += BEAT_S
            self.do(m.Tick())
            if self.now >= end:
                return

    def _beat(self) -> None:
        for worker in self.workers.values():
            if worker.connected and not worker.stopped:
                self.do(
                    m.WorkerBeat(
                        slice_id=worker.slice_id,
                        host_index=worker.host,
                        incarnation=worker.incarnation,
                    )
                )

    def restart(self, *, lose_disk: bool) -> None:
        """Kills the resource manager and starts it again: every stream is broken."""
        self.step += 1
        self.now += 1.0
        for worker in self.workers.values():
            worker.connected = False
        for proxy in self.proxies.values():
            if proxy.connected and self.core.knows(proxy.name):
                proxy.away_since = self.now
            proxy.connected = False
        self.started_at = self.now
        self.reported_at.clear()
        restored = Restored(
            grants=tuple(self.grants.values()),
            last_generation=self.last_generation,
            last_order=self.last_order,
            state_lost=self.state_lost,
            marks=tuple(self.marks.values()),
            reservations=tuple(self.reservations.values()),
        )
        if lose_disk:
            self.disk_lost_at = self.now
            self.disk_missing = True
            self.books = Books()
            self.grants, self.last_generation, self.last_order = {}, 0, 0
            self.marks, self.reservations = {}, {}
            restored = Restored()
        config = dataclasses.replace(self.config, state_lost=self.disk_missing)
        for proxy in self.proxies.values():
            proxy.noticed_until = proxy.warned_until = None
        self._begin_log(config, restored)
        self.core = ResourceManagerCore(config, restored, self.now)
        self.judge_restored()
        self.planned = set()
        self.marked = {one.slice_id: one.mark for one in self.marks.values()}
        self.do(m.Tick())

    def reserve(self, asked: Reservation) -> None:
        """Reserves slices, if that can be."""
        if self.core.refusal_of(asked, self.now) is None:
            self.do(m.ReservationMade(reservation=asked))
            usable = self.config.slices[InstanceType.parse(asked.instance_type)]
            assert asked.count <= usable - self.config.spares

    def mark(self, slice_id: str, mark: SliceMark) -> None:
        match mark:
            case SliceMark.CORDONED:
                self.do(m.SliceCordoned(slice_id=slice_id))
            case SliceMark.DRAINING:
                self.do(m.SliceDrained(slice_id=slice_id))
            case SliceMark.NONE:
                self.do(m.SliceUncordoned(slice_id=slice_id))

    def do(self, event: m.ResourceManagerEvent) -> None:
        """Hands an event to the core and carries out what it says, or dies half way."""
        self.sound = False
        self._do(event)
        self.sound = True

    def _do(self, event: m.ResourceManagerEvent) -> None:
        self.step += 1
        instructions = self.core.handle(event, self.now)
        self.log.append(event_line(event, self.now, decisions_of(instructions)))
        self.core.validate_state()
        persists = [i for i, one in enumerate(instructions) if isinstance(one, Persist)]
        assert persists in ([], [0]), "what is on the disk comes first"
        crash_after, self.crash_after = self.crash_after, None
        self.taken, self.idled = (
            {
                str(event.tenant): str(event.reason)
                for event in events_of(instructions)
                if event.kind == kind
            }
            for kind in ("tenant.preempted", "tenant.idled")
        )
        self.listening = {name for name, proxy in self.proxies.items() if proxy.connected}
        for one in instructions if crash_after != 0 else ():
            if isinstance(one, m.RefuseWorker):
                self.broke[one.slice_id] = self.step
        for instruction in instructions[:crash_after]:
            self._delivery.carry_out(instruction)
        if crash_after is not None:
            self.restart(lose_disk=False)
            return
        after = self.core.status(self.now)
        check_census(self.core.census(self.now), after)
        self._judge(after, instructions)
        self.planned = planned_tenants(after)
        self.marked = {one.slice_id: one.mark for one in self.marks.values()}

    def _judge(self, after: StatusReport, instructions: list[m.Instruction]) -> None:
        self._slice_rules.judge_views(after)
        self._slice_rules.judge_preempted()
        self._slice_rules.judge_released()
        self._slice_rules.judge_reserved(after)
        self._slice_rules.judge_marked(after)
        self.books.judge(after)
        self.executors.judge(after)
        started = {
            event.tenant: event.placed
            for event in events_of(instructions)
            if isinstance(event, TenantRunning)
        }
        waits = [self.proxies[entry.tenant] for entry in after.queue]
        for name, placed in started.items():
            assert name is not None
            proxy = self.proxies[name]
            assert isinstance(placed, int)
            if self.disk_lost_at < 0:
                assert placed >= proxy.needed, "half of a gang was placed"
            if after.state == "serving":
                self._queue_rules.judge_overtaking(proxy, waits, after)
        if after.state == "serving":
            self._queue_rules.judge_waiting(after, waits)
            self._slice_rules.judge_broken(after)
        self._slice_rules.judge_spares(after, instructions)
        for one in instructions:
            if isinstance(one, m.RefuseTenant) and one.kind is m.RefusalKind.SLICES_TAKEN:
                proxy = self.proxies[one.tenant]
                if proxy.asks.request.queue_timeout_s is None:
                    assert not self._queue_rules.fits(proxy, after, waits), (
                        "refused, though it would fit"
                    )

    def places(self) -> dict[str, tuple[int, str, tuple[str, ...]]]:
        queue = self.core.status(self.now).queue
        return {entry.tenant: (entry.position, entry.reason, entry.holders) for entry in queue}

    def judge_the_told(self) -> None:
        """Once the line has been quiet for a while, everybody in it knows their place."""
        for name, place in self.places().items():
            proxy = self.proxies[name]
            if proxy.connected:
                assert proxy.queued is not None
                told = (proxy.queued.position, proxy.queued.reason, proxy.queued.holders)
                assert told == place, f"{name} was told {told}, and is at {place}"
