"""Finds the devices of a profile's runs of programs. Pure.

A process has a client for each set of slices, and XLA's events name a device by its number in its
client. So this project names each run by its client's devices (`run_names`), on the thread that
begins it.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping

from shared_pathways_service.protocol import xplane_pb2 as pb
from shared_pathways_service.servers.devices.run_names import devices_of_run

__all__ = ["Devices", "devices_of_runs", "number_of"]

#: The devices of a client, by their numbers in it.
Devices = Mapping[int, int]

_RUN = "run_id"


class _Named:
    """The runs that this project has named on one thread, where they do not overlap."""

    def __init__(self, line: pb.XLine, names: Mapping[int, Devices]) -> None:
        runs = sorted(
            (
                (_begin_of(line, event), event.duration_ps, names[event.metadata_id])
                for event in line.events
                if event.metadata_id in names
            ),
            key=lambda run: run[:2],
        )
        self._begins = [begin for begin, _, _ in runs]
        self._runs = runs

    def __bool__(self) -> bool:
        return bool(self._runs)

    def at(self, time: int) -> Devices | None:
        """Returns the devices of the run at a time, in picoseconds; None: there is none."""
        number = bisect.bisect_right(self._begins, time) - 1
        if number < 0:
            return None
        begin, length, devices = self._runs[number]
        return devices if time <= begin + length else None


def devices_of_runs(host: pb.XPlane) -> Mapping[int, Devices]:
    """Returns the devices of the clients of runs, by XLA's number of each run.

    Releases of JAX before 0.10 number a run only on threads of XLA's own. Then it is one of the
    named runs at that time, and left out if their devices differ.
    """
    keys = {key for key, found in host.stat_metadata.items() if found.name == _RUN}
    names = {
        key: devices
        for key, found in host.event_metadata.items()
        if (devices := devices_of_run(found.name)) is not None
    }
    named = [_Named(line, names) for line in host.lines]
    exact: dict[int, Devices] = {}
    first: dict[int, int] = {}
    for line, begun in zip(host.lines, named, strict=True):
        for event in line.events:
            run = number_of(event, keys)
            if run is None or run in exact:
                continue
            begin = _begin_of(line, event)
            here = begun.at(begin)
            if here is not None:
                exact[run] = here
            else:
                first[run] = min(begin, first.get(run, begin))
    threads = [begun for begun in named if begun]
    for run, begin in first.items():
        if run in exact:
            continue
        possible = [found for begun in threads if (found := begun.at(begin)) is not None]
        if possible and all(devices == possible[0] for devices in possible):
            exact[run] = possible[0]
    return exact


def number_of(event: pb.XEvent, keys: set[int]) -> int | None:
    """Returns the number of an event in a field of one of these keys; None: it has none."""
    for stat in event.stats:
        if stat.metadata_id in keys:
            return stat.int64_value or stat.uint64_value
    return None


def _begin_of(line: pb.XLine, event: pb.XEvent) -> int:
    """Returns when an event began, in picoseconds."""
    return line.timestamp_ns * 1000 + event.offset_ps
