"""The session step by step until it serves, and its slices afterwards."""

from __future__ import annotations

import json

from shared_pathways_service.errors import (
    PlacementTimeout,
)
from shared_pathways_service.session import messages as m
from tests.session.driver import (
    CREATED,
    PREFLIGHT,
    RISING,
    TUNNEL,
    TYPE,
    Driver,
    asking,
    place,
    queued,
    to_place,
    to_serve,
    to_start,
)


def test_a_session_reaches_serve_step_by_step() -> None:
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


def test_placed_slices_are_enough_without_an_event_of_the_gang() -> None:
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


def test_a_session_without_a_placement_wait_serves_when_ready() -> None:
    driver = to_place(asking(wait="ready"))
    assert driver.at(m.Phase.SERVE)
    assert not driver.snapshot.placed
    driver.news("tenant.running", placed=2, wanted=2)
    assert driver.snapshot.placed


def test_a_request_without_types_is_one_slice_of_the_first_type() -> None:
    driver = to_start(asking(expected_tpu_instances=None))
    assert [view.instance_type for view in driver.snapshot.slices] == [TYPE]


def test_the_view_follows_a_moved_slice() -> None:
    driver = to_serve()
    driver.news("slice.unplaced", "worker 0 is gone", virtual_index=1, slice_id="slice-1")
    assert [view.state for view in driver.snapshot.slices] == ["placed", "unplaced"]
    place(driver, 1, generation=7)
    assert driver.snapshot.slices[1].generation == 7
    assert driver.at(m.Phase.SERVE)


def test_a_snapshot_survives_json() -> None:
    driver = queued(5.0)
    driver.expire()
    data = json.loads(json.dumps(driver.snapshot.to_json()))
    assert json.loads(json.dumps(m.Snapshot.from_json(data).to_json())) == data
    assert m.Snapshot.from_json(data).slices == driver.snapshot.slices


def test_a_placement_timeout_shows_the_last_line_of_the_log() -> None:
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
