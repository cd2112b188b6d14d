"""What waiting and refused tenants are told is so: each claim is held against a random book.

A scene is a list of steps. To judge a claim about a tenant, its scene is played again up to the
claim, with a tenant that was refused waiting instead; then what the claim says is done.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from shared_pathways_service.api.tenant_requests import TenantRequest
from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.scheduling.book import messages as m
from shared_pathways_service.scheduling.book.holdings import QueueEntry
from shared_pathways_service.scheduling.book.needs import Missing, Needs, needs_of
from shared_pathways_service.scheduling.book.pool_text import free_slices
from shared_pathways_service.scheduling.book.precedence import blocker_of
from shared_pathways_service.scheduling.book.records import Pool, Tenant
from shared_pathways_service.scheduling.book.reserved import Reservation
from shared_pathways_service.scheduling.book.states import SliceMark, SliceState, TenantState
from shared_pathways_service.scheduling.book.wait_reasons import awaited_of
from tests.scheduling.harness import OTHER, SMALL, Rm, name
from tests.scheduling.reserved_words import ReservedOf, said_of_reservations

_THIRD = InstanceType.parse("tpuv6e:1x1")
#: The team of each user.
_TEAMS = {"ada": "red", "bob": "red", "eve": "blue"}
#: Simulated seconds after which every reservation and lifetime of a scene is over.
_LONG_S = 1000.0


@dataclasses.dataclass(frozen=True)
class Asks:
    tenant: str
    kinds: tuple[InstanceType, ...]
    elastic: int
    priority: int
    queue: float | None
    lifetime: float | None
    user: str

    def act(self, on: Scene) -> None:
        asked = m.TenantAsked(
            request=TenantRequest(
                name=self.tenant,
                virtual_slices=self.kinds,
                elastic_slices=min(self.elastic, len(self.kinds) - 1),
                priority=self.priority,
                queue_timeout_s=math.inf if self.tenant == on.patient else self.queue,
                max_lifetime_s=self.lifetime,
                user=self.user,
                team=_TEAMS[self.user],
                host="laptop",
            ),
            incarnation=f"{self.tenant}/1",
        )
        on.rm.do(asked)


@dataclasses.dataclass(frozen=True)
class Releases:
    which: int

    def act(self, on: Scene) -> None:
        if there := on.rm.tenants:
            on.rm.release(there[self.which % len(there)])


@dataclasses.dataclass(frozen=True)
class Marks:
    kind: InstanceType
    which: int
    event: type[m.SliceCordoned | m.SliceDrained | m.SliceUncordoned]

    def act(self, on: Scene) -> None:
        slice_id = name(self.kind, self.which % on.counts[self.kind])
        if on.rm.core.knows_slice(slice_id):
            on.rm.do(self.event(slice_id=slice_id))


@dataclasses.dataclass(frozen=True)
class Fails:
    """A slice's workers end or, if they have, come back."""

    kind: InstanceType
    which: int

    def act(self, on: Scene) -> None:
        on.toggle(self.kind, self.which % on.counts[self.kind])


@dataclasses.dataclass(frozen=True)
class Reserves:
    """An operator reserves slices for a user or a team."""

    kind: InstanceType
    count: int
    owner: str
    starts_in: float
    lasts: float

    def act(self, on: Scene) -> None:
        now = on.rm.now
        asked = Reservation(
            name=f"res-{len(on.rm.reservations)}-{now}",
            instance_type=str(self.kind),
            count=self.count,
            user=self.owner if self.owner in _TEAMS else "",
            team="" if self.owner in _TEAMS else self.owner,
            starts=now + self.starts_in,
            ends=now + self.starts_in + self.lasts,
        )
        if on.rm.core.refusal_of(asked, now) is None:
            on.rm.do(m.ReservationMade(reservation=asked))


@dataclasses.dataclass(frozen=True)
class Passes:
    seconds: float

    def act(self, on: Scene) -> None:
        on.rm.after(min(self.seconds, on.until - on.rm.now))


Step = Asks | Releases | Marks | Fails | Reserves | Passes


class _Rm(Rm):
    """Keeps refusals, each with its time."""

    def __init__(self, *args: Any, **config: Any) -> None:
        self.refusals: list[tuple[float, m.RefuseTenant]] = []
        super().__init__(*args, **config)

    def do(self, event: m.ResourceManagerEvent) -> list[m.Instruction]:
        said = super().do(event)
        self.refusals += [(self.now, one) for one in said if isinstance(one, m.RefuseTenant)]
        return said


class Scene:
    """A service on which steps are played.

    Attributes:
      patient: A tenant that waits without a limit, whatever it asked for.
      until: When to stop.
    """

    def __init__(
        self,
        counts: dict[InstanceType, int],
        spares: int,
        *,
        patient: str = "",
        until: float = math.inf,
    ) -> None:
        self.counts = counts
        self.patient = patient
        self.until = until
        self.rm = _Rm(
            counts,
            spares=spares,
            preemption_grace_s=3.0,
            hung_after_s=math.inf,
            starting_grace_s=0.0,
        )
        self.lives = {name(kind, i): (kind, 1) for kind in counts for i in range(counts[kind])}
        self.down: set[str] = set()

    def toggle(self, kind: InstanceType, index: int) -> None:
        slice_id = name(kind, index)
        _, life = self.lives[slice_id]
        if slice_id in self.down:
            self.bring_back(slice_id)
            return
        self.down.add(slice_id)
        for host in range(kind.hosts):
            self.rm.end_worker(slice_id, host, life=str(life))

    def bring_back(self, slice_id: str) -> None:
        kind, life = self.lives[slice_id]
        self.lives[slice_id] = kind, life + 1
        self.down.discard(slice_id)
        for host in range(kind.hosts):
            self.rm.join(slice_id, host, kind=kind, life=str(life + 1))

    def played(self, steps: list[Step]) -> Scene:
        for step in steps:
            step.act(self)
        return self

    def take_refusals(self) -> list[tuple[float, m.RefuseTenant]]:
        """Returns the refusals of taken slices since the last call, each with its time."""
        taken, self.rm.refusals = self.rm.refusals, []
        return [pair for pair in taken if pair[1].kind is m.RefusalKind.SLICES_TAKEN]

    def with_needs(self, needs: Needs) -> Scene:
        """Has slices come into service, so many as a tenant needs, and as its needs say how."""
        for pool in self.rm.core._ledger.pools.values():
            if (missing := needs.missing.get(pool.name)) is not None:
                self._bring(pool, missing)
        return self

    def _bring(self, pool: Pool, missing: Missing) -> None:
        marked = [one for one in pool.slices.values() if one.mark is not SliceMark.NONE]
        unready = [one for one in sorted(self.down) if self.lives[one][0] == pool.kind]
        unmarked = [one for one in unready if one not in {of.id for of in marked}]
        left = missing.count
        for slice_id in unmarked[: min(left, missing.unready)]:
            self.bring_back(slice_id)
            left -= 1
        complete = [one.id for one in marked if one.state is not SliceState.LOST]
        for slice_id in complete[: min(left, missing.cordoned)]:
            self.rm.uncordon(slice_id)
            left -= 1
        if left:  # cordoned ones that are not ready: both
            for one in marked:
                self.rm.uncordon(one.id)
            for slice_id in unready:
                if slice_id in self.down:
                    self.bring_back(slice_id)

    def tenant(self, name: str) -> Tenant:
        return self.rm.core._ledger.tenants[name]

    def end_others(self, of: str, *, but: Collection[str] = ()) -> None:
        for other in self.rm.tenants:
            if other != of and other not in but:
                self.rm.release(other)

    def starts(self, tenant: str, *, staying: Collection[str] = ()) -> bool:
        """Whether a waiting tenant starts once all others end, now or later.

        Args:
          tenant: The tenant.
          staying: Others that end last.
        """
        if self.rm.tenant(tenant).state is TenantState.RUNNING:
            return True
        self.rm.said.clear()
        self.end_others(tenant, but=staying)
        if staying:
            self.rm.after(_LONG_S)
            self.end_others(tenant)
        self.rm.after(_LONG_S)
        return bool(self.rm.heard(tenant, m.NotifyRunning))

    def cordoned_holders(self) -> list[str]:
        """Returns who holds cordoned slices: those count for the owner's reservation meanwhile."""
        held = [one for one in self.rm.core.status(self.rm.now).slices if one.tenant]
        return [one.tenant for one in held if one.state is SliceState.CORDONED]

    def of_lower_priority(self, than: str) -> list[str]:
        """Returns who may be preempted for a tenant, and who is promised slices before it."""
        tenants = self.rm.core._ledger.tenants
        priority = tenants[than].request.priority
        lower = [one for one in tenants.values() if one.request.priority < priority]
        return [one.name for one in lower if one.running or one.has_promise]

    def may_preempt_unforeseen(self, tenant: str) -> bool:
        """Whether a tenant may come to preempt others when reservations end."""
        return bool(self.rm.reservations and self.of_lower_priority(tenant))


#: What tenants ask for: gangs of several types are behind one another in several lines.
_WANTS = (
    (SMALL, SMALL, _THIRD, _THIRD),
    (SMALL,),
    (SMALL, OTHER),
    (OTHER, _THIRD),
    (SMALL, SMALL, _THIRD),
    (OTHER, OTHER, _THIRD),
    (OTHER,),
)


def _asking(
    kinds: st.SearchStrategy[tuple[InstanceType, ...]],
    elastic: Sequence[int] = (0, 0, 0, 1, 2),
    queue: Sequence[float | None] = (math.inf, math.inf, None, 20.0),
    priority: Sequence[int] = (0, 0, 0, 1, 3),
) -> st.SearchStrategy[Callable[[str], Asks]]:
    return st.builds(
        partial,
        st.just(Asks),
        kinds=kinds,
        elastic=st.sampled_from(elastic),
        priority=st.sampled_from(priority),
        queue=st.sampled_from(queue),
        lifetime=st.sampled_from([None, None, None, 20.0, 60.0]),
        user=st.sampled_from(["ada", "bob", "eve"]),
    )


_ASKED = _asking(st.sampled_from(_WANTS))
#: All of OTHER is held, gangs wait for some, and others for what the gangs leave free meanwhile.
_BEHIND_GANGS = [
    _asking(st.just((OTHER, OTHER)), elastic=(0, 1), priority=(1,)),
    _asking(st.sampled_from([(SMALL, OTHER), (OTHER, _THIRD)]), queue=(math.inf,), priority=(0, 1)),
    _asking(st.sampled_from([(OTHER, _THIRD), (SMALL, OTHER)]), queue=(math.inf,), priority=(0, 1)),
    _asking(st.sampled_from([(SMALL,), (SMALL, SMALL, _THIRD)]), elastic=(0, 1), priority=(0,)),
    _asking(st.sampled_from([(SMALL, OTHER), (SMALL,), (_THIRD,)]), priority=(0,)),
]
_KIND = st.sampled_from((SMALL, OTHER, _THIRD))
_PAUSES = st.sampled_from([10.0, 30.0, 45.0])
_RESERVES = st.builds(
    Reserves,
    _KIND,
    st.integers(1, 2),
    st.sampled_from(["ada", "bob", "red"]),
    st.sampled_from([0.0, 10.0, 50.0]),
    st.sampled_from([30.0, 100.0]),
)
_BEFORE = st.one_of(
    st.builds(
        Marks,
        _KIND,
        st.integers(0, 3),
        st.sampled_from([m.SliceCordoned, m.SliceCordoned, m.SliceDrained, m.SliceUncordoned]),
    ),
    st.builds(Fails, _KIND, st.integers(0, 3)),
    _RESERVES,
)
_LATER = st.one_of(
    _BEFORE,
    st.builds(Releases, st.integers(0, 7)),
    st.builds(Passes, st.sampled_from([12.0, 5.0])),
)
#: Steps of a scene, each with its place.
_PLACED_LATER = st.lists(st.tuples(st.integers(3, 9), _LATER), max_size=4)


@st.composite
def _steps(draw: st.DrawFn) -> list[Step]:
    """Scenes of which every second one begins with a line: a short gang, and tenants behind it."""
    first = draw(st.lists(_BEFORE, max_size=3))
    line = draw(st.sampled_from([[], _BEHIND_GANGS]))
    asked = [draw(asks) for asks in line]
    asked += draw(st.lists(_ASKED, min_size=0 if line else 5, max_size=9 - len(line)))
    return [*(first[:1] if line else first), *_mixed(asked, draw(_PLACED_LATER))]


@st.composite
def _reserved_steps(draw: st.DrawFn) -> list[Step]:
    """Scenes with several reservations, of which some begin or end."""
    first = draw(st.lists(_RESERVES, min_size=1, max_size=5))
    asked = draw(st.lists(_ASKED, min_size=3, max_size=8))
    passes = draw(st.lists(st.tuples(st.integers(0, 9), st.builds(Passes, _PAUSES)), max_size=2))
    return [*first, *_mixed(asked, [*draw(_PLACED_LATER), *passes])]


def _mixed(asked: Sequence[Callable[[str], Asks]], later: Sequence[tuple[int, Step]]) -> list[Step]:
    """Returns the requests of tenants t0, t1, …, with other steps at their places among them."""
    steps: list[Step] = [asks(f"t{number}") for number, asks in enumerate(asked)]
    for place, step in later:
        steps.insert(place, step)
    return steps


def _asks(
    tenant: str,
    *kinds: InstanceType,
    user: str = "ada",
    priority: int = 0,
    lifetime: float | None = None,
) -> Asks:
    return Asks(tenant, kinds, 0, priority, math.inf, lifetime, user)


#: The owner of a reservation has it on a cordoned slice: while he stays, others may have the rest.
_CORDONED_OWNER: list[Step] = [
    Reserves(SMALL, 1, "bob", 0.0, 100.0),
    _asks("t0", SMALL, user="bob"),
    Marks(SMALL, 0, m.SliceCordoned),
    Marks(SMALL, 1, m.SliceCordoned),
    _asks("t1", SMALL),
    _asks("t2", SMALL, lifetime=20.0),
]


#: The last of its slices that works is held by a tenant that t5 preempts once it has the others:
#: t4 preempts t1 for one of them first.
_PREEMPTS_LATER: list[Step] = [
    _asks("t0", SMALL),
    _asks("t1", SMALL),
    _asks("t2", _THIRD),
    Fails(_THIRD, 0),
    _asks("t4", SMALL, priority=1),
    _asks("t5", SMALL, SMALL, _THIRD, priority=3),
]


#: Four reservations are in force, and four are to come: of each, three are named.
_MORE_THAN_ARE_NAMED: list[Step] = [
    *(
        Reserves(SMALL, 1, owner, starts_in, 30.0)
        for starts_in in (0.0, 50.0)
        for owner in ("bob", "red", "bob", "ada")
    ),
    _asks("t0", SMALL, user="eve"),
]


#: Of slices and spares.
_COUNTS = {
    "small": st.integers(3, 4),
    "other": st.integers(2, 3),
    "spares": st.sampled_from([0, 0, 1]),
}


@settings(max_examples=settings().max_examples * 2 // 5)
@example(small=3, other=2, spares=1, steps=_PREEMPTS_LATER)
@example(small=3, other=2, spares=0, steps=_CORDONED_OWNER)
@given(
    **_COUNTS,
    steps=_steps(),
)
def test_what_the_queue_says_is_so(small: int, other: int, spares: int, steps: list[Step]) -> None:
    def play(many: int, until: float, patient: str = "") -> Scene:
        counts = {SMALL: small, OTHER: other, _THIRD: 2}
        return Scene(counts, spares, patient=patient, until=until).played(steps[:many])

    scene = play(0, math.inf)
    for many, step in enumerate(steps, start=1):
        step.act(scene)
        for entry in scene.rm.core.status(scene.rm.now).queue:
            _judge_counts(scene, entry)
        for when, refused in scene.take_refusals():
            # (It runs if slices became free at the moment of its refusal.)
            assert refused.waiting_is_futile is not None
            then = partial(play, many, when)
            _judge_futile(then, refused.tenant, refused.message, says_so=refused.waiting_is_futile)
    for entry in scene.rm.core.status(scene.rm.now).queue:
        _judge_wait(partial(play, len(steps), math.inf), scene, entry)


@example(small=4, other=2, spares=0, steps=_MORE_THAN_ARE_NAMED)
@given(
    **_COUNTS,
    steps=_reserved_steps(),
)
def test_what_the_queue_says_of_reservations_is_so(
    small: int, other: int, spares: int, steps: list[Step]
) -> None:
    scene = Scene({SMALL: small, OTHER: other, _THIRD: 2}, spares)
    for step in steps:
        step.act(scene)
        for entry in scene.rm.core.status(scene.rm.now).queue:
            _judge_counts(scene, entry)


def _waiting_helps(play: Callable[[str], Scene], tenant: str, needs: Needs | None = None) -> bool:
    """Whether others may end in an order in which a tenant starts, once it has what it needs."""
    tried: list[list[str]] = []
    for cordoned, lower in ((False, False), (True, False), (False, True), (True, True)):
        scene = play(tenant)
        if needs is not None:
            scene.with_needs(needs)
        staying = scene.cordoned_holders() if cordoned else []
        staying += scene.of_lower_priority(tenant) if lower else []
        if staying not in tried and scene.starts(tenant, staying=staying):
            return True
        tried.append(staying)
    return False


def _judge_futile(play: Callable[[str], Scene], tenant: str, said: str, *, says_so: bool) -> None:
    """That waiting helps is so; that it does not, unless others are preempted as none foresees."""
    helps = _waiting_helps(play, tenant)
    assert helps is not says_so or (helps and play(tenant).may_preempt_unforeseen(tenant)), said


def _judge_counts(scene: Scene, entry: QueueEntry) -> None:
    """The numbers of a sentence are those of the status."""
    report, reason = scene.rm.core.status(scene.rm.now), entry.reason
    (about,) = (one for one in report.tenants if one.name == entry.tenant)
    for kind, wanted in entry.wants.items():
        slices = [one for one in report.slices if one.instance_type == kind]
        total = scene.counts[InstanceType.parse(kind)]
        states = Counter(one.state for one in slices)
        ready = [one for one in slices if one.state is SliceState.READY]
        free = sum(one.held_since is None and not one.kept_for for one in ready)
        kept = report.spares_kept[kind]
        said = [
            count
            for count in range(total + 1)
            if f"{free_slices(count, kind)} ({wanted} wanted" in reason
        ]
        reserved = ReservedOf(report, kind, max(0, total - report.spares), scene.rm.now)
        assert said == [reserved.room(about, max(0, free - kept))], reason
        assert said_of_reservations(reason, kind, wanted) == reserved.words(), reason
        assert reserved.held() == {
            one.reservation.name: one.held
            for one in report.reservations
            if one.reservation.instance_type == kind and one.reservation.starts <= scene.rm.now
        }
        out_of_use = {
            " cordoned": states[SliceState.CORDONED],
            " draining": states[SliceState.DRAINING],
            " not ready": total
            - states.total()
            + states[SliceState.STARTING]
            + states[SliceState.LOST],
        }
        for word, count in out_of_use.items():
            if count:
                assert f"{count} of {total} {'is' if count == 1 else 'are'}{word}" in reason, reason
            elif len(entry.wants) == 1:
                assert word not in reason, reason
        if len(entry.wants) == 1:
            assert ("more is reserved as a spare" in reason) is (min(free, kept) == 1), reason


def _judge_wait(play: Callable[[str], Scene], scene: Scene, entry: QueueEntry) -> None:
    """Whom a tenant is behind, and whether waiting helps, is so."""
    tenant = scene.tenant(entry.tenant)
    needs = needs_of(tenant)
    _judge_futile(play, tenant.name, entry.reason, says_so=needs is not None)
    if needs is not None:
        assert needs.words in entry.reason
        if needs.missing and not needs.outlived:
            assert _waiting_helps(play, tenant.name, needs), entry.reason
        _judge_the_least(play, tenant, needs)
    promised = {pool: len(kept) for pool, kept in tenant.promised.items()}
    could = {pool: pool.room_for(tenant) for pool in tenant.wants}
    enough = [min(could[p] + promised.get(p, 0), count) for p, count in tenant.wants.items()]
    before = {pool: blocker_of(tenant, pool) for pool in tenant.wants if could[pool]}
    named = (
        [one for one in before.values() if one is not None] if sum(enough) >= tenant.gang else []
    )
    assert (", behind " in entry.reason) is bool(named), entry.reason
    if not named:
        assert sum(enough) < tenant.gang, f"enough is free, and it is behind no tenant: {entry}"
        return
    for pool, one in before.items():
        if one is None:
            continue
        assert f"behind {one.label}" in entry.reason
        awaited = awaited_of(one, pool)
        assert awaited
        for kind, count in awaited.items():
            assert f"{count} x {kind.name}" in entry.reason
    again = play(tenant.name)
    fills = [entry for pool in tenant.wants for entry in pool.fills.entries]
    running = {entry[-1].name for entry in fills if entry[:2] < tenant.rank}
    for ahead in [*again.rm.queue[: again.rm.queue.index(tenant.name)], *running]:
        again.rm.release(ahead)
    assert again.rm.tenant(tenant.name).state is TenantState.RUNNING, entry.reason


def _judge_the_least(play: Callable[[str], Scene], tenant: Tenant, needs: Needs) -> None:
    """With one slice fewer than it needs, it does not start."""
    for kind, missing in needs.missing.items():
        fewer = dataclasses.replace(missing, count=missing.count - 1)
        less = Needs(missing={**needs.missing, kind: fewer})
        starts = _waiting_helps(play, tenant.name, less)
        # (One of lower priority may get a spare that becomes ready, and be preempted for it.)
        assert not starts or play(tenant.name).of_lower_priority(tenant.name), needs
