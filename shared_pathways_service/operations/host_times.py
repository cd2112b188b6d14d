"""Reads how long programs take on executors, from a service's resource manager."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shared_pathways_service.operations.service_readers.manager_calls import Manager
from shared_pathways_service.operations.service_readers.service_occupancy import (
    unknown_connection,
)
from shared_pathways_service.patience import timeouts
from shared_pathways_service.protocol import proxy_status_pb2 as status_pb
from shared_pathways_service.protocol import resource_manager_pb2 as pb

__all__ = ["read_executor_times", "times_of"]


async def read_executor_times(manager: Manager, name: str | None) -> dict[str, Any]:
    """Returns the output of ``sps stragglers --json``; raises the errors of `times_of`."""
    request = pb.GetExecutorTimesRequest(tenant=name or "")
    async with manager.translating():
        reports = [
            one
            async for one in manager.stub.GetExecutorTimes(
                request,
                metadata=manager.metadata,
                timeout=timeouts.MANAGER_CALL.s,
                wait_for_ready=True,
            )
        ]
    return times_of(await manager.status(), reports, name)


def times_of(
    status: pb.GetStatusResponse, reports: Sequence[pb.TenantExecutorTimes], name: str | None
) -> dict[str, Any]:
    """Returns the times on the executors that run now, by connection, the slowest hosts first.

    Args:
      status: The status of the service.
      reports: What proxies reported.
      name: The only connection; None: all.

    Returns:
      ``engine``: ``local`` if proxies compute by themselves, and there is nothing to compare; else
      ``distributed``. ``connections``: each with its ``name``; ``age_s``, seconds since its report;
      None: there is none; and its ``hosts``.

    Raises:
      ServiceNotFound: There is no connection of that name.
    """
    known = sorted(tenant.name for tenant in status.tenants)
    if name is not None and name not in known:
        raise unknown_connection(name, known)
    by_tenant = {report.tenant: report for report in reports}
    return {
        "engine": "distributed" if status.runs_executors else "local",
        "connections": [
            _connection(status, one, by_tenant.get(one)) for one in known if name in {None, one}
        ],
    }


def _connection(
    status: pb.GetStatusResponse, name: str, report: pb.TenantExecutorTimes | None
) -> dict[str, Any]:
    times = status_pb.ExecutorTimes() if report is None else report.times
    found = {(one.generation, one.host_index): one for one in times.executors}
    hosts = [
        _host(item, worker, found.get((worker.executor.generation, worker.host_index)), times)
        for item in status.slices
        if item.tenant == name
        for worker in item.workers
        if worker.HasField("executor")
    ]
    hosts.sort(key=lambda host: -(host["time_ratio"] or 0))
    # (Hosts of other types are no peers.)
    kinds = {item.id: item.instance_type for item in status.slices}
    compared: dict[str, list[dict[str, Any]]] = {}
    for host in hosts:
        host["slowest"] = False
        if host["time_ratio"] is not None:
            compared.setdefault(kinds[host["slice"]], []).append(host)
    for peers in compared.values():
        peers[0]["slowest"] = len(peers) > 1
    return {"name": name, "age_s": None if report is None else report.age_s, "hosts": hosts}


def _host(
    item: pb.SliceStatus,
    worker: pb.WorkerStatus,
    found: status_pb.ExecutorTime | None,
    times: status_pb.ExecutorTimes,
) -> dict[str, Any]:
    return {
        "slice": item.id,
        "host": worker.host_index,
        "machine": worker.host or None,
        "slow": found is not None and found.is_slow,
        "time_ratio": None if found is None else _ratio(found),
        "programs": [] if found is None else [_program(one, times) for one in found.programs],
    }


def _program(one: status_pb.ProgramTime, times: status_pb.ExecutorTimes) -> Mapping[str, Any]:
    return {
        "name": times.programs[one.program],
        "calls": one.calls,
        "median_s": one.median_s,
        "p90_s": one.p90_s,
        "ratio": _ratio(one),
        "slow": one.is_slow,
    }


def _ratio(one: status_pb.ExecutorTime | status_pb.ProgramTime) -> float | None:
    return round(one.ratio, 3) if one.HasField("ratio") else None
