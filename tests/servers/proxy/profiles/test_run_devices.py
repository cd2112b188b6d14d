"""The devices of runs, as each release of JAX numbers them."""

from __future__ import annotations

from shared_pathways_service.protocol import xplane_pb2 as pb
from shared_pathways_service.servers.devices.run_names import devices_of_run, run_name
from shared_pathways_service.servers.proxy.profiles.run_devices import devices_of_runs

#: A line's events: the name of a run by its devices, or the number of a run; with begin and end.
Events = list[tuple[list[int] | int, int, int]]


def host(*lines: Events) -> pb.XPlane:
    made = pb.XPlane(name="/host:CPU")
    made.stat_metadata[1].CopyFrom(pb.XStatMetadata(id=1, name="run_id"))
    for events in lines:
        line = made.lines.add(timestamp_ns=3)
        for what, begin, end in events:
            event = line.events.add(offset_ps=begin, duration_ps=end - begin)
            event.metadata_id = len(made.event_metadata) + 1
            name = "Execute" if isinstance(what, int) else run_name(dict(enumerate(what)))
            made.event_metadata[event.metadata_id].CopyFrom(pb.XEventMetadata(name=name))
            if isinstance(what, int):
                event.stats.add(metadata_id=1, int64_value=what)
    return made


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


def test_a_run_that_is_numbered_elsewhere() -> None:
    found = devices_of_runs(
        host([([0, 1], 0, 100), ([2, 3], 200, 300)], [(5, 10, 20), (6, 250, 260)])
    )
    assert found == {5: {0: 0, 1: 1}, 6: {0: 2, 1: 3}}


def test_a_run_that_may_be_of_two_clients_is_left_out() -> None:
    assert devices_of_runs(host([([0, 1], 0, 100)], [([2, 3], 0, 100)], [(5, 10, 20)])) == {}
    # Of two with the same devices it is either.
    assert devices_of_runs(host([([0], 0, 100)], [([0], 0, 100)], [(5, 10, 20)])) == {5: {0: 0}}


def test_a_run_without_a_name() -> None:
    assert devices_of_runs(host([(5, 10, 20)])) == {}


def test_each_of_many_runs_is_found_without_a_comparison_with_all_others() -> None:
    many = 50_000
    plane = host([], [])
    for devices in (0, 1):
        name = run_name({0: devices})
        plane.event_metadata[devices + 1].CopyFrom(pb.XEventMetadata(name=name))
    named, numbered = plane.lines
    for run in range(many):
        named.events.add(metadata_id=run % 2 + 1, offset_ps=run * 100, duration_ps=50)
        event = numbered.events.add(metadata_id=3, offset_ps=run * 100 + 10, duration_ps=5)
        event.stats.add(metadata_id=1, int64_value=run + 1)
    found = devices_of_runs(plane)
    assert len(found) == many
    assert all(found[run + 1] == {0: run % 2} for run in range(many))
