"""A world around the resource manager's core: its disk, workers, proxies, a network that breaks.

The world carries out instructions as the server does, keeps what each proxy was told, and judges
from that alone, by the rules of the service; it never looks into the core but through `status`.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter

from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.scheduling.book import messages as m
from shared_pathways_service.scheduling.book.census import Census
from shared_pathways_service.scheduling.book.config import RmConfig
from shared_pathways_service.scheduling.book.holdings import StatusReport
from shared_pathways_service.scheduling.book.persisted import (
    Persist,
    PersistedGrant,
    PersistedMark,
    Restored,
)
from shared_pathways_service.scheduling.book.reserved import Reservation
from shared_pathways_service.scheduling.book.states import (
    SliceMark,
    SliceState,
    TenantState,
    VirtualSliceState,
)
from shared_pathways_service.scheduling.core import ResourceManagerCore
from shared_pathways_service.scheduling.event_log import decisions_of, epoch_line, event_line
from shared_pathways_service.scheduling.policies.aging import longest_lead
from tests.scheduling.books import Books

SMALL = InstanceType.parse("tpuv6e:2x2")
LARGE = InstanceType.parse("tpuv5e:2x4")  # two hosts
BEAT_S = 10.0


@dataclasses.dataclass
class Worker:
    slice_id: str
    kind: InstanceType
    host: int
    incarnation: str = ""
    running: bool = False
    connected: bool = False
    stopped: bool = False
    welcomed_at: int | None = None


@dataclasses.dataclass
class Proxy:
    name: str
    incarnation: str
    asks: m.TenantAsked
    arrival: int
    asked_at: float = 0.0
    ends_at: float = math.inf  # its stated lifetime, as far as the disk has known
    noticed_until: float | None = None
    connected: bool = False
    running: bool = False
    ran: bool = False
    away_since: float = 0.0
    came_at: int = 0
    released: bool = False
    honest: bool = True
    tells: bool = True  # whether it works, as all but the oldest do
    worked: int = 0  # looks that saw it at work
    active_at: float = 0.0
    told: int = -1  # the last of them that it has told of
    owes: bool = False  # word of its work, which it was asked for
    warned_until: float | None = None
    answered: bool = False  # that warning
    parked: bool = False
    idle_count: int | None = None  # of the notice by which it is parked
    view: dict[int, tuple[str, int]] = dataclasses.field(default_factory=dict)
    older_view: dict[int, tuple[str, int]] = dataclasses.field(default_factory=dict)
    queued: m.TellQueued | None = None
    refused: m.RefuseTenant | None = None

    @property
    def needed(self) -> int:
        return len(self.asks.virtual_slices) - self.asks.num_elastic


@dataclasses.dataclass(frozen=True)
class Placing:
    tenant: str
    index: int
    slice_id: str
    step: int


class World:
    def __init__(self, config: RmConfig) -> None:
        self.config = config
        self.now = 1e9
        self.step = 0
        self.grants: dict[str, PersistedGrant] = {}
        self.last_generation = 0
        self.last_order = 0
        self.state_lost = False
        self.marks: dict[str, PersistedMark] = {}
        self.reservations: dict[str, Reservation] = {}
        self.disk_missing = False
        self.core = ResourceManagerCore(config, None, self.now)
        self.workers = {
            f"{kind.family}-{i}/{host}": Worker(f"{kind.family}-{i}", kind, host)
            for kind, count in config.slices.items()
            for i in range(count)
            for host in range(kind.hosts)
        }
        self.proxies: dict[str, Proxy] = {}
        self.placings: dict[int, Placing] = {}
        self.broke: dict[str, int] = {}  # slice: step in which it last had a reason to be lost
        self.replaced: dict[str, int] = {}  # slice: step in which it last got another process
        self.disk_lost_at = -math.inf
        self.started_at = self.now
        self.made = 0
        self.crash_after: int | None = None
        self.sound = True  # no judgement has failed
        self.planned: set[str] = set()  # who waited for a preemption before the last event
        self.marked: dict[str, SliceMark] = {}  # what operators had said before it
        self.taken: dict[str, str] = {}  # who was preempted by the last event: why
        self.idled: dict[str, str] = {}  # whose slices were taken back by the last event: why
        self.log: list[str] = []
        self._begin_log(config, Restored())
        self.books = Books()

    def _begin_log(self, config: RmConfig, restored: Restored) -> None:
        self.log.append(epoch_line(config, restored, self.now, "test"))

    # ---- what happens

    def new_name(self) -> str:
        self.made += 1
        return f"n{self.made}"

    def start_worker(self, key: str) -> None:
        worker = self.workers[key]
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
        worker.connected = True
        self.do(
            m.WorkerJoined(
                slice_id=worker.slice_id,
                instance_type=worker.kind,
                host_index=worker.host,
                incarnation=worker.incarnation,
                welcomed_at=worker.welcomed_at,
            )
        )

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
        proxy.honest = claims == proxy.view
        proxy.running = False
        proxy.connected = self._is_heard
        proxy.queued = None
        proxy.parked = False
        proxy.owes = True
        proxy.view = dict(claims)
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
        self._judge_restored()
        self.planned = set()
        self.marked = {one.slice_id: one.mark for one in self.marks.values()}
        self.do(m.Tick())

    def _judge_restored(self) -> None:
        """What was written down is so again."""
        known = {tenant.name: tenant for tenant in self.core.status(self.now).tenants}
        reserved = {one.reservation for one in self.core.status(self.now).reservations}
        assert reserved == set(self.reservations.values())
        assert known.keys() == self.grants.keys()
        for name, grant in self.grants.items():
            placed = {
                one.index: (one.slice_id, one.generation)
                for one in known[name].slices
                if one.slice_id
            }
            assert placed == dict(grant.placements)
            state = known[name].state
            assert (state is TenantState.RUNNING) == grant.running
            assert (state is TenantState.PREEMPTED) == grant.preempted
            assert (state is TenantState.IDLE) == (grant.parked is not None)
            assert bool(known[name].preempting_by) == (grant.notice is not None)

    # ---- operators

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

    # ---- what is done about it

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
                str(one.tenant): str(one.reason)
                for one in instructions
                if isinstance(one, m.Announce) and one.kind == kind
            }
            for kind in ("tenant.preempted", "tenant.idled")
        )
        for one in instructions if crash_after != 0 else ():
            if isinstance(one, m.RefuseWorker):
                self.broke[one.slice_id] = self.step
        for instruction in instructions[:crash_after]:
            self._carry_out(instruction)
        if crash_after is not None:
            self.restart(lose_disk=False)
            return
        after = self.core.status(self.now)
        _check_census(self.core.census(self.now), after)
        self._judge(after, instructions)
        self.planned = _planned(after)
        self.marked = {one.slice_id: one.mark for one in self.marks.values()}

    def _carry_out(self, one: m.Instruction) -> None:
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
            case m.RefuseTenant():
                self._told_refused(one)
            case m.EndTenantStream():
                assert self.proxies[one.tenant].incarnation != one.incarnation
            case m.Announce(kind="tenant.preempted", tenant=str(name)):
                # From here on, what it is placed on is placed for the first time.
                self.proxies[name].came_at = self.step
            case m.WelcomeTenant() | m.Announce():
                pass
            case _:
                self._tell(one)

    def _judge_end(self, slice_id: str, generation: int) -> None:
        """A placement ends before its tenant does only if something is wrong with its slice."""
        broken = self.broke.get(slice_id, -1) >= self.placings[generation].step
        silent = self.now >= self.started_at + self.config.recovering_s
        disk_lost = self.disk_lost_at >= 0
        taken = self.placings[generation].tenant in self.taken | self.idled
        drained = self.marked.get(slice_id) is SliceMark.DRAINING
        drained |= slice_id in self.marks and self.marks[slice_id].mark is SliceMark.DRAINING
        assert broken or silent or disk_lost or taken or drained, (
            f"nothing is wrong with {slice_id}"
        )

    def _tell(self, one: m.Instruction) -> None:
        match one:
            case m.TellPreempting():
                self._told_preempting(one)
            case m.TellIdle():
                self._told_idle(one)
            case m.TellPlaced():
                self._told_placed(one)
            case m.TellUnplaced():
                self._told_unplaced(one)
            case m.TellRunning():
                proxy = self._listening(one.tenant)
                assert one.placed >= proxy.needed, "half of a gang runs"
                assert one.placed == len(proxy.view), "told to run before it was told where"
                proxy.running = proxy.ran = proxy.owes = True
                proxy.parked, proxy.idle_count = False, None
            case m.TellQueued():
                proxy = self._listening(one.tenant)
                assert proxy.running or one != proxy.queued, "told the same thing twice"
                proxy.queued = one
                proxy.running = proxy.parked = False
                proxy.idle_count = None

    def _persist(self, one: Persist) -> None:
        self.disk_missing = False
        for marked in one.marks:
            self.marks[marked.slice_id] = marked
            if marked.mark is SliceMark.NONE:
                del self.marks[marked.slice_id]
        self.reservations.update({new.name: new for new in one.reservations})
        for over in one.reservations_over:
            del self.reservations[over]
        for decision in one.decisions:
            self.books.hear(decision)
        highest = max(self.placings, default=0)
        for grant in one.grants:
            self._granted(grant, highest)
        for name in one.forgotten:
            del self.grants[name]
        assert one.last_generation >= self.last_generation
        assert one.last_order >= self.last_order
        self.state_lost = one.state_lost
        self.last_generation, self.last_order = one.last_generation, one.last_order

    def _granted(self, grant: PersistedGrant, highest: int) -> None:
        former = self.grants.get(grant.tenant)
        for slice_id, generation in former.placements.values() if former else ():
            if (slice_id, generation) not in grant.placements.values():
                self._judge_end(slice_id, generation)
        self.grants[grant.tenant] = grant
        if grant.ends_at is not None:
            self.proxies[grant.tenant].ends_at = grant.ends_at
        if grant.parked is not None:
            # From here on, what it is placed on is placed for the first time.
            self.proxies[grant.tenant].came_at = self.step
        for index, (slice_id, generation) in grant.placements.items():
            known = self.placings.get(generation)
            what = (grant.tenant, index, slice_id)
            if known is None:
                assert generation > highest, f"generation {generation} after {highest}"
                assert self.core.status(self.now).state == "serving", "granted while recovering"
                self.placings[generation] = Placing(*what, self.step)
            else:
                assert what == (known.tenant, known.index, known.slice_id), "a generation twice"

    def _worker(self, one: m.WelcomeWorker | m.RefuseWorker) -> Worker:
        return self.workers[f"{one.slice_id}/{one.host_index}"]

    def _listening(self, name: str) -> Proxy:
        proxy = self.proxies[name]
        assert proxy.connected, "a proxy without a stream was told something"
        return proxy

    def _told_placed(self, one: m.TellPlaced) -> None:
        proxy = self._listening(one.tenant)
        placing = self.placings.get(one.generation)
        what = (one.tenant, one.virtual_index, one.slice_id)
        assert placing is not None, "answered before it was on the disk"
        assert what == (placing.tenant, placing.index, placing.slice_id)
        assert one.virtual_index not in proxy.view, "placed without having been unplaced"
        assert proxy.asks.virtual_slices[one.virtual_index] == one.instance_type
        proxy.older_view = dict(proxy.view)
        proxy.view[one.virtual_index] = (one.slice_id, one.generation)

    def _told_unplaced(self, one: m.TellUnplaced) -> None:
        proxy = self._listening(one.tenant)
        if proxy.view.get(one.virtual_index) != (one.slice_id, one.generation):
            return
        del proxy.view[one.virtual_index]
        grant = self.grants.get(one.tenant)
        is_so = grant and grant.placements.get(one.virtual_index)
        assert is_so != (one.slice_id, one.generation), "unplaced for the proxy, placed on the disk"

    def _told_preempting(self, one: m.TellPreempting) -> None:
        proxy = self._listening(one.tenant)
        if not one.indices:
            proxy.noticed_until = None if one.withdrawn else self.now + one.grace_s
        assert set(one.indices) <= proxy.view.keys()

    def _told_idle(self, one: m.TellIdle) -> None:
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
            proxy.warned_until = self.now + one.release_s
            proxy.answered, proxy.owes = False, True

    def _told_refused(self, one: m.RefuseTenant) -> None:
        proxy = self._listening(one.tenant)
        if proxy.incarnation != one.incarnation:
            return
        away = self.now - proxy.away_since
        if one.kind is m.RefusalKind.LOST and self.disk_lost_at < 0 and not proxy.released:
            # (After another restart, that a tenant's lifetime was over is not known any more.)
            is_over = self.now >= proxy.ends_at
            assert is_over or away >= self.config.tenant_ttl_s, f"given up after {away} s"
        if one.kind is m.RefusalKind.LOST and self._has_a_right(proxy):
            raise AssertionError(f"{proxy.name} came back in time, and was not believed")
        proxy.refused = one
        proxy.connected = False

    def _has_a_right(self, proxy: Proxy) -> bool:
        """Whether a proxy was there until the disk was lost, and one of its slices still is."""
        return (
            self.core.status(self.now).state == "recovering"
            and proxy.away_since >= self.disk_lost_at > 0
            and self.now - proxy.away_since < self.config.tenant_ttl_s
            and not proxy.released
            and self.now < proxy.ends_at  # its stated lifetime, after which it is released
            and proxy.honest
            and any(
                self.broke.get(slice_id, -1) < self.placings[generation].step
                for slice_id, generation in proxy.view.values()
            )
        )

    # ---- whether that was right

    def _judge(self, after: StatusReport, instructions: list[m.Instruction]) -> None:
        self._judge_views(after)
        self._judge_preempted()
        self._judge_released()
        self._judge_reserved(after)
        self._judge_marked(after)
        self.books.judge(after)
        started = {
            one.tenant: one.data
            for one in instructions
            if isinstance(one, m.Announce) and one.kind == "tenant.running"
        }
        waits = [self.proxies[entry.tenant] for entry in after.queue]
        for name, data in started.items():
            assert name is not None
            proxy = self.proxies[name]
            placed = data["placed"]
            assert isinstance(placed, int)
            if self.disk_lost_at < 0:
                assert placed >= proxy.needed, "half of a gang was placed"
            if after.state == "serving":
                self._judge_overtaking(proxy, waits, after)
        if after.state == "serving":
            self._judge_waiting(after, waits)
            self._judge_broken(after)
        self._judge_spares(after, instructions)
        for one in instructions:
            if isinstance(one, m.RefuseTenant) and one.kind is m.RefusalKind.SLICES_TAKEN:
                proxy = self.proxies[one.tenant]
                if proxy.asks.queue_timeout_s is None:
                    assert not self._fits(proxy, after, waits), "refused, though it would fit"

    def _judge_views(self, after: StatusReport) -> None:
        """What proxies were told is what is so, and nothing is held twice."""
        holders = {one.id: (one.tenant, one.virtual_index) for one in after.slices if one.tenant}
        assert len({one.id for one in after.slices}) == len(after.slices)
        for tenant in after.tenants:
            proxy = self.proxies[tenant.name]
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
        for proxy in self.proxies.values():
            assert not proxy.connected or proxy.name in known, f"{proxy.name} hears nothing more"

    def _judge_preempted(self) -> None:
        """Only for one of higher priority who starts by that, and no sooner than was told."""
        holds = {placing.tenant for placing in self.placings.values() if placing.step == self.step}
        for name, reason in self.taken.items():
            victim = self.proxies[name]
            by = self.proxies[_name(reason.removeprefix("preempted by "))]
            assert by.asks.priority > victim.asks.priority
            assert by.name in holds, f"{name} was preempted for {by.name}, which did not start"
            if victim.connected and self.config.preemption_grace_s:
                assert victim.noticed_until is not None, f"{name} was not told"
                assert self.now >= victim.noticed_until - 1e-3, f"{name} was told of more time"
            victim.noticed_until = None

    def _judge_released(self) -> None:
        """Only who was warned, in time, and is known to have done nothing since."""
        for name in self.idled:
            proxy = self.proxies[name]
            release_s = self.config.idle_release_s
            assert release_s is not None
            assert proxy.connected
            assert proxy.warned_until is not None, f"{name} was not warned"
            assert proxy.answered, f"{name} was taken at its silence"
            assert self.now >= proxy.warned_until - 1e-3, f"{name} was told of more time"
            if proxy.told == proxy.worked:
                assert self.now - proxy.active_at >= release_s - 1e-3, f"{name} is not idle"
            proxy.warned_until = None

    def _judge_reserved(self, after: StatusReport) -> None:
        """Whoever starts, or gets more, leaves those alone for whom slices are reserved."""
        assert {one.reservation for one in after.reservations} == set(self.reservations.values())
        late = [one for one in self.reservations.values() if one.ends < self.now - 1e-3]
        assert not late, f"over, and still there: {late}"
        placed_before = self._placed_before(self.step)
        got = {
            (placing.tenant, self.proxies[placing.tenant].asks.virtual_slices[placing.index])
            for placing in self.placings.values()
            if placing.step == self.step and (placing.tenant, placing.index) not in placed_before
        }
        for name, kind in got if self.disk_lost_at < 0 else ():
            if name in self.planned:
                continue  # on what others were preempted from, or was promised before
            lacking = self._lacking(self.proxies[name], kind, after)
            free = _free(after)[str(kind)] - self._kept(str(kind), after)
            assert not lacking or free >= lacking, f"{name} got what was reserved for others"

    def _lacking(self, proxy: Proxy, kind: InstanceType, after: StatusReport) -> int:
        """Returns how many slices others lack of what is reserved for them and in force."""
        users = {tenant.name: tenant.user for tenant in after.tenants}
        held = Counter(
            users[one.tenant]
            for one in after.slices
            if one.tenant and one.instance_type == str(kind)
        )
        lacking = 0
        for one in sorted(self.reservations.values(), key=lambda one: (one.starts, one.name)):
            if one.instance_type != str(kind) or one.starts > self.now - 1e-3:
                continue
            has = min(held[one.user], one.count)
            held[one.user] -= has
            if one.user != proxy.asks.user:
                lacking += one.count - has
        return lacking

    def _barred(self, proxy: Proxy) -> bool:
        """Whether others' reservations of a type that one wants may keep it waiting."""
        kinds = set(map(str, proxy.asks.virtual_slices))
        return any(
            one.instance_type in kinds and one.user != proxy.asks.user
            for one in self.reservations.values()
        )

    def _has_a_reservation(self, proxy: Proxy) -> bool:
        kinds = set(map(str, proxy.asks.virtual_slices))
        return any(
            one.instance_type in kinds and one.user == proxy.asks.user
            for one in self.reservations.values()
        )

    def _judge_marked(self, after: StatusReport) -> None:
        """Nothing is placed on a slice that an operator has taken out."""
        for placing in self.placings.values():
            if placing.step == self.step and self.disk_lost_at < 0:
                barred = self.marked.keys() & self.marks.keys()
                assert placing.slice_id not in barred, f"{placing.slice_id} is cordoned"
        for one in after.slices:
            if one.state in (SliceState.CORDONED, SliceState.DRAINING, SliceState.READY):
                marked = one.id in self.marks
                assert marked == (one.state is not SliceState.READY)
            if one.state is SliceState.DRAINING:
                assert one.tenant

    def _judge_broken(self, after: StatusReport) -> None:
        """No placement outlives a break of its slice, whether the manager saw it or was away."""
        for one in after.slices:
            if one.tenant:
                # Without the disk, that a stream broke and was taken up again is not known.
                trouble = self.broke if self.disk_lost_at < 0 else self.replaced
                placed = self.placings[one.generation].step
                assert trouble.get(one.id, -1) <= placed, f"{one.id} broke, and is held"

    def _judge_spares(self, after: StatusReport, instructions: list[m.Instruction]) -> None:
        """Only what was placed before is placed on spares."""
        if self.disk_lost_at >= 0:
            return  # what was placed before is not known for sure
        free = _free(after)
        for one in instructions:
            if isinstance(one, m.Announce) and one.kind == "slice.placed":
                if one.tenant in self.planned or self.taken:
                    continue  # on what others were preempted from
                where = (one.tenant, one.data["virtual_index"])
                if where not in self._placed_before(self.step):
                    kind = str(one.data["instance_type"])
                    assert free[kind] >= self._kept(kind, after), "a spare was granted"

    def _kept(self, kind: str, after: StatusReport) -> int:
        """Returns how many spares are kept back, with a cordoned slice without holder as one."""
        cordoned = sum(
            one.instance_type == kind and one.id in self.marks and not one.tenant
            for one in after.slices
        )
        return max(0, self.config.spares - cordoned)

    def _placed_before(self, step: int) -> set[tuple[str, int]]:
        """Virtual slices that were placed earlier, since their tenants came."""
        return {
            (placing.tenant, placing.index)
            for placing in self.placings.values()
            if self.proxies[placing.tenant].came_at <= placing.step < step
        }

    def _judge_overtaking(self, started: Proxy, waits: list[Proxy], after: StatusReport) -> None:
        if self._keeps_nobody(started, waits, after) or self._has_a_reservation(started):
            return
        kinds = {started.asks.virtual_slices[index] for index in started.view}
        for other in waits:
            shares = kinds & set(other.asks.virtual_slices)
            exempt = (
                self._barred(other)
                or started.name in self.planned
                or other.name in self.planned | self.taken.keys()
            )
            assert exempt or not (shares and self._ahead(other, started)), (
                f"{started.name} was placed before {other.name}"
            )

    def _heads(self, waits: list[Proxy]) -> list[Proxy]:
        """Returns who is first in the line of any type, of those that were promised nothing."""
        planned = _planned(self.core.status(self.now))
        heads: dict[str, Proxy] = {}
        for kind in self.config.slices:
            line = [p for p in waits if kind in p.asks.virtual_slices and p.name not in planned]
            for one in line:
                if not any(self._ahead(other, one) for other in line):
                    heads[one.name] = one
        return list(heads.values())

    def _left(self, kind: InstanceType, heads: list[Proxy], after: StatusReport) -> int:
        """Returns the free slices of a type beyond all that the heads want."""
        wanted = sum(head.asks.virtual_slices.count(kind) for head in heads)
        return _free(after)[str(kind)] - self._kept(str(kind), after) - wanted

    def _keeps_nobody(self, started: Proxy, waits: list[Proxy], after: StatusReport) -> bool:
        """Whether all heads have what they want without what one that started has, or in time."""
        kinds = {started.asks.virtual_slices[index] for index in started.view}
        heads = self._heads(waits)
        if all(self._left(kind, heads, after) >= 0 for kind in kinds):
            return True
        ends_at = {tenant.name: tenant.ends_at for tenant in after.tenants}
        mine = ends_at[started.name]
        if mine is None:
            return False
        held = [one for one in after.slices if one.tenant and ends_at[one.tenant] is not None]
        for head in heads:
            if not kinds & set(head.asks.virtual_slices):
                continue
            if head.asks.num_elastic:
                return False  # which of its slices it starts with is open
            starts_at = -math.inf
            for kind, wanted in Counter(head.asks.virtual_slices).items():
                ends = sorted(
                    float(ends_at[one.tenant] or 0.0)
                    for one in held
                    if one.instance_type == str(kind)
                    and one.tenant != started.name
                    and self.proxies[one.tenant].asks.priority >= head.asks.priority
                )
                others = self.config.slices[kind] - self.config.spares - len(ends)
                if wanted > others:
                    starts_at = max(starts_at, ends[wanted - others - 1])
            if mine > starts_at:
                return False
        return True

    def _judge_idle(self, after: StatusReport, waits: list[Proxy]) -> None:
        """No slices are idle that one behind the heads could have without keeping them."""
        missing = {
            one.instance_type
            for tenant in after.tenants
            for one in tenant.slices
            if one.state is VirtualSliceState.UNPLACED and tenant.state is TenantState.RUNNING
        }
        heads, planned = self._heads(waits), _planned(after)
        for proxy in waits:
            if proxy in heads or proxy.name in planned or self._barred(proxy):
                continue
            could = sum(
                min(wanted, max(0, self._left(kind, heads, after)))
                for kind, wanted in Counter(proxy.asks.virtual_slices).items()
                if str(kind) not in missing
            )
            assert could < proxy.needed, f"{proxy.name} waits, and would keep nobody"

    def _judge_waiting(self, after: StatusReport, waits: list[Proxy]) -> None:
        self._judge_idle(after, waits)
        for proxy in waits:
            assert not self._fits(proxy, after, waits), f"{proxy.name} waits, though it would fit"
        free = _free(after)
        once_placed = self._placed_before(self.step + 1)
        for tenant in after.tenants:
            for one in tenant.slices:
                if one.state is not VirtualSliceState.UNPLACED:
                    continue
                if tenant.state is TenantState.IDLE:
                    continue
                if (tenant.name, one.index) in once_placed and self.disk_lost_at < 0:
                    assert not free[one.instance_type], "lost, and not placed again"
                elif self._barred(self.proxies[tenant.name]):
                    continue
                elif not self._preceded(self.proxies[tenant.name], one.instance_type, waits):
                    kept = self._kept(one.instance_type, after)
                    assert free[one.instance_type] <= kept, "missing, though a slice is free"

    def _fits(self, proxy: Proxy, after: StatusReport, waits: list[Proxy]) -> bool:
        if self._barred(proxy):
            return False  # what is left to it is judged by the core's own invariants
        free = _free(after)
        could = 0
        for kind, wanted in Counter(proxy.asks.virtual_slices).items():
            if not self._preceded(proxy, str(kind), waits):
                could += min(wanted, max(0, free[str(kind)] - self._kept(str(kind), after)))
        return could >= proxy.needed

    def _preceded(self, proxy: Proxy, kind: str, waits: list[Proxy]) -> bool:
        """Whether somebody before this one waits for slices of a type."""
        planned = _planned(self.core.status(self.now))
        return any(
            self._ahead(other, proxy)
            and kind in map(str, other.asks.virtual_slices)
            and other.name not in planned
            for other in waits
        )

    def _ahead(self, one: Proxy, other: Proxy) -> bool:
        """Whether one is served before the other: by priority, save for who came long before."""
        aging_s = self.config.aging_s
        if aging_s is None:
            key = (-one.asks.priority, one.arrival)
            return key < (-other.asks.priority, other.arrival)
        lead = longest_lead(0, one.asks.priority, aging_s) - longest_lead(
            0, other.asks.priority, aging_s
        )
        return (one.asked_at - lead, one.arrival) < (other.asked_at, other.arrival)

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


def _name(said: str) -> str:
    """Returns the tenant that a notice names: it is its own host."""
    return said.split(" of priority ", maxsplit=1)[0].rpartition("@")[2]


def _check_census(census: Census, report: StatusReport) -> None:
    """What is counted is what is described."""
    assert census == Census(
        slices=Counter((one.instance_type, one.state) for one in report.slices),
        held={
            kind: sum(one.instance_type == kind and one.tenant != "" for one in report.slices)
            for kind in report.types
        },
        tenants=Counter(one.state for one in report.tenants),
        queue_length=len(report.queue),
        oldest_wait_s=max((one.waiting_s for one in report.queue), default=0.0),
        recovering=report.state == "recovering",
    )


def _planned(report: StatusReport) -> set[str]:
    """Returns who waits for others to be preempted."""
    said = {_name(tenant.preempting_by) for tenant in report.tenants}
    waiting = {entry.tenant for entry in report.queue}
    return waiting & (said | {one.kept_for for one in report.slices})


def _free(report: StatusReport) -> Counter[str]:
    return Counter(
        one.instance_type
        for one in report.slices
        if one.state is SliceState.READY and not one.tenant and not one.kept_for
    )
