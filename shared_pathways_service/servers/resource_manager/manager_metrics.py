"""The metrics of the resource manager, for a scraper: docs/metrics.md."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from shared_pathways_service.metrics.families import Family, Sample
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.scheduling.book.census import Census
from shared_pathways_service.scheduling.book.messages import AssignWorker
from shared_pathways_service.scheduling.book.states import SliceState, TenantState
from shared_pathways_service.servers.resource_manager.authority import Authority
from shared_pathways_service.servers.resource_manager.meter import labelled, rm_family
from shared_pathways_service.servers.resource_manager.proxy_counters import LABEL, ProxyCounters
from shared_pathways_service.servers.resource_manager.reported_times import ExecutorTimes
from shared_pathways_service.version import __version__

__all__ = ["families"]

_TYPE = "instance_type"


def families(
    authority: Authority, proxies: ProxyCounters, times: ExecutorTimes
) -> Iterator[Family]:
    """Returns all metrics of now; the result may be read on another thread.

    Those of the proxies are computed only there.
    """
    return itertools.chain(_own(authority, times), proxies.families())


def _own(authority: Authority, times: ExecutorTimes) -> list[Family]:
    return [
        rm_family("info", "info", "What runs.", [Sample(1, {"version": __version__})]),
        *_of_census(authority.census(), authority.capacity),
        *_of_executors(list(authority.executors.usages())),
        *_of_times(times, authority.executors.assignments()),
        rm_family("streams", "gauge", "Open streams.", labelled("of", authority.streams())),
        rm_family(
            "history_decisions",
            "gauge",
            "Decisions that the history keeps.",
            [Sample(len(authority.history))],
        ),
        *authority.meter.families(),
    ]


def _of_census(census: Census, capacity: Mapping[str, int]) -> list[Family]:
    return [
        rm_family(
            "slices",
            "gauge",
            "Slices that are known.",
            [
                Sample(census.slices.get((kind, state), 0), {_TYPE: kind, "state": state})
                for kind, state in itertools.product(capacity, SliceState)
            ],
        ),
        rm_family(
            "slices_wanted", "gauge", "Slices that there should be.", labelled(_TYPE, capacity)
        ),
        rm_family(
            "slices_held", "gauge", "Slices that a tenant holds.", labelled(_TYPE, census.held)
        ),
        rm_family(
            "tenants",
            "gauge",
            "Tenants that are known.",
            [Sample(census.tenants.get(state, 0), {"state": state}) for state in TenantState],
        ),
        rm_family(
            "executors",
            "gauge",
            "Executors that workers are assigned.",
            [
                Sample(census.executors.get(serves, 0), {"state": state})
                for state, serves in (("starting", False), ("serving", True))
            ],
        ),
        rm_family("queue_length", "gauge", "Tenants in the queue.", [Sample(census.queue_length)]),
        rm_family(
            "queue_oldest_wait_seconds",
            "gauge",
            "The longest wait of a tenant in the queue; 0: no tenant waits.",
            [Sample(census.oldest_wait_s)],
            "seconds",
        ),
        rm_family(
            "recovering",
            "gauge",
            "1 while nothing is granted after a restart.",
            [Sample(census.recovering)],
        ),
    ]


def _of_executors(usages: Sequence[tuple[AssignWorker, pb.ExecutorUsage]]) -> list[Family]:
    labels = [_labels_of(assigned) for assigned, _ in usages]
    found = [(usage, its) for (_, usage), its in zip(usages, labels, strict=True)]
    return [
        rm_family(
            "executor_resident_bytes",
            "gauge",
            "Resident memory of an executor's processes.",
            [Sample(usage.resident_bytes, its) for usage, its in found],
            "bytes",
        ),
        rm_family(
            "executor_memory_limit_bytes",
            "gauge",
            "Memory that each of an executor's processes may allocate; absent without a limit.",
            [
                Sample(usage.memory_limit_bytes, its)
                for usage, its in found
                if usage.memory_limit_bytes
            ],
            "bytes",
        ),
        rm_family(
            "executor_cpu_seconds",
            "counter",
            "Processor time that an executor's processes have used.",
            [Sample(usage.cpu_seconds, its) for usage, its in found],
            "seconds",
        ),
    ]


def _of_times(times: ExecutorTimes, assignments: Sequence[AssignWorker]) -> list[Family]:
    found = [
        (one, reported)
        for one in assignments
        if (reported := times.find(one.tenant, one.generation, one.host_index)) is not None
    ]
    return [
        rm_family(
            "executor_time_ratio",
            "gauge",
            "How many times as long programs take on an executor as on its peers.",
            [
                Sample(reported.ratio, _labels_of(one))
                for one, reported in found
                if reported.HasField("ratio")
            ],
        ),
        rm_family(
            "executor_slow",
            "gauge",
            "1 while an executor is slow.",
            [Sample(reported.is_slow, _labels_of(one)) for one, reported in found],
        ),
    ]


def _labels_of(assigned: AssignWorker) -> dict[str, str]:
    return {
        LABEL: assigned.tenant,
        "slice": assigned.slice_id,
        "host": str(assigned.host_index),
    }
