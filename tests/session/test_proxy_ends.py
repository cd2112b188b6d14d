"""The session when its proxy fails to start, ends, or is lost."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from shared_pathways_service.errors import (
    CapacityError,
    ProxyFailed,
    ServiceNotReady,
    SharedPathwaysError,
    SlicesTaken,
    TunnelError,
)
from shared_pathways_service.events import session as ev
from shared_pathways_service.events.tenants import TenantRefused
from shared_pathways_service.session import messages as m
from shared_pathways_service.session.failures import refusal_in, when_refused
from shared_pathways_service.session.state_machine import (
    SERVICE_SETTLE_S,
    SETTLE_S,
)
from tests.session.driver import (
    RISING,
    TYPE,
    Driver,
    asking,
    ends_clean,
    to_probe,
    to_serve,
    to_start,
)


@pytest.mark.parametrize("outcome", ["image", "config", "forbidden", "link"])
def test_a_proxy_that_does_not_start_has_a_hint(outcome: str) -> None:
    driver = to_start()
    driver.news("proxy.exited", "it is not there", outcome=outcome, exit_code=None)
    driver.expire()
    ends_clean(driver, m.Phase.FAILED)
    assert isinstance(driver.error, ProxyFailed)
    assert "cannot be started: it is not there" in driver.error.message
    assert driver.error.hint


@pytest.mark.parametrize("outcome", ["pod_deleted", "evicted", "node_lost", "deadline"])
def test_a_deleted_proxy_did_not_end_by_itself(outcome: str) -> None:
    driver = to_serve()
    driver.news("proxy.exited", "node-1 is gone", outcome=outcome)
    assert "node-1 is gone" in driver.error.message
    assert "by itself" not in driver.error.message
    driver = to_serve()
    driver.news("proxy.exited", "exit code 3", outcome="crashed")
    assert "ended by itself: exit code 3" in driver.error.message


def test_the_hint_says_whether_work_is_lost() -> None:
    hints = []
    for driver in (to_start(), to_serve()):
        driver.news("proxy.exited", exit_code=3)
        if driver.machine.next_deadline is not None:
            driver.expire()
        hints.append(driver.error.hint)
    before, after = hints
    assert "lost" not in before
    assert "is lost" in after


def test_a_full_quota_is_a_capacity_error() -> None:
    driver = to_start()
    driver.news("proxy.exited", "exceeded quota: pods", outcome="quota")
    driver.expire()
    ends_clean(driver, m.Phase.FAILED)
    assert type(driver.error) is CapacityError
    assert "exceeded quota: pods" in driver.error.message


def test_a_warning_of_the_service_is_announced() -> None:
    driver = Driver()
    driver.news("service.warning", "JAX is older there")
    assert [e.reason for e in driver.said if e.kind == "service.warning"] == ["JAX is older there"]
    assert driver.at(m.Phase.PREFLIGHT)


def test_the_pod_is_known_once_it_serves() -> None:
    driver = to_start()
    driver.news("proxy.serving", pod="p-x7k2p")
    assert driver.snapshot.pod == "p-x7k2p"


def test_the_end_of_a_serving_proxy_is_explained() -> None:
    driver = to_serve()
    driver.news(
        "proxy.exited", "ended after the grace", exit_code=70, log_tail="one\ntwo", report="{}"
    )
    error = driver.error
    assert isinstance(error, ProxyFailed)
    assert (error.exit_code, error.log_tail) == (70, ("one", "two"))
    assert "ended after the grace" in error.message
    ends_clean(driver, m.Phase.FAILED)


def test_the_log_is_fetched_for_an_end_without_one() -> None:
    driver = to_serve()
    driver.news("proxy.exited", exit_code=-9)
    assert driver.effects[-1] == m.DeleteProxy(uid="uid-1", log_lines=20)
    driver.put(m.Deleted(log_tail=("last words",)))
    error = driver.error
    assert isinstance(error, ProxyFailed)
    assert error.log_tail == ("last words",)
    assert "signal 9" in error.message


def test_a_later_refusal_explains_the_end_of_the_proxy() -> None:
    driver = to_probe()
    assert driver.news("proxy.exited", exit_code=1) == []
    driver.put(m.StepFailed(error=TunnelError("connection refused")))
    driver.news("home.lost", "the watch ended")
    driver.news("tenant.refused", kind="slices_taken", message="taken")
    assert isinstance(driver.error, SlicesTaken)
    ends_clean(driver, m.Phase.FAILED)


def test_the_report_of_an_ended_proxy_may_hold_a_refusal() -> None:
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


@pytest.mark.parametrize("queue_timeout_s", [None, 5.0])
@pytest.mark.parametrize(
    ("fields", "hint"),
    [
        ({}, "queue_timeout"),  # an older resource manager
        ({"waiting_is_futile": False}, "queue_timeout"),
        ({"waiting_is_futile": True}, "waiting alone does not help"),
    ],
)
def test_waiting_is_a_hint_only_where_it_helps(
    fields: dict[str, Any], hint: str, queue_timeout_s: float | None
) -> None:
    refusal = TenantRefused(refusal="slices_taken", message="no slice is free", **fields)
    error = when_refused(asking(queue_timeout=queue_timeout_s), refusal)
    assert isinstance(error, SlicesTaken)
    assert hint in (error.hint or "")
    assert ("queue_timeout" in (error.hint or "")) is (hint == "queue_timeout")
    report = {"kind": "slices_taken", "reason": "no slice is free", **fields}
    exited = ev.ProxyExited(reason="refused", report=report)
    assert refusal_in(exited) == dataclasses.replace(refusal, reason="refused")


@pytest.mark.parametrize("report", ["", "no json", "[]", '{"kind":"lost_program"}'])
def test_another_report_is_no_refusal(report: str) -> None:
    driver = to_serve()
    driver.news("proxy.exited", "why", exit_code=75, report=report)
    assert isinstance(driver.error, ProxyFailed)


def test_an_unexplained_end_is_reported_after_a_limited_wait() -> None:
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


#: As Google's proxies write them.
FULL_MEMORY = ("E1 RESOURCE_EXHAUSTED: an array", "E1 *** SIGTERM received by PID 1")
MISSING_BUCKET = ("The specified bucket does not exist.; Error … persistent cache storage gcs",)


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize(
    ("log", "cause", "advice"),
    [
        (FULL_MEMORY, "HBM", "use less memory"),
        (MISSING_BUCKET, "the bucket of its --gcs_scratch_location does not exist", "gcs_bucket="),
    ],
)
def test_a_known_error_in_the_log_is_the_cause(
    log: tuple[str, ...], cause: str, advice: str, is_late: bool
) -> None:
    driver = to_serve()
    tail = "" if is_late else "\n".join(log)
    driver.news("proxy.exited", "signal 15", outcome="crashed", exit_code=-15, log_tail=tail)
    driver.put(m.Deleted(log_tail=log if is_late else ()))
    error = driver.error
    assert isinstance(error, ProxyFailed)
    assert "ended by itself: signal 15: " in error.message
    assert cause in error.message
    assert advice in error.hint
    assert (error.exit_code, error.log_tail) == (-15, log)


@pytest.mark.parametrize("outcome", ["pod_deleted", "evicted", "node_lost", "deadline"])
def test_a_signal_that_took_the_proxy_away_is_not_a_full_memory(outcome: str) -> None:
    driver = to_serve()
    driver.news("proxy.exited", "it was deleted", outcome=outcome)
    driver.put(m.Deleted(log_tail=FULL_MEMORY))
    assert isinstance(driver.error, ProxyFailed)
    assert "HBM" not in driver.error.message
    assert driver.error.log_tail == FULL_MEMORY


FAILING = ServiceNotReady(
    "the service pw is not ready: the head crashes",
    ready=0,
    wanted=2,
    pods=("head",),
    hint="fix it",
)
BEFORE_SERVING = [name for name in RISING if name not in ("preflight", "create", "serve")]


@pytest.mark.parametrize("outcome", ["crashed", "completed"])
@pytest.mark.parametrize("name", BEFORE_SERVING)
def test_a_service_that_fails_is_the_reason_of_its_proxys_end(name: str, outcome: str) -> None:
    driver = RISING[name]()
    wanted = driver.news("proxy.exited", "exit code 1", outcome=outcome, exit_code=1)
    assert wanted == [m.ExamineService()]
    # What fails meanwhile fails for the same reason.
    driver.put(m.StepFailed(error=TunnelError("connection refused")))
    driver.news("home.lost", "the watch ended")
    driver.put(m.ServiceExamined(failure=FAILING), after=SERVICE_SETTLE_S - 1.0)
    error = driver.error
    assert isinstance(error, ServiceNotReady)
    assert error.message == (
        f"{FAILING.message}; the proxy isc-proxy-ada ended by itself: exit code 1"
    )
    assert (error.ready, error.wanted, error.pods) == (0, 2, ("head",))
    assert error.hint == "fix it"
    ends_clean(driver, m.Phase.FAILED)


def test_a_service_that_does_not_fail_ends_the_wait_for_its_failure() -> None:
    driver = to_probe()
    driver.news("proxy.exited", outcome="crashed", exit_code=1)
    exited_at = driver.now
    assert driver.machine.next_deadline == exited_at + SERVICE_SETTLE_S
    driver.put(m.ServiceExamined(), after=SETTLE_S / 2)
    # The reason of a refusal may still come.
    assert driver.machine.next_deadline == exited_at + SETTLE_S
    driver.expire()
    assert isinstance(driver.error, ProxyFailed)
    ends_clean(driver, m.Phase.FAILED)


def test_a_refusal_does_not_wait_for_the_service() -> None:
    driver = to_probe()
    driver.news("proxy.exited", outcome="crashed", exit_code=69)
    driver.news("tenant.refused", kind="slices_taken", message="taken")
    assert isinstance(driver.error, SlicesTaken)
    driver.put(m.ServiceExamined(failure=FAILING))
    assert isinstance(driver.error, SlicesTaken)
    ends_clean(driver, m.Phase.FAILED)


def test_a_service_that_is_not_examined_in_time_leaves_the_end_of_the_proxy() -> None:
    driver = to_probe()
    driver.news("proxy.exited", outcome="crashed", exit_code=1)
    driver.expire()
    assert isinstance(driver.error, ProxyFailed)
    # Likewise if the user's own time is over first.
    driver = to_probe()
    driver.put(after=95.0)
    driver.news("proxy.exited", "exit code 1", outcome="crashed", exit_code=1)
    assert driver.machine.next_deadline == 1100.0
    driver.expire()
    assert "ended by itself: exit code 1" in driver.error.message


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("probe", "evicted"),
        ("probe", "deadline"),
        ("start", "image"),
        ("start", "quota"),
        # On this machine.
        ("probe", None),
        # Its work is lost, which the error has to say.
        ("serve", "crashed"),
    ],
)
def test_another_end_has_nothing_to_do_with_the_service(name: str, outcome: str | None) -> None:
    driver = RISING[name]()
    driver.news("proxy.exited", "why", outcome=outcome, exit_code=1)
    assert m.ExamineService() not in driver.effects
