"""Changes the planes of a process's profile as they are written: times, devices, facts. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from shared_pathways_service.protocol import xplane_pb2 as pb
from shared_pathways_service.servers.proxy.profiles.clocks import Offset
from shared_pathways_service.servers.proxy.profiles.run_devices import (
    RUN,
    devices_of_runs,
    keys_of,
    number_of,
)

__all__ = ["Device", "Origin", "began_at", "written"]

#: Names of XLA and XProf.
_HOST_PLANE = "/host:CPU"
_TASK_PLANE = "Task Environment"
_BEGAN, _ENDED = "profile_start_time", "profile_stop_time"
#: Prefixes of the planes of real devices, which end in the device's number on its host.
_REAL = ("/device:GPU:", "/device:TPU:")
#: The prefix of planes that XProf shows if there are none of real devices.
_CUSTOM = "/device:CUSTOM:"
_PS = 1000


@dataclasses.dataclass(frozen=True, slots=True)
class Device:
    """A device as the tenant knows it."""

    id: int
    slice_index: int
    host: int

    @property
    def name(self) -> str:
        """Its name in a profile."""
        return f"slice {self.slice_index} host {self.host} device {self.id}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Origin:
    """The process that a profile is of, and its clock.

    Attributes:
      name: Its name in a profile.
      devices: Its devices, ascending.
      offset: How far its clock is ahead of the reader's.
    """

    name: str
    devices: Sequence[Device]
    offset: Offset


def began_at(space: pb.XSpace) -> int:
    """Returns when a profile began, in ns since 1970 by its process's clock; 0: unknown."""
    for plane in space.planes:
        if plane.name == _TASK_PLANE:
            for stat in plane.stats:
                if plane.stat_metadata[stat.metadata_id].name == _BEGAN:
                    return _number(stat)
    return 0


def written(space: pb.XSpace, origin: Origin, reference_ns: int) -> bytes:
    """Returns a profile with its times on the reader's clock, and each plane named.

    XProf finds planes by XLA's names, which stay. A device of the CPU has none, and gets one
    with the operations that it ran. Each plane has the facts `sps_process`, `sps_device` and
    `sps_clock_error_ns`.

    Args:
      space: The profile of a process, which is changed.
      origin: The process.
      reference_ns: What times are relative to, in nanoseconds since 1970 by the reader's clock.
    """
    # (Before the names of runs that began before the reader are dropped.)
    if not any(plane.name.startswith(_REAL) for plane in space.planes):
        for plane in [plane for plane in space.planes if plane.name == _HOST_PLANE]:
            space.planes.extend(_device_planes(plane, origin.devices))
    began_ns = began_at(space)
    shift_ns = began_ns - origin.offset.offset_ns - reference_ns if began_ns else 0
    for plane in space.planes:
        for line in plane.lines:
            _shift(line, shift_ns)
        if plane.name == _TASK_PLANE:
            _move_times(plane, origin.offset, reference_ns)
    names = _names_of(space, origin.devices)
    for plane in space.planes:
        _add_facts(plane, origin, names.get(plane.name, ""))
    return space.SerializeToString()


def _shift(line: pb.XLine, shift_ns: int) -> None:
    """Moves a line in time; what would begin before the reference is dropped."""
    begin_ns = line.timestamp_ns + shift_ns
    if begin_ns >= 0:
        line.timestamp_ns = begin_ns
        return
    # (Readers take the time of a line for a number without sign.)
    line.timestamp_ns = 0
    kept = [event for event in line.events if event.offset_ps + begin_ns * _PS >= 0]
    if len(kept) < len(line.events):
        del line.events[:]
        line.events.extend(kept)
    for event in line.events:
        event.offset_ps += begin_ns * _PS


def _move_times(plane: pb.XPlane, offset: Offset, reference_ns: int) -> None:
    """Sets the start, which times are relative to, and the end by the reader's clock."""
    for stat in plane.stats:
        name = plane.stat_metadata[stat.metadata_id].name
        if name == _BEGAN and reference_ns:
            stat.uint64_value = reference_ns
        elif name == _ENDED:
            stat.uint64_value = max(0, _number(stat) - offset.offset_ns)


def _number(stat: pb.XStat) -> int:
    return stat.uint64_value or stat.int64_value


def _device_planes(host: pb.XPlane, devices: Sequence[Device]) -> list[pb.XPlane]:
    """Returns a plane for each device, with the operations that it ran."""
    known = {device.id: device for device in devices}
    made: dict[int, pb.XPlane] = {}
    for line, by_device in zip(host.lines, _operations(host), strict=True):
        for i, events in by_device.items():
            if i not in known:
                continue
            name = _CUSTOM + known[i].name
            copy = made.setdefault(i, pb.XPlane(id=i, name=name)).lines.add(
                id=line.id, name=line.name, timestamp_ns=line.timestamp_ns
            )
            copy.events.extend(events)
    for plane in made.values():
        _copy_names(host, plane)
    return [made[i] for i in sorted(made)]


def _operations(host: pb.XPlane) -> list[dict[int, list[pb.XEvent]]]:
    """Returns the events of each line by the device that they ran on."""
    devices_of = devices_of_runs(host)
    runs, ordinals = keys_of(host, RUN), keys_of(host, "device_ordinal")
    lines = []
    for line in host.lines:
        by_device: dict[int, list[pb.XEvent]] = {}
        for event in line.events:
            run, ordinal = number_of(event, runs), number_of(event, ordinals)
            if run is None or ordinal is None:
                continue
            device = devices_of.get(run, {}).get(ordinal)
            if device is not None:
                by_device.setdefault(device, []).append(event)
        lines.append(by_device)
    return lines


def _copy_names(host: pb.XPlane, plane: pb.XPlane) -> None:
    """Copies what the events of a plane refer to, from the plane that they come from."""
    events = [event for line in plane.lines for event in line.events]
    for key in {event.metadata_id for event in events}:
        plane.event_metadata[key].CopyFrom(host.event_metadata[key])
    described: Iterable[pb.XStat] = (
        stat for found in plane.event_metadata.values() for stat in found.stats
    )
    stats = [*described, *(stat for event in events for stat in event.stats)]
    for key in {k for stat in stats for k in (stat.metadata_id, stat.ref_value) if k}:
        plane.stat_metadata[key].CopyFrom(host.stat_metadata[key])


def _add_facts(plane: pb.XPlane, origin: Origin, device: str) -> None:
    facts: Mapping[str, str | int] = {
        "sps_process": origin.name,
        "sps_clock_error_ns": origin.offset.error_ns,
    }
    if device:
        facts = {**facts, "sps_device": device}
    free = max(plane.stat_metadata, default=0) + 1
    for key, (name, value) in enumerate(facts.items(), free):
        plane.stat_metadata[key].CopyFrom(pb.XStatMetadata(id=key, name=name))
        if isinstance(value, str):
            plane.stats.add(metadata_id=key, str_value=value)
        else:
            plane.stats.add(metadata_id=key, uint64_value=value)


def _names_of(space: pb.XSpace, devices: Sequence[Device]) -> dict[str, str]:
    """Returns the device of each plane that is of one.

    A process has its accelerators in the order of their numbers, which need not begin with 0. If
    there are not as many planes as devices, it is not known which is which.
    """
    found = {p.name: p.name.removeprefix(_CUSTOM) for p in space.planes if _CUSTOM in p.name}
    real = sorted(
        (int(number), plane.name)
        for plane in space.planes
        if plane.name.startswith(_REAL) and (number := plane.name.rpartition(":")[2]).isdecimal()
    )
    if len(real) == len(devices):
        pairs = zip(real, devices, strict=True)
        found |= {name: device.name for (_, name), device in pairs}
    return found
