"""The session's machine, driven by hand and by hypothesis."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from harness.session_requests import session_request
from shared_pathways_service.api.requests import SessionRequest
from shared_pathways_service.errors import (
    AccessDenied,
    CapacityError,
    InvalidRequestError,
    PlacementTimeout,
    ProxyFailed,
    ServiceNotReady,
    SharedPathwaysError,
    SliceLost,
    SlicesTaken,
    TunnelError,
    from_json,
)
from shared_pathways_service.events import Event
from shared_pathways_service.session import messages as m
from shared_pathways_service.session.phase_deadlines import QUEUE_SLACK_S, UNDO_S
from shared_pathways_service.session.state_machine import (
    SETTLE_S,
    TUNNEL_SETTLE_S,
    Session,
)

TYPE = "tpuv6e:2x2"
DELETE_TIMEOUT_S = 60.0


def asking(**keywords: Any) -> SessionRequest:
    """Returns a request of two slices; the keywords are connect()'s."""
    return session_request("isc-proxy-ada", TYPE, TYPE, timeout=100.0, **keywords)


REQUEST = asking()


class Driver:
    """A machine, its clock, and what it wanted done (announcements aside)."""

    def __init__(self, request: SessionRequest = REQUEST) -> None:
        self.now = 1000.0
        self.machine = Session(request, self.now, DELETE_TIMEOUT_S)
        self.effects: list[m.Effect] = []
        self.said: list[Event] = []
        self._keep(self.machine.start(self.now))

    def _keep(self, effects: Sequence[m.Effect]) -> list[m.Effect]:
        self.said += [effect.event for effect in effects if isinstance(effect, m.Announce)]
        done: list[m.Effect] = [e for e in effects if not isinstance(e, m.Announce)]
        self.effects += done
        return done

    def put(self, *events: m.SessionEvent, after: float = 0.0) -> list[m.Effect]:
        self.now += after
        return [e for event in events for e in self._keep(self.machine.handle(event, self.now))]

    def news(self, kind: str, reason: str = "", /, **data: str | float | None) -> list[m.Effect]:
        return self.put(Event.of(kind, reason=reason, data=data))

    def expire(self) -> list[m.Effect]:
        """Lets the time pass until the machine's next deadline."""
        deadline = self.machine.next_deadline
        assert deadline is not None
        return self.put(m.Tick(), after=deadline - self.now)

    def at(self, phase: m.Phase) -> bool:
        return self.machine.phase is phase

    @property
    def snapshot(self) -> m.Snapshot:
        return self.machine.snapshot

    @property
    def error(self) -> SharedPathwaysError:
        assert self.snapshot.error is not None
        return from_json(self.snapshot.error)


PREFLIGHT = m.PreflightDone(service="unix:/rm", instance_types=(TYPE,))
CREATED = m.ProxyCreated(uid="uid-1")
TUNNEL = m.TunnelOpen(address="unix:/proxy")


def to_create() -> Driver:
    driver = Driver()
    driver.put(PREFLIGHT)
    return driver


def to_start(request: SessionRequest = REQUEST) -> Driver:
    driver = Driver(request)
    driver.put(PREFLIGHT, CREATED)
    return driver


def to_tunnel() -> Driver:
    driver = to_start()
    driver.news("proxy.serving")
    return driver


def to_probe() -> Driver:
    driver = to_tunnel()
    driver.put(TUNNEL)
    return driver


def to_place(request: SessionRequest = REQUEST) -> Driver:
    driver = to_start(request)
    driver.news("proxy.serving")
    driver.put(TUNNEL, m.Probed())
    return driver


def to_serve() -> Driver:
    driver = to_place()
    for index in range(2):
        place(driver, index)
    driver.news("tenant.running", placed=2, wanted=2)
    return driver


def place(driver: Driver, index: int, generation: int = 1) -> None:
    driver.news(
        "slice.placed",
        virtual_index=index,
        slice_id=f"slice-{index}",
        generation=generation,
        instance_type=TYPE,
    )


RISING: dict[str, Callable[[], Driver]] = {
    "preflight": Driver,
    "create": to_create,
    "start": to_start,
    "tunnel": to_tunnel,
    "probe": to_probe,
    "place": to_place,
    "serve": to_serve,
}


def ends_clean(driver: Driver, phase: m.Phase = m.Phase.CLOSED) -> None:
    """Lets the deletion succeed, and looks at how the session ended."""
    if driver.at(m.Phase.UNDO):
        driver.put(m.ProxyCreated(uid="uid-1"))
    if driver.at(m.Phase.DELETE):
        driver.put(m.Deleted())
    assert driver.at(phase)
    assert driver.effects[-1] == m.Finish()
    assert driver.snapshot.left == ""
    assert driver.machine.next_deadline is None
    began = sum(isinstance(effect, m.CreateProxy) for effect in driver.effects)
    assert sum(isinstance(effect, m.DeleteProxy) for effect in driver.effects) == began


# ---- the way up


def test_it_reaches_serve_step_by_step() -> None:
    driver = to_serve()
    assert driver.effects == [
        m.Preflight(),
        m.CreateProxy(),
        m.FollowProxy(),
        m.OpenTunnel(),
        m.Probe(address="unix:/proxy"),
    ]
    snapshot = driver.snapshot
    assert (snapshot.phase, snapshot.ready, snapshot.placed) == (m.Phase.SERVE, True, True)
    assert snapshot.address == "unix:/proxy"
    assert [view.slice_id for view in snapshot.slices] == ["slice-0", "slice-1"]
    assert driver.machine.next_deadline is None


def test_each_step_has_its_time_and_its_events() -> None:
    driver = Driver()
    driver.put(PREFLIGHT, after=1)
    driver.put(CREATED, after=2)
    driver.now += 3
    driver.news("proxy.serving")
    driver.put(TUNNEL, after=4)
    driver.put(m.Probed(), after=5)
    driver.now += 6
    driver.news("tenant.running", placed=2, wanted=2)
    assert driver.snapshot.timings == {
        "preflight": 1,
        "create": 2,
        "start": 3,
        "tunnel": 4,
        "probe": 5,
        "place": 6,
        "total": 21,
    }
    kinds = [said.kind for said in driver.said]
    steps = ["preflight", "create", "start", "tunnel", "probe", "place"]
    assert [kind for kind in kinds if kind.endswith(".done")] == [
        f"connect.{step}.done" for step in steps
    ]
    assert kinds[-1] == "connect.serving"


def test_placement_may_come_before_the_proxy_answers() -> None:
    driver = to_start()
    place(driver, 0)
    place(driver, 1)
    driver.news("tenant.running", placed=2, wanted=2)
    assert driver.at(m.Phase.START)
    driver.news("proxy.serving")
    driver.put(TUNNEL, m.Probed())
    assert driver.at(m.Phase.SERVE)


def test_without_a_word_of_the_gang_placed_slices_are_enough() -> None:
    driver = to_place()
    place(driver, 0)
    assert driver.at(m.Phase.PLACE)
    place(driver, 1)
    assert driver.at(m.Phase.SERVE)


def test_elastic_slices_may_be_missing() -> None:
    driver = to_place(asking(elastic_slices=1))
    place(driver, 0)
    assert driver.at(m.Phase.SERVE)
    assert [view.state for view in driver.snapshot.slices] == ["placed", "unplaced"]


def test_ready_is_enough_where_placement_is_not_waited_for() -> None:
    driver = to_place(asking(wait="ready"))
    assert driver.at(m.Phase.SERVE)
    assert not driver.snapshot.placed
    driver.news("tenant.running", placed=2, wanted=2)
    assert driver.snapshot.placed


def test_asking_for_nothing_is_asking_for_one_of_the_first_type() -> None:
    driver = to_start(asking(expected_tpu_instances=None))
    assert [view.instance_type for view in driver.snapshot.slices] == [TYPE]


def test_a_slice_that_moves_is_seen_to() -> None:
    driver = to_serve()
    driver.news("slice.unplaced", "worker 0 is gone", virtual_index=1, slice_id="slice-1")
    assert [view.state for view in driver.snapshot.slices] == ["placed", "unplaced"]
    place(driver, 1, generation=7)
    assert driver.snapshot.slices[1].generation == 7
    assert driver.at(m.Phase.SERVE)


# ---- undoing


@pytest.mark.parametrize("reach", RISING.values(), ids=RISING.keys())
def test_a_cancel_at_any_step_leaves_nothing(reach: Callable[[], Driver]) -> None:
    driver = reach()
    driver.put(m.Cancelled(reason="closed"))
    driver.put(m.Cancelled(reason="its owner has ended"))
    ends_clean(driver)


@pytest.mark.parametrize("name", ["preflight", "create", "tunnel", "probe"])
def test_a_failed_step_leaves_nothing(name: str) -> None:
    driver = RISING[name]()
    driver.put(m.StepFailed(error=TunnelError("no way")))
    ends_clean(driver, m.Phase.FAILED)
    assert isinstance(driver.error, TunnelError)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("preflight", ServiceNotReady),
        ("create", ProxyFailed),
        ("start", ProxyFailed),
        ("tunnel", TunnelError),
        ("probe", TunnelError),
        ("place", PlacementTimeout),
    ],
)
def test_a_step_that_does_not_end_is_ended(name: str, kind: type[SharedPathwaysError]) -> None:
    driver = RISING[name]()
    driver.expire()
    ends_clean(driver, m.Phase.FAILED)
    assert type(driver.error) is kind
    assert "100 s" in driver.error.message


def test_a_create_without_an_answer_is_not_taken_for_a_proxy_that_does_not_serve() -> None:
    driver = RISING["create"]()
    driver.expire()
    assert driver.error is not None
    assert "whether it has created the proxy isc-proxy-ada" in driver.error.message
    assert "begin to serve" not in driver.error.message


def test_a_service_that_is_waited_for_says_why_and_is_named_in_the_error() -> None:
    driver = Driver()
    driver.news("service.waiting", "1 of 2 slices", ready=1, wanted=2, pods="w-0: a\nw-1: b")
    assert [e.reason for e in driver.said if e.kind == "service.waiting"] == ["1 of 2 slices"]
    driver.expire()
    ends_clean(driver, m.Phase.FAILED)
    error = driver.error
    assert isinstance(error, ServiceNotReady)
    assert (error.ready, error.wanted, error.pods) == (1, 2, ("w-0: a", "w-1: b"))
    assert "1 of 2 slices" in str(error)


def test_a_broken_tunnel_matters_only_once_jax_may_be_on_it() -> None:
    driver = to_probe()
    driver.news("tunnel.broken", "reset")
    assert driver.at(m.Phase.PROBE)
    driver = to_serve()
    driver.news("tunnel.broken", "the API server went away")
    driver.expire()
    ends_clean(driver, m.Phase.FAILED)
    assert isinstance(driver.error, TunnelError)
    assert "the API server went away" in driver.error.message
    assert driver.error.hint == "connect again"


def test_the_end_of_the_proxy_explains_the_tunnel_that_broke_by_it() -> None:
    driver = to_serve()
    driver.news("tunnel.broken", "reset")
    assert driver.machine.next_deadline == driver.now + TUNNEL_SETTLE_S
    driver.news("proxy.exited", "its pod was deleted", outcome="pod_deleted")
    ends_clean(driver, m.Phase.FAILED)
    assert isinstance(driver.error, ProxyFailed)
    assert "its pod was deleted" in driver.error.message


def test_who_closes_what_has_broken_already_is_told() -> None:
    driver = to_serve()
    driver.news("tunnel.broken", "reset")
    driver.put(m.Cancelled(reason="closed"))
    ends_clean(driver, m.Phase.FAILED)
    assert isinstance(driver.error, TunnelError)


@pytest.mark.parametrize("name", ["probe", "serve"])
def test_a_tunnel_that_is_refused_for_good_ends_it_at_once(name: str) -> None:
    denied = AccessDenied("you may not", verb="create", resource="pods/portforward", hint="ask")
    driver = RISING[name]()
    driver.news("tunnel.broken", "no", final=True, error=json.dumps(denied.to_json()))
    ends_clean(driver, m.Phase.FAILED)
    error = driver.error
    assert isinstance(error, AccessDenied)
    assert (error.verb, error.resource, error.hint) == ("create", "pods/portforward", "ask")
    assert "isc-proxy-ada cannot go on: you may not" in error.message


def test_a_view_that_is_lost_for_lack_of_permission_is_a_matter_of_access() -> None:
    driver = to_serve()
    denied = AccessDenied("log in", verb="connect", resource="cluster", hint="log in again")
    driver.news("home.lost", "no", error=json.dumps(denied.to_json()))
    assert isinstance(driver.error, AccessDenied)
    driver = to_serve()
    driver.news("home.lost", "no", error=json.dumps(SharedPathwaysError("no").to_json()))
    assert isinstance(driver.error, TunnelError)


@pytest.mark.parametrize("outcome", ["image", "config", "forbidden"])
def test_a_proxy_that_cannot_be_started_says_what_to_do(outcome: str) -> None:
    driver = to_start()
    driver.news("proxy.exited", "it is not there", outcome=outcome, exit_code=None)
    driver.expire()
    ends_clean(driver, m.Phase.FAILED)
    assert isinstance(driver.error, ProxyFailed)
    assert "cannot be started: it is not there" in driver.error.message
    assert driver.error.hint


@pytest.mark.parametrize("outcome", ["pod_deleted", "evicted", "node_lost", "deadline"])
def test_a_proxy_that_was_taken_away_did_not_end_by_itself(outcome: str) -> None:
    driver = to_serve()
    driver.news("proxy.exited", "node-1 is gone", outcome=outcome)
    assert "node-1 is gone" in driver.error.message
    assert "by itself" not in driver.error.message
    driver = to_serve()
    driver.news("proxy.exited", "exit code 3", outcome="crashed")
    assert "ended by itself: exit code 3" in driver.error.message


def test_the_hint_tells_whether_work_is_lost() -> None:
    hints = []
    for driver in (to_start(), to_serve()):
        driver.news("proxy.exited", exit_code=3)
        if driver.machine.next_deadline is not None:
            driver.expire()
        hints.append(driver.error.hint)
    before, after = hints
    assert "lost" not in before
    assert "is lost" in after


def test_a_full_quota_is_a_lack_of_capacity() -> None:
    driver = to_start()
    driver.news("proxy.exited", "exceeded quota: pods", outcome="quota")
    driver.expire()
    ends_clean(driver, m.Phase.FAILED)
    assert type(driver.error) is CapacityError
    assert "exceeded quota: pods" in driver.error.message


def test_a_warning_of_the_service_is_told() -> None:
    driver = Driver()
    driver.news("service.warning", "JAX is older there")
    assert [e.reason for e in driver.said if e.kind == "service.warning"] == ["JAX is older there"]
    assert driver.at(m.Phase.PREFLIGHT)


def test_the_pod_is_known_once_it_serves() -> None:
    driver = to_start()
    driver.news("proxy.serving", pod="p-x7k2p")
    assert driver.snapshot.pod == "p-x7k2p"


def test_a_create_that_failed_may_have_created() -> None:
    driver = to_create()
    effects = driver.put(m.StepFailed(error=SharedPathwaysError("connection reset")))
    assert effects == [m.StopStep(), m.DeleteProxy(uid="")]


def test_a_create_no_longer_wanted_is_waited_for_so_that_its_proxy_is_found() -> None:
    driver = to_create()
    assert driver.put(m.Cancelled(reason="closed")) == []
    assert driver.put(CREATED) == [m.StopStep(), m.DeleteProxy(uid="uid-1")]


def test_a_create_that_never_answers_is_broken_off() -> None:
    driver = to_create()
    driver.put(m.Cancelled(reason="closed"))
    assert driver.machine.next_deadline == driver.now + UNDO_S
    assert driver.expire() == [m.StopStep(), m.DeleteProxy(uid="")]


def test_what_could_not_be_deleted_is_named() -> None:
    driver = to_serve()
    driver.put(m.Cancelled(reason="closed"))
    driver.put(m.StepFailed(error=SharedPathwaysError("forbidden")))
    assert driver.at(m.Phase.FAILED)
    assert driver.snapshot.left == "proxy isc-proxy-ada: forbidden"


def test_a_deletion_ends_in_time_and_has_longer_when_nobody_waits() -> None:
    driver = to_serve()
    driver.put(m.Cancelled(reason="closed"))
    assert driver.machine.next_deadline == driver.now + DELETE_TIMEOUT_S
    driver.put(m.Cancelled(reason="its owner has ended", delete_timeout_s=600.0))
    assert driver.machine.next_deadline == driver.now + 600
    assert driver.expire()[0] == m.StopStep()
    assert "within 600 s" in driver.snapshot.left


def test_late_answers_change_nothing() -> None:
    driver = to_serve()
    driver.put(m.Cancelled(reason="closed"), m.Deleted())
    before = driver.snapshot
    for event in (PREFLIGHT, CREATED, TUNNEL, m.Probed(), m.Deleted(), m.Tick()):
        assert driver.put(event, after=1000) == []
    assert driver.snapshot == before


# ---- the queue


def queued(timeout: float | None) -> Driver:
    driver = to_place(asking(queue_timeout=timeout))
    driver.news("tenant.queued", "0 free", position=2, holders="ada@a: 1 x t\nbob@b: 1 x t")
    return driver


def test_who_is_preempted_is_not_placed_until_all_of_the_gang_is_back() -> None:
    driver = to_serve()
    assert driver.machine.snapshot.is_placed_now(2)
    driver.news("tenant.preempted", "preempted by eve")
    driver.news("tenant.queued", "0 free", position=1)
    snapshot = driver.machine.snapshot
    assert (snapshot.state, snapshot.phase, snapshot.placed) == ("preempted", m.Phase.SERVE, True)
    assert not snapshot.is_placed_now(2)
    driver.news("tenant.running", placed=2, wanted=2)
    snapshot = driver.machine.snapshot
    assert (snapshot.state, snapshot.position) == ("serve", None)
    assert snapshot.is_placed_now(2)


def test_a_slice_that_is_lost_counts_for_what_the_gang_lacks() -> None:
    driver = to_serve()
    driver.news("slice.unplaced", "lost", virtual_index=1, slice_id="slice-1", generation=1)
    assert driver.machine.snapshot.placed
    assert not driver.machine.snapshot.is_placed_now(2)
    # (One of two is enough for who may do with one.)
    assert driver.machine.snapshot.is_placed_now(1)
    place(driver, 1, generation=2)
    assert driver.machine.snapshot.is_placed_now(2)


def test_the_queue_has_a_time_of_its_own() -> None:
    driver = queued(500.0)
    assert (driver.snapshot.position, driver.snapshot.holders) == (
        2,
        ("ada@a: 1 x t", "bob@b: 1 x t"),
    )
    assert driver.machine.next_deadline == driver.now + 500 + QUEUE_SLACK_S
    driver.now += 400
    driver.news("tenant.queued", "0 free", position=1, holders="ada@a: 1 x t")
    assert driver.machine.next_deadline == driver.now + 100 + QUEUE_SLACK_S
    driver.news("tenant.running", placed=2, wanted=2)
    assert driver.at(m.Phase.SERVE)
    assert driver.snapshot.position is None


def test_slow_placement_after_the_queue_is_a_placement_timeout() -> None:
    driver = queued(500.0)
    driver.now += 495
    driver.news("tenant.dequeued", "other connections leave enough slices")
    assert (driver.snapshot.position, driver.snapshot.holders) == (None, ())
    assert driver.machine.next_deadline == driver.now + REQUEST.timeout_s
    driver.put(m.Tick(), after=30)
    assert driver.at(m.Phase.PLACE)
    driver.expire()
    assert isinstance(driver.error, PlacementTimeout)
    assert driver.error.holders == ()
    ends_clean(driver, m.Phase.FAILED)


def test_a_session_that_is_queued_again_has_the_rest_of_its_queue_time() -> None:
    driver = queued(500.0)
    driver.now += 400
    driver.news("tenant.dequeued")
    driver.now += 50
    driver.news("tenant.queued", "0 free", holders="eve@a: 1 x t")
    assert driver.machine.next_deadline == driver.now + 100 + QUEUE_SLACK_S
    driver.expire()
    assert isinstance(driver.error, SlicesTaken)
    assert driver.error.holders == ("eve@a: 1 x t",)


def test_a_queue_that_takes_too_long_is_taken_slices_with_the_position() -> None:
    driver = queued(500.0)
    driver.expire()
    error = driver.error
    assert isinstance(error, SlicesTaken)
    assert (error.position, error.holders) == (2, ("ada@a: 1 x t", "bob@b: 1 x t"))
    assert error.wanted == {TYPE: 2}
    ends_clean(driver, m.Phase.FAILED)


def test_an_endless_queue_has_no_deadline_and_can_be_left() -> None:
    driver = queued(float("inf"))
    assert driver.machine.next_deadline is None
    driver.put(m.Cancelled(reason="interrupted"))
    ends_clean(driver)


def test_who_is_out_of_the_queue_has_the_whole_time_to_start() -> None:
    request = asking(queue_timeout=5000.0)
    driver = to_start(request)
    driver.news("tenant.queued", position=1)
    driver.put(m.Tick(), after=4000)
    driver.news("tenant.running", placed=2, wanted=2)
    assert driver.at(m.Phase.START)
    assert driver.machine.next_deadline == driver.now + request.timeout_s


# ---- refusals and losses


def refused(kind: str, **data: str | float) -> SharedPathwaysError:
    driver = to_place()
    driver.news("tenant.refused", kind=kind, message="No, because", **data)
    ends_clean(driver, m.Phase.FAILED)
    assert "No, because" in driver.error.message
    return driver.error


def test_taken_slices_name_their_holders() -> None:
    error = refused(
        "slices_taken",
        wanted=json.dumps({TYPE: 2}),
        free=json.dumps({TYPE: 1}),
        holders="ada@laptop: 1 x tpuv6e:2x2",
        position=3,
    )
    assert isinstance(error, SlicesTaken)
    assert isinstance(error, CapacityError)
    assert (error.wanted, error.free) == ({TYPE: 2}, {TYPE: 1})
    assert (error.holders, error.position) == (("ada@laptop: 1 x tpuv6e:2x2",), 3)
    assert error.message.endswith("No, because. ada@laptop holds 1.")
    assert "queue_timeout" in error.hint
    assert error.spares == {}
    assert "spare" not in error.hint


@pytest.mark.parametrize("kind", ["slices_taken", "too_many"])
def test_a_spare_in_the_way_is_named_with_what_to_do(kind: str) -> None:
    error = refused(kind, spares=json.dumps({TYPE: 1}))
    assert f"1 x {TYPE} would do, but the service keeps spares" in str(error)
    assert "`sps serve --spares 0`" in str(error)
    if isinstance(error, SlicesTaken):
        assert error.spares == {TYPE: 1}


def test_an_unknown_type_names_those_there_are() -> None:
    error = refused("unknown_type", types="tpuv5e:2x2\ntpuv6e:4x4")
    assert isinstance(error, InvalidRequestError)
    assert error.field == "expected_tpu_instances"
    assert "tpuv5e:2x2, tpuv6e:4x4" in error.expected


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("too_many", InvalidRequestError),
        ("lost", SliceLost),
        ("released", ProxyFailed),
        ("failed_precondition", CapacityError),
    ],
)
def test_other_refusals(kind: str, expected: type[SharedPathwaysError]) -> None:
    assert type(refused(kind)) is expected


def test_a_proxy_that_ends_while_serving_says_why() -> None:
    driver = to_serve()
    driver.news(
        "proxy.exited", "ended after the grace", exit_code=70, log_tail="one\ntwo", report="{}"
    )
    error = driver.error
    assert isinstance(error, ProxyFailed)
    assert (error.exit_code, error.log_tail) == (70, ("one", "two"))
    assert "ended after the grace" in error.message
    ends_clean(driver, m.Phase.FAILED)


def test_the_log_is_fetched_where_the_end_brought_none() -> None:
    driver = to_serve()
    driver.news("proxy.exited", exit_code=-9)
    assert driver.effects[-1] == m.DeleteProxy(uid="uid-1", log_lines=20)
    driver.put(m.Deleted(log_tail=("last words",)))
    error = driver.error
    assert isinstance(error, ProxyFailed)
    assert error.log_tail == ("last words",)
    assert "signal 9" in error.message


def test_a_refusal_explains_the_end_that_came_before_it() -> None:
    driver = to_probe()
    assert driver.news("proxy.exited", exit_code=1) == []
    driver.put(m.StepFailed(error=TunnelError("connection refused")))
    driver.news("home.lost", "the watch ended")
    driver.news("tenant.refused", kind="slices_taken", message="taken")
    assert isinstance(driver.error, SlicesTaken)
    ends_clean(driver, m.Phase.FAILED)


def test_a_refusal_may_stand_in_the_report_of_the_proxy_that_ended() -> None:
    driver = to_probe()
    report = {
        "kind": "slices_taken",
        "reason": "no tpuv6e:2x2 slice is free (2 wanted)",
        "wanted": {TYPE: 2},
        "free": {TYPE: 0},
        "holders": ["ada@laptop: 2 x tpuv6e:2x2"],
        "position": None,
    }
    driver.news("proxy.exited", "refused", exit_code=69, report=json.dumps(report))
    error = driver.error
    assert isinstance(error, SlicesTaken)
    assert (error.wanted, error.free, error.position) == ({TYPE: 2}, {TYPE: 0}, None)
    assert error.holders == ("ada@laptop: 2 x tpuv6e:2x2",)
    assert error.message == ("No tpuv6e:2x2 slice is free (2 wanted). ada@laptop holds 2.")
    ends_clean(driver, m.Phase.FAILED)


@pytest.mark.parametrize("report", ["", "no json", "[]", '{"kind":"lost_program"}'])
def test_another_report_is_no_refusal(report: str) -> None:
    driver = to_serve()
    driver.news("proxy.exited", "why", exit_code=75, report=report)
    assert isinstance(driver.error, ProxyFailed)


def test_an_end_that_nothing_explains_is_not_waited_over() -> None:
    driver = to_probe()
    driver.news("proxy.exited", exit_code=1)
    assert driver.machine.next_deadline == driver.now + SETTLE_S
    driver.expire()
    assert isinstance(driver.error, ProxyFailed)
    ends_clean(driver, m.Phase.FAILED)


@pytest.mark.parametrize("name", ["start", "tunnel", "probe", "place", "serve"])
@pytest.mark.parametrize(
    ("kind", "expected"), [("home.lost", TunnelError), ("proxy.deleted", ProxyFailed)]
)
def test_the_loss_of_the_proxy_ends_the_session(
    name: str, kind: str, expected: type[SharedPathwaysError]
) -> None:
    driver = RISING[name]()
    driver.news(kind, "it is gone")
    assert type(driver.error) is expected
    assert "it is gone" in driver.error.message
    ends_clean(driver, m.Phase.FAILED)


def test_a_snapshot_travels() -> None:
    driver = queued(5.0)
    driver.expire()
    data = json.loads(json.dumps(driver.snapshot.to_json()))
    assert json.loads(json.dumps(m.Snapshot.from_json(data).to_json())) == data
    assert m.Snapshot.from_json(data).slices == driver.snapshot.slices


def test_slices_that_are_not_placed_in_time_are_told_with_the_last_line_of_the_log() -> None:
    driver = RISING["place"]()
    driver.news("tenant.queued", "all are taken", position=2, holders="ada@host: 2 x T")
    [*_, delete] = driver.expire()
    assert isinstance(delete, m.DeleteProxy)
    assert delete.log_lines > 0
    driver.put(m.Deleted(log_tail=("Signaling to RM", "Waiting for placement")))
    error = driver.error
    assert isinstance(error, PlacementTimeout)
    assert error.last_line == "Waiting for placement"
    assert error.holders == ("ada@host: 2 x T",)
    for text in ("Waiting for placement", "ada@host", "0 of 2 slices"):
        assert text in error.message
