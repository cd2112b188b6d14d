"""The session in the queue, and after a refusal of the resource manager."""

from __future__ import annotations

import json

import pytest

from shared_pathways_service.errors import (
    CapacityError,
    InvalidRequestError,
    PlacementTimeout,
    ProxyFailed,
    SharedPathwaysError,
    SliceLost,
    SlicesTaken,
)
from shared_pathways_service.events.tenants import TenantRefused
from shared_pathways_service.session import messages as m
from shared_pathways_service.session.failures import when_refused
from shared_pathways_service.session.phase_deadlines import QUEUE_SLACK_S
from tests.session.driver import (
    REQUEST,
    TYPE,
    asking,
    ends_clean,
    place,
    queued,
    to_place,
    to_serve,
    to_start,
)


def test_a_preempted_session_is_placed_when_its_gang_is_complete() -> None:
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


def test_a_lost_slice_counts_as_missing_from_the_gang() -> None:
    driver = to_serve()
    driver.news("slice.unplaced", "lost", virtual_index=1, slice_id="slice-1", generation=1)
    assert driver.machine.snapshot.placed
    assert not driver.machine.snapshot.is_placed_now(2)
    # (One of two is enough for who may do with one.)
    assert driver.machine.snapshot.is_placed_now(1)
    place(driver, 1, generation=2)
    assert driver.machine.snapshot.is_placed_now(2)


def test_the_queue_has_its_own_timeout() -> None:
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


def test_a_session_queued_again_has_the_rest_of_its_queue_time() -> None:
    driver = queued(500.0)
    driver.now += 400
    driver.news("tenant.dequeued")
    driver.now += 50
    driver.news("tenant.queued", "0 free", holders="eve@a: 1 x t")
    assert driver.machine.next_deadline == driver.now + 100 + QUEUE_SLACK_S
    driver.expire()
    assert isinstance(driver.error, SlicesTaken)
    assert driver.error.holders == ("eve@a: 1 x t",)


def test_a_queue_timeout_is_slices_taken_with_the_position() -> None:
    driver = queued(500.0)
    driver.expire()
    error = driver.error
    assert isinstance(error, SlicesTaken)
    assert (error.position, error.holders) == (2, ("ada@a: 1 x t", "bob@b: 1 x t"))
    assert error.wanted == {TYPE: 2}
    ends_clean(driver, m.Phase.FAILED)


def test_an_endless_queue_has_no_deadline_and_can_be_cancelled() -> None:
    driver = queued(float("inf"))
    assert driver.machine.next_deadline is None
    driver.put(m.Cancelled(reason="interrupted"))
    ends_clean(driver)


def test_the_start_timeout_begins_after_the_queue() -> None:
    request = asking(queue_timeout=5000.0)
    driver = to_start(request)
    driver.news("tenant.queued", position=1)
    driver.put(m.Tick(), after=4000)
    driver.news("tenant.running", placed=2, wanted=2)
    assert driver.at(m.Phase.START)
    assert driver.machine.next_deadline == driver.now + request.timeout_s


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
def test_a_refusal_because_of_a_spare_has_a_hint(kind: str) -> None:
    error = refused(kind, spares=json.dumps({TYPE: 1}))
    assert f"1 x {TYPE} would do, but the service keeps spares" in str(error)
    assert "`sps serve --spares 0`" in str(error)
    if isinstance(error, SlicesTaken):
        assert error.spares == {TYPE: 1}


@pytest.mark.parametrize("kind", ["slices_taken", "too_many"])
def test_a_refusal_of_a_service_of_the_user_says_how_to_get_more(kind: str) -> None:
    event = TenantRefused(refusal=kind, message="No, because")
    assert when_refused(REQUEST, event, "a larger one").hint.endswith("a larger one")
    assert not when_refused(REQUEST, event).hint.endswith("; ")


def test_an_unknown_type_is_refused_with_the_known_ones() -> None:
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
