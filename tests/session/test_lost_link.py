"""A session whose link is lost: it waits, without limits while it serves, until it is resumed."""

from __future__ import annotations

import datetime

import pytest

from shared_pathways_service.errors import AccessDenied, ProxyFailed, SlicesTaken, TunnelError
from shared_pathways_service.events import session as ev
from shared_pathways_service.session import messages as m
from shared_pathways_service.session.link_view import LinkView
from shared_pathways_service.session.phase_deadlines import QUEUE_SLACK_S
from tests.session.driver import Driver, asking, ends_clean, to_probe, to_serve, to_start

LOST_AT = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC).timestamp()


def at(seconds: float) -> str:
    moment = datetime.datetime.fromtimestamp(LOST_AT + seconds, datetime.UTC)
    return moment.isoformat()


def lose(driver: Driver) -> None:
    driver.put(
        ev.LinkLost(reason="reset by the peer", time=at(0)),
        ev.LinkDialFailed(attempt=1, reason="no route", time=at(1)),
        ev.LinkDialFailed(attempt=2, reason="connection refused", time=at(3)),
    )


def due_of(driver: Driver) -> float | None:
    return driver.machine.next_deadline


def test_the_link_is_known_from_its_first_loss_on() -> None:
    driver = to_serve()
    before = driver.snapshot
    assert before.link is None
    lose(driver)
    link = driver.snapshot.link
    assert link == LinkView(
        state="lost",
        lost_at=LOST_AT,
        attempts=2,
        reason="reset by the peer",
        error="connection refused",
    )
    assert link.text(LOST_AT + 12.4) == (
        "link lost 12 s ago, reconnecting (attempt 3): connection refused"
    )
    lost = driver.snapshot
    assert lost.waits_for_link
    driver.put(ev.LinkResumed(duration_s=43.0, attempts=3, time=at(43)))
    link = driver.snapshot.link
    assert link is not None
    assert (link.state, link.resumed_at, link.attempts) == ("up", LOST_AT + 43, 3)
    assert link.text(LOST_AT + 99) == "link resumed after 43 s"
    assert not driver.snapshot.waits_for_link
    assert [event.kind for event in driver.said[-4:]] == [
        "link.lost",
        "link.dial_failed",
        "link.dial_failed",
        "link.resumed",
    ]


def test_another_loss_begins_anew() -> None:
    driver = to_serve()
    lose(driver)
    driver.put(ev.LinkResumed(attempts=3), ev.LinkLost(reason="again", time=at(60)))
    assert driver.snapshot.link == LinkView(state="lost", lost_at=LOST_AT + 60, reason="again")


def test_a_snapshot_with_a_link_comes_back_from_json_and_one_without_is_read() -> None:
    driver = to_serve()
    lose(driver)
    data = driver.snapshot.to_json()
    assert m.Snapshot.from_json(data) == driver.snapshot
    newer = {**data, "link": {**data["link"], "colour": "red"}}
    assert m.Snapshot.from_json(newer) == driver.snapshot
    del data["link"]
    assert m.Snapshot.from_json(data).link is None


def test_nothing_times_out_while_the_session_serves_and_its_link_is_lost() -> None:
    driver = to_start(asking(queue_timeout=30.0, wait="ready"))
    driver.news("proxy.serving")
    driver.put(m.TunnelOpen(address="unix:/proxy"), m.Probed())
    driver.news("tenant.queued", "0 free", position=2)
    assert driver.at(m.Phase.SERVE)
    assert due_of(driver) is not None
    lose(driver)
    assert due_of(driver) is None
    driver.put(m.Tick(), after=3600.0)
    assert driver.at(m.Phase.SERVE)
    driver.put(ev.LinkResumed())
    assert due_of(driver) == driver.now + QUEUE_SLACK_S
    driver.expire()
    assert isinstance(driver.error, SlicesTaken)
    ends_clean(driver, m.Phase.FAILED)


def test_a_connection_that_starts_does_not_wait_longer_for_a_link() -> None:
    driver = to_probe()
    due = driver.machine.next_deadline
    lose(driver)
    assert driver.machine.next_deadline == due
    driver.expire()
    assert isinstance(driver.error, TunnelError)
    ends_clean(driver, m.Phase.FAILED)


def test_a_failed_link_reports_since_when_why_and_what_is_lost() -> None:
    driver = to_serve()
    lose(driver)
    driver.put(ev.TunnelBroken(reason="the far end restarted", final=True, was_resumable=True))
    assert driver.at(m.Phase.SERVE)
    driver.expire()
    assert isinstance(driver.error, TunnelError)
    message = str(driver.error)
    for part in (
        "gone for good: the far end restarted",
        "lost at 2026-01-02T03:04:05.000Z: reset by the peer",
        "arrays and programs on its slices are lost",
        "docs/elastic.md",
    ):
        assert part in message
    ends_clean(driver, m.Phase.FAILED)
    assert driver.snapshot.link is None


@pytest.mark.parametrize("phase", [m.Phase.DELETE, m.Phase.CLOSED])
def test_a_session_that_ends_does_not_wait_for_its_link(phase: m.Phase) -> None:
    driver = to_serve()
    lose(driver)
    driver.put(m.Cancelled(reason="closed"))
    if phase is m.Phase.CLOSED:
        driver.put(m.Deleted())
    assert driver.at(phase)
    assert not driver.snapshot.waits_for_link


def test_a_proxy_that_ended_explains_the_end_of_its_link() -> None:
    driver = to_serve()
    lose(driver)
    driver.put(ev.TunnelBroken(reason="pod not found", final=True, was_resumable=True))
    assert driver.at(m.Phase.SERVE)
    driver.put(ev.ProxyExited(outcome="evicted", reason="the node was low on memory"))
    assert isinstance(driver.error, ProxyFailed)
    assert "the node was low on memory" in str(driver.error)


def test_a_permission_that_was_withdrawn_ends_the_session_at_once() -> None:
    driver = to_serve()
    lose(driver)
    denied = AccessDenied("you may not", verb="create", resource="pods/portforward").to_json()
    driver.put(ev.TunnelBroken(error=denied, reason="x", final=True, was_resumable=True))
    assert isinstance(driver.error, AccessDenied)
