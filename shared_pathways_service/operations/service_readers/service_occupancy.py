"""Converts answers of a resource manager to the form of `sps status --json`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from shared_pathways_service.errors import ServiceNotFound
from shared_pathways_service.events import rfc3339
from shared_pathways_service.protocol import resource_manager_pb2 as rm_pb

__all__ = [
    "detailed_occupancy_of",
    "occupancy_of",
    "only",
    "reservation_dict",
    "unknown_connection",
]


def occupancy_of(manager: rm_pb.GetStatusResponse) -> dict[str, list[dict[str, Any]]]:
    """Returns ``slices``, ``executors``, ``tenants``, ``queue`` and ``reservations``."""
    return {
        "slices": [_slice(item) for item in manager.slices],
        "executors": [
            _executor(item, worker)
            for item in manager.slices
            for worker in item.workers
            if worker.HasField("executor")
        ],
        "tenants": [_tenant(tenant) for tenant in manager.tenants],
        "queue": [_queued(entry) for entry in manager.queue],
        "reservations": [reservation_dict(one) for one in manager.reservations],
    }


def detailed_occupancy_of(manager: rm_pb.GetStatusResponse) -> dict[str, list[dict[str, Any]]]:
    """Returns the same, with holdings and hosts of slices, notices of tenants, expected waits."""
    occupancy = occupancy_of(manager)
    for entry, queued in zip(manager.queue, occupancy["queue"], strict=True):
        known = entry.HasField("expected_wait_s")
        queued["expected_wait_s"] = entry.expected_wait_s if known else None
    for found, item in zip(manager.slices, occupancy["slices"], strict=True):
        item["held_since"] = found.held_since or None
        item["kept_for"] = found.kept_for or None
        item["hosts"] = sorted({worker.host for worker in found.workers if worker.host})
    for known_tenant, tenant in zip(manager.tenants, occupancy["tenants"], strict=True):
        tenant["preempting_by"] = known_tenant.preempting_by or None
        tenant["is_connected"] = known_tenant.connected
        tenant["ends"] = known_tenant.ends or None
    return occupancy


def only(status: Mapping[str, Any], name: str, known: Collection[str] = ()) -> dict[str, Any]:
    """Returns the part of a status that concerns one connection.

    Args:
      status: The whole output of ``sps status --json``.
      name: The connection.
      known: Connections that exist even if they are not tenants.

    Raises:
      ServiceNotFound: There is no connection of that name.
    """
    tenants = [tenant for tenant in status["tenants"] if tenant["name"] == name]
    if not tenants and name not in known:
        raise unknown_connection(name, sorted(tenant["name"] for tenant in status["tenants"]))
    # (Pods and labels do not show executors.)
    parts = [part for part in ("slices", "executors") if part in status]
    return {
        "service": status["service"],
        "processes": [item for item in status["processes"] if item["name"] == name],
        **{part: [item for item in status[part] if item["tenant"] == name] for part in parts},
        "tenants": tenants,
        "queue": [entry for entry in status["queue"] if entry["tenant"] == name],
        "reservations": [],
    }


def unknown_connection(name: str, names: Sequence[str]) -> ServiceNotFound:
    """Returns the error of a name that no connection of the service has; `names` are theirs."""
    return ServiceNotFound(
        f"the service has no connection {name}",
        candidates=names,
        hint=f"its connections are {', '.join(names)}" if names else "it has none",
    )


def reservation_dict(one: rm_pb.ReservationStatus) -> dict[str, Any]:
    """Returns a reservation as ``sps reservations --json`` prints it."""
    return {
        "id": one.name,
        "instance_type": one.instance_type,
        "count": one.count,
        "held": one.held,
        "user": one.user or None,
        "team": one.team or None,
        "starts": rfc3339(one.starts),
        "ends": rfc3339(one.ends),
    }


def _slice(item: rm_pb.SliceStatus) -> dict[str, Any]:
    return {
        "id": item.id,
        "instance_type": item.instance_type,
        "state": item.state,
        "tenant": item.tenant or None,
        "virtual_index": item.virtual_index if item.HasField("virtual_index") else None,
        "since": item.since or None,
        "node_pool": item.node_pool or None,
    }


def _executor(item: rm_pb.SliceStatus, worker: rm_pb.WorkerStatus) -> dict[str, Any]:
    return {
        "slice": item.id,
        "host": worker.host_index,
        "tenant": item.tenant or None,
        "state": worker.executor.state,
        "pid": worker.executor.pid or None,
        "address": worker.executor.address or None,
        **_usage(worker.executor),
        "slow": worker.executor.slow,
        "time_ratio": (
            round(worker.executor.time_ratio, 3) if worker.executor.HasField("time_ratio") else None
        ),
    }


def _usage(executor: rm_pb.ExecutorStatus) -> dict[str, Any]:
    known = executor.HasField("usage")
    usage = executor.usage
    return {
        "memory_bytes": usage.resident_bytes if known else None,
        "memory_limit_bytes": usage.memory_limit_bytes or None,
        "cpu_seconds": round(usage.cpu_seconds, 2) if known else None,
        "cpu_percent": usage.cpu_percent if known else None,
    }


def _tenant(tenant: rm_pb.TenantStatus) -> dict[str, Any]:
    slices = [
        {
            "index": item.index,
            "instance_type": item.instance_type,
            "state": item.state,
            "slice_id": item.slice_id or None,
        }
        for item in tenant.slices
    ]
    return {
        "name": tenant.name,
        "user": tenant.user or None,
        "host": tenant.host or None,
        "team": tenant.team or None,
        "priority": tenant.priority,
        "state": tenant.state,
        "slices": slices,
        "since": tenant.since or None,
        "idle_s": tenant.idle_s if tenant.HasField("idle_s") else None,
    }


def _queued(entry: rm_pb.QueueEntry) -> dict[str, Any]:
    return {
        "tenant": entry.tenant,
        "position": entry.position,
        "wants": dict(entry.wants),
        "reason": entry.reason or None,
        "waiting_s": entry.waiting_s,
    }
