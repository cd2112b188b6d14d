"""Cordons, drains and uncordons nodes, as kubectl does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Final

import tenacity

from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.errors import ApiError
from shared_pathways_service.kube.paths import collection, item

__all__ = ["NODE_POOL", "cordon", "evict", "evict_pods", "nodes_of_pool", "uncordon"]

Object = Mapping[str, Any]

NODE_POOL: Final = "cloud.google.com/gke-nodepool"
_NOT_FOUND: Final = 404
#: The status while a disruption budget forbids an eviction.
_TOO_MANY: Final = 429
_PAUSE_S: Final = 0.5


async def nodes_of_pool(api: KubeApi, pool: str) -> list[str]:
    """Returns the names of a pool's nodes; empty if there is no such pool."""
    found = await api.get(collection("nodes"), params={"labelSelector": f"{NODE_POOL}={pool}"})
    return sorted(node["metadata"]["name"] for node in found.get("items") or ())


async def cordon(api: KubeApi, nodes: Iterable[str]) -> None:
    """Marks nodes as unschedulable."""
    await asyncio.gather(*(_set_unschedulable(api, node, True) for node in nodes))


async def uncordon(api: KubeApi, nodes: Iterable[str]) -> None:
    """Marks nodes as schedulable again."""
    await asyncio.gather(*(_set_unschedulable(api, node, None) for node in nodes))


async def evict_pods(api: KubeApi, nodes: Iterable[str]) -> None:
    """Evicts every pod of these nodes except those of daemon sets; the caller sets a deadline.

    Evictions that a disruption budget forbids are retried. Returns when every eviction was
    accepted; each pod then ends within its grace period.
    """
    listed = await asyncio.gather(*(_pods_on(api, node) for node in nodes))
    await evict(api, [pod for pods in listed for pod in pods])


async def evict(api: KubeApi, pods: Iterable[Object]) -> None:
    """Evicts pods, as `evict_pods` does; one that is gone is no error."""
    await asyncio.gather(*(_evict(api, pod) for pod in pods))


async def _set_unschedulable(api: KubeApi, node: str, value: bool | None) -> None:
    try:
        await api.patch(item("nodes", "", node), {"spec": {"unschedulable": value}})
    except ApiError as error:
        # (A node that was deleted needs none of it.)
        if error.status != _NOT_FOUND:
            raise


async def _pods_on(api: KubeApi, node: str) -> list[Object]:
    found = await api.get(collection("pods"), params={"fieldSelector": f"spec.nodeName={node}"})
    return [pod for pod in found.get("items") or () if not _stays(pod)]


def _stays(pod: Object) -> bool:
    owners = pod["metadata"].get("ownerReferences") or ()
    # The API server cannot evict the mirror of a kubelet's static pod.
    return any(owner.get("kind") in ("DaemonSet", "Node") for owner in owners)


def _is_forbidden_for_now(error: BaseException) -> bool:
    return isinstance(error, ApiError) and error.status == _TOO_MANY


@tenacity.retry(
    retry=tenacity.retry_if_exception(_is_forbidden_for_now), wait=tenacity.wait_fixed(_PAUSE_S)
)
async def _evict(api: KubeApi, pod: Object) -> None:
    namespace, name, uid = (pod["metadata"][key] for key in ("namespace", "name", "uid"))
    body = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": namespace},
        "deleteOptions": {"preconditions": {"uid": uid}},
    }
    try:
        await api.request("POST", f"{item('pods', namespace, name)}/eviction", body=body)
    except ApiError as error:
        if error.status != _NOT_FOUND and error.reason != "Conflict":
            raise
