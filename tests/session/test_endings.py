"""Cancelled and failed sessions: each deletes what it created."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from shared_pathways_service.errors import (
    AccessDenied,
    PlacementTimeout,
    ProxyFailed,
    ServiceNotReady,
    SharedPathwaysError,
    TunnelError,
)
from shared_pathways_service.session import messages as m
from shared_pathways_service.session.phase_deadlines import UNDO_S
from shared_pathways_service.session.state_machine import (
    TUNNEL_SETTLE_S,
)
from tests.session.driver import (
    CREATED,
    DELETE_TIMEOUT_S,
    PREFLIGHT,
    RISING,
    TUNNEL,
    Driver,
    ends_clean,
    to_create,
    to_probe,
    to_serve,
)


@pytest.mark.parametrize("reach", RISING.values(), ids=RISING.keys())
def test_a_cancel_at_any_step_deletes_the_proxy(reach: Callable[[], Driver]) -> None:
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
def test_each_step_has_a_timeout(name: str, kind: type[SharedPathwaysError]) -> None:
    driver = RISING[name]()
    driver.expire()
    ends_clean(driver, m.Phase.FAILED)
    assert type(driver.error) is kind
    assert "100 s" in driver.error.message


def test_a_create_without_an_answer_is_not_reported_as_a_silent_proxy() -> None:
    driver = RISING["create"]()
    driver.expire()
    assert driver.error is not None
    assert "whether it has created the proxy isc-proxy-ada" in driver.error.message
    assert "begin to serve" not in driver.error.message


def test_a_wait_for_the_service_is_explained_and_named_in_the_error() -> None:
    driver = Driver()
    driver.news("service.waiting", "1 of 2 slices", ready=1, wanted=2, pods="w-0: a\nw-1: b")
    assert [e.reason for e in driver.said if e.kind == "service.waiting"] == ["1 of 2 slices"]
    driver.expire()
    ends_clean(driver, m.Phase.FAILED)
    error = driver.error
    assert isinstance(error, ServiceNotReady)
    assert (error.ready, error.wanted, error.pods) == (1, 2, ("w-0: a", "w-1: b"))
    assert "1 of 2 slices" in str(error)


def test_a_broken_tunnel_fails_the_session_only_once_jax_may_use_it() -> None:
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


def test_the_end_of_the_proxy_explains_its_broken_tunnel() -> None:
    driver = to_serve()
    driver.news("tunnel.broken", "reset")
    assert driver.machine.next_deadline == driver.now + TUNNEL_SETTLE_S
    driver.news("proxy.exited", "its pod was deleted", outcome="pod_deleted")
    ends_clean(driver, m.Phase.FAILED)
    assert isinstance(driver.error, ProxyFailed)
    assert "its pod was deleted" in driver.error.message


def test_closing_a_broken_session_reports_the_failure() -> None:
    driver = to_serve()
    driver.news("tunnel.broken", "reset")
    driver.put(m.Cancelled(reason="closed"))
    ends_clean(driver, m.Phase.FAILED)
    assert isinstance(driver.error, TunnelError)


@pytest.mark.parametrize("name", ["probe", "serve"])
def test_a_permanently_refused_tunnel_ends_the_session_at_once(name: str) -> None:
    denied = AccessDenied("you may not", verb="create", resource="pods/portforward", hint="ask")
    driver = RISING[name]()
    driver.news("tunnel.broken", "no", final=True, error=json.dumps(denied.to_json()))
    ends_clean(driver, m.Phase.FAILED)
    error = driver.error
    assert isinstance(error, AccessDenied)
    assert (error.verb, error.resource, error.hint) == ("create", "pods/portforward", "ask")
    assert "isc-proxy-ada cannot go on: you may not" in error.message


def test_a_watch_without_permission_is_access_denied() -> None:
    driver = to_serve()
    denied = AccessDenied("log in", verb="connect", resource="cluster", hint="log in again")
    driver.news("home.lost", "no", error=json.dumps(denied.to_json()))
    assert isinstance(driver.error, AccessDenied)
    driver = to_serve()
    driver.news("home.lost", "no", error=json.dumps(SharedPathwaysError("no").to_json()))
    assert isinstance(driver.error, TunnelError)


def test_a_failed_create_is_followed_by_a_deletion() -> None:
    driver = to_create()
    effects = driver.put(m.StepFailed(error=SharedPathwaysError("connection reset")))
    assert effects == [m.StopStep(), m.DeleteProxy(uid="")]


def test_a_cancelled_create_is_awaited_to_find_its_proxy() -> None:
    driver = to_create()
    assert driver.put(m.Cancelled(reason="closed")) == []
    assert driver.put(CREATED) == [m.StopStep(), m.DeleteProxy(uid="uid-1")]


def test_a_create_without_an_answer_is_aborted() -> None:
    driver = to_create()
    driver.put(m.Cancelled(reason="closed"))
    assert driver.machine.next_deadline == driver.now + UNDO_S
    assert driver.expire() == [m.StopStep(), m.DeleteProxy(uid="")]


def test_a_failed_deletion_is_named() -> None:
    driver = to_serve()
    driver.put(m.Cancelled(reason="closed"))
    driver.put(m.StepFailed(error=SharedPathwaysError("forbidden")))
    assert driver.at(m.Phase.FAILED)
    assert driver.snapshot.left == "proxy isc-proxy-ada: forbidden"


def test_a_deletion_times_out_later_if_no_caller_waits() -> None:
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
