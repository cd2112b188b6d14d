"""Finds the devices of a profile's runs of programs. Pure.

A process has a client for each set of slices, and XLA's events name a device by its number in its
client. So this project names each run by its client's devices (`run_names`), on the thread that
begins it. XLA's events of a run have its number, on that thread or on threads of XLA's pools. XLA
records when a thread hands a task to a pool, and when a thread of the pool begins it, with the same
number (`tsl/profiler/backends/cpu/threadpool_listener.cc`): so a task is of the run whose
thread, or whose task, handed it over.
"""

from __future__ import annotations

import bisect
import sys
from collections.abc import Iterator, Mapping, Sequence

from shared_pathways_service.protocol import xplane_pb2 as pb
from shared_pathways_service.servers.devices.run_names import devices_of_run

__all__ = ["Devices", "devices_of_runs", "number_of"]

#: The devices of a client, by their numbers in it.
Devices = Mapping[int, int]

_RUN = "run_id"
#: The number of a task, where it is handed over and where it begins.
_HANDED_OVER, _BEGUN = "_p", "_c"
#: The steps of tasks, in the order that they have where they are at the same moment.
_STOP = "ThreadpoolListener::StopRegion"
_RECORD = "ThreadpoolListener::Record"
_START = "ThreadpoolListener::StartRegion"
_STEPS = (_STOP, _RECORD, _START)


class _Spans:
    """The devices of a thread over time, from spans that do not overlap."""

    def __init__(self, spans: Sequence[tuple[int, int, Devices]]) -> None:
        """Takes spans in order: begin and end in picoseconds, and devices."""
        self._begins = [begin for begin, _, _ in spans]
        self._spans = spans

    def at(self, time: int) -> Devices | None:
        """Returns the devices at a time, in picoseconds; None: the thread is of no run."""
        number = bisect.bisect_right(self._begins, time) - 1
        if number < 0:
            return None
        _, end, devices = self._spans[number]
        return devices if time <= end else None


def devices_of_runs(host: pb.XPlane) -> Mapping[int, Devices]:
    """Returns the devices of the clients of runs, by XLA's number of each run."""
    runs = _keys(host, _RUN)
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
            devices = in_named.at(begin) or in_tasks.at(begin)
            if devices is not None:
                found[run] = devices
    return found


def number_of(event: pb.XEvent, keys: set[int]) -> int | None:
    """Returns the number of an event in a field of one of these keys; None: it has none."""
    for stat in event.stats:
        if stat.metadata_id in keys:
            return stat.int64_value or stat.uint64_value
    return None


def _named(line: pb.XLine, names: Mapping[int, Devices]) -> _Spans:
    """Returns the runs that this project has named on a thread."""
    spans = [
        (begin := _begin_of(line, event), begin + event.duration_ps, names[event.metadata_id])
        for event in line.events
        if event.metadata_id in names
    ]
    return _Spans(sorted(spans, key=lambda span: span[:2]))


def _tasks(host: pb.XPlane, named: Sequence[_Spans]) -> list[_Spans]:
    """Returns the tasks of runs on each thread."""
    handed_over: dict[int, Devices] = {}
    # By thread: the beginning and the devices of the task that it works on.
    begun: dict[int, tuple[int, Devices]] = {}
    spans: list[list[tuple[int, int, Devices]]] = [[] for _ in host.lines]
    for time, step, thread, number in sorted(_steps(host)):
        if _STEPS[step] == _RECORD:
            own = begun[thread][1] if thread in begun else None
            devices = named[thread].at(time) or own
            if devices is not None:
                handed_over[number] = devices
            continue
        if thread in begun:
            begin, ended = begun.pop(thread)
            spans[thread].append((begin, time, ended))
        if _STEPS[step] == _START and number in handed_over:
            begun[thread] = (time, handed_over.pop(number))
    # (The profile ended while these ran.)
    for thread, (begin, running) in begun.items():
        spans[thread].append((begin, sys.maxsize, running))
    return [_Spans(each) for each in spans]


def _steps(host: pb.XPlane) -> Iterator[tuple[int, int, int, int]]:
    """Yields the steps of tasks: time in picoseconds, which step, thread, the task's number."""
    steps = {
        key: _STEPS.index(found.name)
        for key, found in host.event_metadata.items()
        if found.name in _STEPS
    }
    keys = _keys(host, _HANDED_OVER) | _keys(host, _BEGUN)
    for thread, line in enumerate(host.lines):
        for event in line.events:
            if (step := steps.get(event.metadata_id)) is not None:
                yield _begin_of(line, event), step, thread, number_of(event, keys) or 0


def _keys(host: pb.XPlane, name: str) -> set[int]:
    return {key for key, found in host.stat_metadata.items() if found.name == name}


def _begin_of(line: pb.XLine, event: pb.XEvent) -> int:
    """Returns when an event began, in picoseconds."""
    return line.timestamp_ns * 1000 + event.offset_ps
