"""Describes a service in a cluster as plain data, from its pods and its proxies' Jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from shared_pathways_service import constants
from shared_pathways_service.cluster_state.pods import pod_state
from shared_pathways_service.cluster_state.proxy_jobs import KnownProxy
from shared_pathways_service.cluster_state.readiness import ServiceReadiness
from shared_pathways_service.manifests import names

__all__ = ["occupancy", "processes"]

_JOB_LABEL: Final = "batch.kubernetes.io/job-name"


def processes(
    found: ServiceReadiness, pods: Iterable[Mapping[str, Any]], proxies: Sequence[KnownProxy]
) -> list[dict[str, Any]]:
    """Returns the pods of a service and of its proxies; a proxy's pod has its connection's name."""
    known = {proxy.name for proxy in proxies}
    rows = []
    for pod in pods:
        labels = names.labels_of(pod)
        job, replicated = labels.get(_JOB_LABEL, ""), labels.get(names.LABEL_REPLICATED_JOB, "")
        of_service = labels.get(names.LABEL_JOBSET) == found.service.name
        if of_service and replicated == names.HEAD_JOB:
            rows.append(_process(pod, "rm", names.RM_CONTAINER, constants.RESOURCE_MANAGER_PORT))
        elif of_service and names.is_worker_job(replicated):
            name = f"{replicated}-{labels.get(names.LABEL_JOB_INDEX, '')}"
            worker = _process(pod, "worker", names.WORKER_CONTAINER, constants.WORKER_PORT)
            rows.append({**worker, "slice": name})
        elif job in known:
            proxy = _process(pod, "proxy", names.PROXY_CONTAINER, constants.PROXY_PORT)
            rows.append({**proxy, "name": job})
    order = ("rm", "worker", "proxy")
    return sorted(rows, key=lambda row: (order.index(row["role"]), row["pod"]))


def occupancy(found: ServiceReadiness, proxies: Iterable[KnownProxy]) -> dict[str, Any]:
    """Returns ``slices``, ``tenants`` and ``queue``, as far as pods and labels show them.

    Only a resource manager knows which tenant holds which slice, and which tenants wait.
    """
    return {
        "slices": [
            {
                "id": item.name,
                "instance_type": item.instance_type,
                "state": "ready" if item.ready else "starting",
                "tenant": None,
                "virtual_index": None,
                "since": None,
                "node_pool": None,
            }
            for item in found.slices
        ],
        "tenants": [_tenant(proxy) for proxy in proxies],
        "queue": [],
    }


def _process(pod: Mapping[str, Any], role: str, container: str, port: int) -> dict[str, Any]:
    state = pod_state(pod, container)
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return {
        "role": role,
        "name": state.name,
        "pod": state.name,
        "node": state.node or None,
        "pid": None,
        "port": port,
        "slice": None,
        "restarts": sum(int(status.get("restartCount") or 0) for status in statuses),
        "state": state.reason or "ready",
    }


def _tenant(proxy: KnownProxy) -> dict[str, Any]:
    kinds = [kind for kind, count in proxy.slices.items() for _ in range(count)]
    holder = proxy.holder
    return {
        "name": proxy.name,
        "user": holder.user or None,
        "host": holder.host or None,
        "team": holder.team or None,
        "priority": None,
        "state": proxy.state,
        "slices": [
            {"index": index, "instance_type": kind, "state": None, "slice_id": None}
            for index, kind in enumerate(kinds)
        ],
        "since": proxy.since or None,
    }
