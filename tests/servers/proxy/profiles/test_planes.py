"""Planes are on the reader's clock, and say which process and device they are of."""

from __future__ import annotations

from typing import Any

from shared_pathways_service.protocol import xplane_pb2 as pb
from shared_pathways_service.servers.devices.run_names import run_name
from shared_pathways_service.servers.proxy.profiles.clocks import Offset
from shared_pathways_service.servers.proxy.profiles.planes import Device, Origin, began_at, written

BEGAN_NS = 1_796_000_000_000_000_000
ORIGIN = Origin(
    name="slice 1 host 0",
    devices=[Device(4, 1, 0), Device(5, 1, 0)],
    offset=Offset(2_000_000, 300),
)


def plane(name: str, *, ordinals: dict[int, int] | None = None) -> pb.XPlane:
    """A plane with events of 1 µs at these times in ns, each with the ordinal of its device."""
    made = pb.XPlane(id=3, name=name)
    made.event_metadata[6].CopyFrom(pb.XEventMetadata(id=6, name=run_name({0: 4, 2048: 5})))
    made.event_metadata[5].CopyFrom(pb.XEventMetadata(id=5, name="Execute"))
    made.stat_metadata[10].CopyFrom(pb.XStatMetadata(id=10, name="run_id"))
    begins = made.lines.add(id=2, name="begins runs")
    begins.events.add(metadata_id=6, offset_ps=0, duration_ps=10**10)
    begins.events.add(metadata_id=5, offset_ps=1).stats.add(metadata_id=10, int64_value=-77)
    made.event_metadata[7].CopyFrom(pb.XEventMetadata(id=7, name="dot"))
    made.stat_metadata[9].CopyFrom(pb.XStatMetadata(id=9, name="device_ordinal"))
    made.stat_metadata[8].CopyFrom(pb.XStatMetadata(id=8, name="hlo_op"))
    line = made.lines.add(id=1, name="thread", timestamp_ns=50)
    for at_ns, ordinal in (ordinals or {}).items():
        event = line.events.add(metadata_id=7, offset_ps=at_ns * 1000, duration_ps=10**6)
        event.stats.add(metadata_id=8, ref_value=8)
        event.stats.add(metadata_id=9, int64_value=ordinal)
        event.stats.add(metadata_id=10, int64_value=-77)
    line.events.add(metadata_id=7, offset_ps=10_000_000)  # of no device
    return made


def task() -> pb.XPlane:
    made = pb.XPlane(name="Task Environment")
    for key, name, value in ((1, "profile_start_time", 0), (2, "profile_stop_time", 10**9)):
        made.stat_metadata[key].CopyFrom(pb.XStatMetadata(id=key, name=name))
        made.stats.add(metadata_id=key, uint64_value=BEGAN_NS + value)
    return made


def read(raw: bytes) -> dict[str, pb.XPlane]:
    return {plane.name: plane for plane in pb.XSpace.FromString(raw).planes}


def facts(plane: pb.XPlane) -> dict[str, Any]:
    names = {key: found.name for key, found in plane.stat_metadata.items()}
    return {
        names[stat.metadata_id]: stat.str_value or stat.uint64_value
        for stat in plane.stats
        if names[stat.metadata_id].startswith("sps_")
    }


def test_times_are_the_readers() -> None:
    space = pb.XSpace(planes=[plane("/host:CPU"), task()])
    assert began_at(space) == BEGAN_NS
    # The reader began 1 ms before; the other clock is 2 ms ahead.
    planes = read(written(space, ORIGIN, BEGAN_NS - 3_000_000))
    assert planes["/host:CPU"].lines[1].timestamp_ns == 50 + 1_000_000
    times = [stat.uint64_value for stat in planes["Task Environment"].stats[:2]]
    assert times == [BEGAN_NS - 3_000_000, BEGAN_NS + 10**9 - 2_000_000]


def test_what_was_before_the_reader_is_dropped() -> None:
    space = pb.XSpace(planes=[plane("/host:CPU", ordinals={100: 0, 5000: 0}), task()])
    # The reader began 2 µs after the process.
    planes = read(written(space, ORIGIN, BEGAN_NS - 2_000_000 + 2_000))
    line = planes["/host:CPU"].lines[1]
    assert line.timestamp_ns == 0
    assert [event.offset_ps for event in line.events] == [
        (50 + 5000 - 2000) * 1000,
        (50 + 10_000 - 2000) * 1000,
    ]
    device = planes["/device:CUSTOM:slice 1 host 0 device 4"].lines[0]
    assert [event.offset_ps for event in device.events] == [(50 + 5000 - 2000) * 1000]


def test_a_profile_without_its_start_stays_where_it_is() -> None:
    space = pb.XSpace(planes=[plane("/host:CPU")])
    assert began_at(space) == 0
    assert read(written(space, ORIGIN, BEGAN_NS))["/host:CPU"].lines[1].timestamp_ns == 50


def test_each_device_of_the_cpu_has_a_plane() -> None:
    # (The last ordinal is of no device that is known.)
    space = pb.XSpace(planes=[plane("/host:CPU", ordinals={100: 2048, 200: 0, 300: 2048, 400: 2})])
    planes = read(written(space, ORIGIN, 0))
    assert list(planes) == [
        "/host:CPU",
        "/device:CUSTOM:slice 1 host 0 device 4",
        "/device:CUSTOM:slice 1 host 0 device 5",
    ]
    assert len(planes["/host:CPU"].lines[1].events) == 5
    second = planes["/device:CUSTOM:slice 1 host 0 device 5"]
    assert second.id == 5
    assert [event.offset_ps for event in second.lines[0].events] == [100_000, 300_000]
    # What they refer to has come along.
    assert second.event_metadata[7].name == "dot"
    assert second.stat_metadata[8].name == "hlo_op"
    assert facts(second) == {
        "sps_process": "slice 1 host 0",
        "sps_device": "slice 1 host 0 device 5",
        "sps_clock_error_ns": 300,
    }
    assert facts(planes["/host:CPU"]) == {
        "sps_process": "slice 1 host 0",
        "sps_clock_error_ns": 300,
    }


def test_planes_of_accelerators_keep_their_names() -> None:
    names = ["/host:CPU", "/device:TPU:3", "/device:TPU:2"]
    space = pb.XSpace(planes=[plane(name, ordinals={100: 0}) for name in names])
    planes = read(written(space, ORIGIN, 0))
    assert list(planes) == names
    assert facts(planes["/device:TPU:2"])["sps_device"] == "slice 1 host 0 device 4"
    assert facts(planes["/device:TPU:3"])["sps_device"] == "slice 1 host 0 device 5"


def test_a_plane_that_may_be_of_either_device_is_not_named() -> None:
    planes = read(written(pb.XSpace(planes=[plane("/device:GPU:1")]), ORIGIN, 0))
    assert "sps_device" not in facts(planes["/device:GPU:1"])


def test_fields_that_are_not_known_stay() -> None:
    # Field 11 of a line is its display name, which this project does not read.
    raw = pb.XSpace(planes=[plane("/host:CPU")]).planes[0].lines[1].SerializeToString()
    line = pb.XLine.FromString(raw + b"\x5a\x05shown")
    space = pb.XSpace(planes=[pb.XPlane(name="/host:CPU", lines=[line])])
    assert b"\x5a\x05shown" in written(space, ORIGIN, 0)
