"""Whatever comes, and in whatever order: a session ends, and leaves nothing behind unsaid."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from harness.session_requests import session_request
from shared_pathways_service.api.requests import SessionRequest
from shared_pathways_service.errors import SharedPathwaysError
from shared_pathways_service.events import Event
from shared_pathways_service.session import messages as m
from shared_pathways_service.session.state_machine import Session

TYPE = "tpuv6e:2x2"
_ENDED = (m.Phase.CLOSED, m.Phase.FAILED)
_STEPS = (m.Preflight, m.CreateProxy, m.OpenTunnel, m.Probe, m.DeleteProxy)


@dataclasses.dataclass
class World:
    """A home that obeys: one step at a time, and a proxy that is there or not."""

    machine: Session
    now: float
    step: m.Effect | None = None
    proxy: bool = False
    deletions: int = 0
    finished: int = 0

    def carry_out(self, effects: list[m.Effect], created_meanwhile: bool) -> None:
        for effect in effects:
            assert not self.finished, f"{effect} after the end"
            if isinstance(effect, m.StopStep):
                self.stop(created_meanwhile)
            elif isinstance(effect, _STEPS):
                assert self.step is None, f"{effect} while {self.step} runs"
                self.step = effect
                self.deletions += isinstance(effect, m.DeleteProxy)
            elif isinstance(effect, m.Finish):
                self.finished += 1

    def stop(self, created_meanwhile: bool) -> None:
        if isinstance(self.step, m.CreateProxy):
            self.proxy |= created_meanwhile
        self.step = None

    def answer(self, fails: bool, created_meanwhile: bool) -> m.SessionEvent | None:
        step, self.step = self.step, None
        if step is None:
            return None
        if isinstance(step, m.CreateProxy):
            self.proxy |= created_meanwhile or not fails
        if fails:
            return m.StepFailed(error=SharedPathwaysError("as told"))
        match step:
            case m.Preflight():
                return m.PreflightDone(service="s", instance_types=(TYPE,))
            case m.CreateProxy():
                return m.ProxyCreated(uid="u")
            case m.OpenTunnel():
                return m.TunnelOpen(address="unix:/x")
            case m.Probe():
                return m.Probed()
            case _:
                self.proxy = False
                return m.Deleted()


NEWS = st.sampled_from(
    [
        Event.of("proxy.serving"),
        Event.of("tenant.dequeued", reason="enough are free"),
        Event.of("tenant.queued", reason="0 free", data={"position": 1, "holders": "a\nb"}),
        Event.of("tenant.running", data={"placed": 1, "wanted": 1}),
        Event.of("slice.placed", data={"virtual_index": 0, "slice_id": "s", "generation": 1}),
        Event.of("slice.unplaced", reason="gone", data={"virtual_index": 0}),
        Event.of("tenant.refused", data={"kind": "slices_taken", "wanted": ""}),
        Event.of("tenant.refused", data={}),
        Event.of("proxy.exited", data={"exit_code": None}),
        Event.of("proxy.exited", data={"exit_code": 1, "outcome": "crashed"}),
        Event.of("proxy.deleted"),
        Event.of("home.lost"),
        Event.of("of.a.newer.version", data={"virtual_index": "0"}),
    ]
)
EXAMINED = st.sampled_from(
    [m.ServiceExamined(), m.ServiceExamined(failure=SharedPathwaysError("it crashes"))]
)
CANCELS = st.builds(
    m.Cancelled, reason=st.just("told to"), delete_timeout_s=st.sampled_from([None, 600.0])
)
#: An event; or a number of seconds that pass; or an answer of the step that runs: (it fails?,).
MOVES = st.one_of(
    NEWS,
    EXAMINED,
    CANCELS,
    st.sampled_from([(False,), (False,), (False,), (True,)]),
    st.floats(0, 400),
    st.just("deadline"),
)
REQUESTS = st.builds(
    session_request,
    expected_tpu_instances=st.sampled_from([None, {TYPE: 1}, {TYPE: 2}]),
    wait=st.sampled_from(["placed", "ready"]),
    timeout=st.sampled_from([0.0, 1.0, 300.0]),
    queue_timeout=st.sampled_from([None, 0.0, 60.0, float("inf")]),
)


def check(world: World) -> None:
    machine = world.machine
    endless = machine.request.tenant.queue_timeout_s == float("inf")
    if machine.phase in _ENDED:
        assert world.finished == 1
        assert machine.next_deadline is None
        assert not world.proxy or machine.snapshot.left
        assert machine.phase is m.Phase.FAILED or machine.snapshot.error is None
    elif machine.phase is not m.Phase.SERVE and not endless:
        assert machine.next_deadline is not None, f"{machine.phase} waits without a deadline"
    assert world.deletions <= 1


@given(request=REQUESTS, moves=st.lists(st.tuples(MOVES, st.booleans()), max_size=30))
def test_it_ends_and_nothing_is_left(
    request: SessionRequest, moves: list[tuple[m.SessionEvent | tuple[bool] | float | str, bool]]
) -> None:
    machine = Session(request, 0.0, 60.0)
    world = World(machine, 0.0)
    world.carry_out(machine.start(0.0), False)

    def put(event: m.SessionEvent | None, created_meanwhile: bool) -> None:
        if event is not None:
            world.carry_out(machine.handle(event, world.now), created_meanwhile)
        check(world)

    for move, created_meanwhile in moves:
        if isinstance(move, tuple):
            put(world.answer(move[0], created_meanwhile), created_meanwhile)
        elif isinstance(move, float | int):
            world.now += move
            put(m.Tick(), created_meanwhile)
        elif isinstance(move, str):
            world.now = max(world.now, machine.next_deadline or world.now)
            put(m.Tick(), created_meanwhile)
        else:
            put(move, created_meanwhile)

    # From here on nobody answers any more, and the user lets go.
    put(m.Cancelled(reason="the end"), False)
    for _ in range(10):
        if machine.phase in _ENDED:
            break
        assert machine.next_deadline is not None
        world.now = max(world.now, machine.next_deadline)
        put(m.Tick(), True)
    assert machine.phase in _ENDED
