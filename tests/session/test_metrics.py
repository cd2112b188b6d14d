"""What is written of a session, and when: by lists of snapshots and numbers for the time."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared_pathways_service.session.cloud_metrics import (
    LINGER_S,
    METRICS,
    REPEAT_S,
    SPACING_S,
    Meter,
    Reading,
    place_of,
)
from shared_pathways_service.session.messages import Phase, SliceView, Snapshot

TYPE = "tpuv6e:2x2"
LEVELS = {metric.name for metric in METRICS if metric.is_level}


def snapshot(
    phase: Phase, placed: Sequence[bool] = (False, False), *, gang: bool = False, kind: str = TYPE
) -> Snapshot:
    views = tuple(
        SliceView(index=index, instance_type=kind, state="placed" if is_placed else "unplaced")
        for index, is_placed in enumerate(placed)
    )
    return Snapshot(name="isc-proxy-ada", phase=phase, slices=views, placed=gang)


SERVING = snapshot(Phase.SERVE, (True, True), gang=True)
CLOSED = snapshot(Phase.CLOSED, gang=True)


def values(readings: Sequence[Reading]) -> dict[str, float]:
    return {reading.metric.name: reading.value for reading in readings}


class Play:
    """Delivers what a meter has, whenever it is due."""

    def __init__(self, **spacing: float) -> None:
        self.meter = Meter(**spacing)
        self.now = 0.0
        self.told: list[tuple[float, dict[str, float]]] = []

    def see(self, *states: tuple[float, Snapshot]) -> None:
        for at, seen in states:
            self.run_until(at)
            self.meter.observe(seen, at)
            self.deliver()

    def run_until(self, at: float) -> None:
        while (due := self.meter.next_due) is not None and due <= at:
            self.now = max(self.now, due)
            self.deliver()
        self.now = at

    def deliver(self) -> None:
        if readings := self.meter.take(self.now):
            self.told.append((self.now, values(readings)))
            self.meter.delivered()

    def of(self, name: str) -> list[tuple[float, float]]:
        return [(at, said[name]) for at, said in self.told if name in said]


def test_the_metrics_are_those_of_the_field() -> None:
    assert {m.name: (m.value_type, m.unit) for m in METRICS} == {
        "num_active_users": ("INT64", "1"),
        "capacity_in_use": ("INT64", "chips"),
        "assignment_time": ("DOUBLE", "s"),
        "num_successful_reqs": ("INT64", "1"),
        "num_users_waiting": ("INT64", "1"),
        "requested_capacity": ("INT64", "chips"),
    }


def test_a_session_from_the_request_to_its_end() -> None:
    play = Play()
    play.see(
        (0.0, snapshot(Phase.PREFLIGHT)),
        (2.0, snapshot(Phase.CREATE)),
        (3.0, snapshot(Phase.START)),
        (7.0, snapshot(Phase.PLACE, (True, False))),
        (8.0, SERVING),
        (30.0, snapshot(Phase.DELETE, (True, True), gang=True)),
        (31.0, CLOSED),
    )
    play.run_until(31.0 + LINGER_S)
    assert play.told == [
        (0.0, {"requested_capacity": 8}),
        (3.0, {"num_users_waiting": 1}),
        (
            8.0,
            {
                "num_active_users": 1,
                "capacity_in_use": 8,
                "assignment_time": 6.0,
                "num_successful_reqs": 1,
            },
        ),
        (13.5, {"num_users_waiting": 0}),
        (30.0, {"num_active_users": 0, "capacity_in_use": 0, "requested_capacity": 0}),
    ]
    assert play.meter.is_done


def test_a_session_shorter_than_the_spacing_is_seen_all_the_same() -> None:
    play = Play()
    play.see(
        (0.0, snapshot(Phase.CREATE)), (1.0, snapshot(Phase.START)), (1.5, SERVING), (2.0, CLOSED)
    )
    assert play.meter.end_by == 2.0 + LINGER_S
    play.run_until(2.0 + LINGER_S)
    assert play.of("num_active_users") == [(1.5, 1), (1.5 + SPACING_S, 0)]
    assert play.of("num_users_waiting") == [(1.0, 1), (1.0 + SPACING_S, 0)]
    assert play.of("num_successful_reqs") == [(1.5, 1)]
    assert play.meter.is_done
    assert play.told[-1][0] <= 2.0 + LINGER_S


def test_what_there_is_no_time_to_take_back_is_not_said() -> None:
    meter = Meter()
    meter.observe(snapshot(Phase.START), 0.0)
    meter.observe(SERVING, 1.0)
    meter.observe(CLOSED, 2.0)
    # Too late for a 1 and, one spacing later, its 0; what happened still did.
    assert values(meter.take(2.0 + LINGER_S - SPACING_S + 0.1)) == {"num_successful_reqs": 1}
    meter.delivered()
    assert meter.is_done


def test_a_session_that_is_refused_leaves_no_success() -> None:
    play = Play()
    play.see(
        (0.0, snapshot(Phase.CREATE)), (1.0, snapshot(Phase.START)), (50.0, snapshot(Phase.FAILED))
    )
    play.run_until(50.0 + LINGER_S)
    assert play.meter.is_done
    assert play.of("num_users_waiting") == [(1.0, 1), (50.0, 0)]
    assert {name for _, said in play.told for name in said} == {
        "requested_capacity",
        "num_users_waiting",
    }


def test_a_session_of_which_nothing_was_said_ends_at_once() -> None:
    meter = Meter()
    meter.observe(snapshot(Phase.PREFLIGHT, ()), 0.0)
    assert meter.next_due is None
    meter.observe(snapshot(Phase.FAILED, ()), 1.0)
    assert meter.is_done


def test_a_lost_slice_is_not_in_use_until_it_is_placed_again() -> None:
    play = Play()
    lost = snapshot(Phase.SERVE, (True, False), gang=True)
    play.see((0.0, SERVING), (20.0, lost), (40.0, SERVING))
    assert play.of("capacity_in_use") == [(0.0, 8), (20.0, 4), (40.0, 8)]
    assert play.of("num_active_users") == [(0.0, 1)]
    assert play.of("num_users_waiting") == []


def test_levels_are_repeated_while_they_hold() -> None:
    play = Play()
    play.see((0.0, SERVING))
    play.run_until(3 * REPEAT_S)
    assert [at for at, _ in play.of("capacity_in_use")] == [0, REPEAT_S, 2 * REPEAT_S, 3 * REPEAT_S]
    assert play.of("num_successful_reqs") == [(0.0, 1)]
    assert play.of("num_users_waiting") == []


def test_without_a_create_there_is_no_assignment_time() -> None:
    play = Play()
    play.see((0.0, SERVING))
    assert play.of("assignment_time") == []


def test_a_type_that_is_not_known_counts_no_chips() -> None:
    play = Play()
    play.see((0.0, snapshot(Phase.SERVE, (True,), gang=True, kind="tpu99:4x4")))
    assert play.of("capacity_in_use") == []
    assert play.of("num_active_users") == [(0.0, 1)]


def test_what_failed_is_tried_again_after_growing_waits() -> None:
    meter = Meter(spacing_s=10.0, repeat_s=60.0)
    meter.observe(SERVING, 0.0)
    now, waits = 0.0, []
    for _ in range(20):
        first = values(meter.take(now))
        assert first["num_successful_reqs"] == 1
        assert first["capacity_in_use"] == 8
        meter.failed(now)
        assert meter.take(now) == ()
        due = meter.next_due
        assert due is not None
        waits.append(due - now)
        now = due
    assert waits[:4] == [10.0, 20.0, 40.0, 60.0]
    assert set(waits[3:]) == {60.0}
    assert values(meter.take(now))["num_successful_reqs"] == 1
    meter.delivered()
    meter.observe(CLOSED, now + 10.0)
    assert values(meter.take(now + 10.0)) == {
        "num_active_users": 0,
        "capacity_in_use": 0,
        "requested_capacity": 0,
    }


def test_a_value_that_is_out_of_date_is_not_tried_again() -> None:
    meter = Meter(spacing_s=10.0)
    meter.observe(SERVING, 0.0)
    assert values(meter.take(0.0))["capacity_in_use"] == 8
    meter.observe(snapshot(Phase.SERVE, (True, False), gang=True), 1.0)
    meter.observe(snapshot(Phase.SERVE, (False, False), gang=True), 2.0)
    meter.observe(SERVING, 3.0)
    meter.failed(4.0)
    play = [values(meter.take(at)).get("capacity_in_use") for at in (14.0, 24.0, 34.0)]
    assert play == [4, 8, None]


@pytest.mark.parametrize(
    ("context", "place"),
    [
        ("gke_my-project_us-central2_a-cluster", ("my-project", "a-cluster")),
        ("gke_my-project_us-central2-b_c", ("my-project", "c")),
        ("gke__us_c", ("", "gke__us_c")),
        ("kind-dev", ("", "kind-dev")),
        ("", ("", "")),
    ],
)
def test_project_and_cluster_of_a_context(context: str, place: tuple[str, str]) -> None:
    assert place_of(context) == place


PHASES = st.sampled_from([phase for phase in Phase if phase not in (Phase.CLOSED, Phase.FAILED)])
STATES = st.builds(snapshot, PHASES, st.lists(st.booleans(), max_size=3), gang=st.booleans())
STEPS = st.lists(
    st.tuples(st.floats(0.0, 40.0), st.one_of(STATES, st.sampled_from([True, False]))), max_size=40
)


class Writer:
    """Somebody who writes now and then, and not always with success."""

    def __init__(self) -> None:
        self.meter = Meter()
        self.now = 0.0
        self.points: dict[str, list[tuple[float, float]]] = {}

    def write(self, *, works: bool = True) -> None:
        readings = self.meter.take(self.now)
        assert len(values(readings)) == len(readings)
        if not works:
            self.meter.failed(self.now)
            return
        for name, value in values(readings).items():
            self.points.setdefault(name, []).append((self.now, value))
        self.meter.delivered()

    def write_until(self, end: float) -> None:
        while (due := self.meter.next_due) is not None and due <= end and not self.meter.is_done:
            self.now = max(due, self.now)
            self.write()


@given(STEPS, st.sampled_from([CLOSED, snapshot(Phase.FAILED)]))
def test_points_are_apart_and_levels_end_at_zero(
    steps: Sequence[tuple[float, Snapshot | bool]], last: Snapshot
) -> None:
    """Whatever a session does, and whenever somebody finds time to write, or fails to."""
    writer = Writer()
    meter = writer.meter
    for wait, what in steps:
        writer.now += wait
        if isinstance(what, Snapshot):
            meter.observe(what, writer.now)
        else:
            writer.write(works=what)
    meter.observe(last, writer.now)
    end = writer.now + LINGER_S
    in_time = meter.next_due is None or meter.next_due <= end
    writer.write_until(end)
    assert meter.end_by == end
    assert meter.is_done or not in_time
    for name, points in writer.points.items():
        gaps = [later - sooner for (sooner, _), (later, _) in itertools.pairwise(points)]
        assert all(gap > SPACING_S - 1e-6 for gap in gaps), (name, points)
        assert name not in LEVELS or points[-1][1] == 0 or not in_time, (name, points)
        assert name in LEVELS or len(points) == 1
