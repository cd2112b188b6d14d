"""The devices of runs, as each release of JAX numbers them."""

from __future__ import annotations

from shared_pathways_service.protocol import xplane_pb2 as pb
from shared_pathways_service.servers.devices.run_names import devices_of_run, run_name
from shared_pathways_service.servers.proxy.profiles.run_devices import devices_of_runs

#: A line's events: the name of a run by its devices, the number of a run, or a step of a task, as
#: "Record 7"; with begin and end.
Events = list[tuple[list[int] | int | str, int, int]]
#: The fields with numbers of runs and tasks.
FIELDS = {"run_id": 1, "_p": 2, "_c": 3}


def host(*lines: Events) -> pb.XPlane:
    made = pb.XPlane(name="/host:CPU")
    for name, key in FIELDS.items():
        made.stat_metadata[key].CopyFrom(pb.XStatMetadata(id=key, name=name))
    for events in lines:
        line = made.lines.add(timestamp_ns=3)
        for what, begin, end in events:
            event = line.events.add(offset_ps=begin, duration_ps=end - begin)
            event.metadata_id = len(made.event_metadata) + 1
            name, number, field = name_and_number(what)
            made.event_metadata[event.metadata_id].CopyFrom(pb.XEventMetadata(name=name))
            if number is not None:
                event.stats.add(metadata_id=FIELDS[field], int64_value=number)
    return made


def name_and_number(what: list[int] | int | str) -> tuple[str, int | None, str]:
    """An event's name, and its number with the field of it."""
    if isinstance(what, int):
        return "Execute", what, "run_id"
    if isinstance(what, list):
        return run_name(dict(enumerate(what))), None, ""
    step, _, number = what.partition(" ")
    field = "_p" if step == "Record" else "_c"
    return f"ThreadpoolListener::{step}", int(number) if number else None, field


def test_names_of_runs() -> None:
    assert devices_of_run(run_name({0: 4, 2048: 12})) == {0: 4, 2048: 12}
    assert devices_of_run("ThunkExecutor::Execute") is None


def test_a_run_that_is_numbered_on_its_thread() -> None:
    found = devices_of_runs(
        host(
            [([0, 1], 0, 100), (-5, 10, 20)],
            [([2, 3], 5, 90), (7, 6, 80)],
            [(-5, 30, 40), (7, 31, 41)],
        )
    )
    assert found == {-5: {0: 0, 1: 1}, 7: {0: 2, 1: 3}}


def test_a_run_whose_task_is_of_a_pool() -> None:
    found = devices_of_runs(
        host(
            # The first thread has gone on when the pool begins.
            [([0, 1], 0, 100), ("Record 1", 90, 90), ([0, 1], 200, 300), ("Record 3", 250, 250)],
            [([2, 3], 0, 100), ("Record 2", 90, 90)],
            [
                ("StartRegion 2", 110, 110),
                (6, 120, 130),
                ("StopRegion", 150, 150),
                ("StartRegion 1", 160, 160),
                (5, 170, 180),
                ("StopRegion", 190, 190),
                (8, 195, 196),
                ("StartRegion 3", 250, 250),
                (7, 310, 320),
            ],
        )
    )
    assert found == {5: {0: 0, 1: 1}, 6: {0: 2, 1: 3}, 7: {0: 0, 1: 1}}


def test_a_task_that_hands_over_another() -> None:
    found = devices_of_runs(
        host(
            [([4], 0, 10), ("Record 1", 5, 5)],
            [("StartRegion 1", 20, 20), ("Record 2", 30, 30), ("StopRegion", 40, 40)],
            [("StartRegion 2", 35, 35), (9, 50, 60)],
        )
    )
    assert found == {9: {0: 4}}


def test_a_task_of_no_run() -> None:
    assert devices_of_runs(host([("Record 1", 5, 5)], [("StartRegion 1", 9, 9), (5, 10, 20)])) == {}
    # The run beside it is not taken for its own.
    assert devices_of_runs(host([([0], 0, 100)], [(5, 10, 20)])) == {}


def test_a_run_without_a_name() -> None:
    assert devices_of_runs(host([(5, 10, 20)])) == {}


def test_a_task_within_another() -> None:
    found = devices_of_runs(
        host(
            [([4], 0, 10), ("Record 1", 5, 5)],
            [
                ("StartRegion 1", 20, 20),
                ("StartRegion 2", 30, 30),
                (6, 31, 32),
                ("StopRegion", 40, 40),
                ("Record 3", 45, 45),
                (5, 50, 60),
                ("StopRegion", 70, 70),
                (8, 80, 81),
            ],
            [("StartRegion 3", 90, 90), (7, 91, 92)],
        )
    )
    # Task 2 is of no run.
    assert found == {5: {0: 4}, 7: {0: 4}}


def test_a_profile_that_begins_within_a_task() -> None:
    events: Events = [("StopRegion", 5, 5), ("StartRegion 1", 20, 20), (6, 21, 22)]
    assert devices_of_runs(host([([4], 0, 10), ("Record 1", 5, 5)], events)) == {6: {0: 4}}


def test_each_of_many_runs_is_found() -> None:
    many = 50_000
    plane = host(
        [
            event
            for run in range(many)
            for event in (
                ([run % 2], run * 100, run * 100 + 50),
                (f"Record {run + 1}", run * 100 + 20, run * 100 + 20),
            )
        ],
        [
            event
            for run in range(many)
            for event in (
                (f"StartRegion {run + 1}", run * 100 + 60, run * 100 + 60),
                (run + 1, run * 100 + 65, run * 100 + 70),
                ("StopRegion", run * 100 + 80, run * 100 + 80),
            )
        ],
    )
    found = devices_of_runs(plane)
    assert len(found) == many
    assert all(found[run + 1] == {0: run % 2} for run in range(many))
