"""Finds the devices of a profile's runs of programs. Pure.

A process has a client for each set of slices, and XLA's events name a device by its number in its
client. So this project names each run by its client's devices (`run_names`), on the thread that
begins it. XLA's events of a run have its number, on that thread or on threads of XLA's pools. XLA
records when a thread hands a task to a pool, and when a thread of the pool begins it, with the same
number, and when it ends the task, without one (`xla/tsl/profiler/backends/cpu/
threadpool_listener.cc`). So a task belongs to the run for which the handing thread worked.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Mapping, Sequence

from shared_pathways_service.protocol import xplane_pb2 as pb
from shared_pathways_service.servers.devices.run_names import devices_of_run

__all__ = ["RUN", "Devices", "devices_of_runs", "keys_of", "number_of"]

#: The devices of a client, by their numbers in it.
Devices = Mapping[int, int]

#: XLA's name of the field with the number of a run.
RUN = "run_id"
#: The number of a task, where it is handed over and where it begins.
_HANDED_OVER, _BEGUN = "_p", "_c"
#: The steps of tasks, in the order that they have where they are at the same moment.
_STOP = "ThreadpoolListener::StopRegion"
_RECORD = "ThreadpoolListener::Record"
_START = "ThreadpoolListener::StartRegion"
_STEPS = (_STOP, _RECORD, _START)


class _Thread:
    """The devices of the runs that a thread works for, over time."""

    def __init__(self, changes: Sequence[tuple[int, Devices | None]]) -> None:
        """Takes changes in their order: time in picoseconds, and the devices from then on."""
        self._times = [time for time, _ in changes]
        self._changes = changes

    def at(self, time: int) -> Devices | None:
        """Returns the devices at a time, in picoseconds; None: it works for no run."""
        number = bisect.bisect_right(self._times, time) - 1
        return None if number < 0 else self._changes[number][1]


def devices_of_runs(host: pb.XPlane) -> Mapping[int, Devices]:
    """Returns the devices of the clients of runs, by XLA's number of each run."""
    runs = keys_of(host, RUN)
    names = {
        key: client
        for key, one in host.event_metadata.items()
        if (client := devices_of_run(one.name)) is not None
    }
    named = [_named(line, names) for line in host.lines]
    tasks = _tasks(host, named)
    found: dict[int, Devices] = {}
    for line, in_named, in_tasks in zip(host.lines, named, tasks, strict=True):
        for event in line.events:
            run = number_of(event, runs)
            if run is None or run in found:
                continue
            begin = _begin_of(line, event)
            devices = in_tasks.at(begin) or in_named.at(begin)
            if devices is not None:
                found[run] = devices
    return found


def keys_of(plane: pb.XPlane, name: str) -> set[int]:
    """Returns the keys of the fields of this name in a plane's events."""
    return {key for key, found in plane.stat_metadata.items() if found.name == name}


def number_of(event: pb.XEvent, keys: set[int]) -> int | None:
    """Returns the number of an event in a field of one of these keys; None: it has none."""
    for stat in event.stats:
        if stat.metadata_id in keys:
            return stat.int64_value or stat.uint64_value
    return None


def _named(line: pb.XLine, names: Mapping[int, Devices]) -> _Thread:
    """Returns the runs that this project has named on a thread."""
    changes: list[tuple[int, Devices | None]] = []
    for event in line.events:
        if event.metadata_id in names:
            begin = _begin_of(line, event)
            changes += [(begin, names[event.metadata_id]), (begin + event.duration_ps, None)]
    # (One may begin when another ends.)
    return _Thread(sorted(changes, key=lambda change: (change[0], change[1] is not None)))


def _tasks(host: pb.XPlane, named: Sequence[_Thread]) -> list[_Thread]:
    """Returns the tasks of runs on each thread."""
    handed_over: dict[int, Devices | None] = {}
    # A thread whose pool is full works on a task of its own within another.
    nested: list[list[Devices | None]] = [[] for _ in host.lines]
    changes: list[list[tuple[int, Devices | None]]] = [[] for _ in host.lines]
    for time, step, thread, number in sorted(_steps(host)):
        within = nested[thread]
        if _STEPS[step] == _RECORD:
            handed_over[number] = (within[-1] if within else None) or named[thread].at(time)
            continue
        if _STEPS[step] == _START:
            within.append(handed_over.pop(number, None))
        elif within:
            within.pop()
        changes[thread].append((time, within[-1] if within else None))
    return [_Thread(each) for each in changes]


def _steps(host: pb.XPlane) -> Iterator[tuple[int, int, int, int]]:
    """Yields the steps of tasks: time in picoseconds, which step, thread, the task's number."""
    steps = {
        key: _STEPS.index(found.name)
        for key, found in host.event_metadata.items()
        if found.name in _STEPS
    }
    keys = keys_of(host, _HANDED_OVER) | keys_of(host, _BEGUN)
    for thread, line in enumerate(host.lines):
        for event in line.events:
            if (step := steps.get(event.metadata_id)) is not None:
                yield _begin_of(line, event), step, thread, number_of(event, keys) or 0


def _begin_of(line: pb.XLine, event: pb.XEvent) -> int:
    """Returns when an event began, in picoseconds."""
    return line.timestamp_ns * 1000 + event.offset_ps
