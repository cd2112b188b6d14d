"""The node agent: keeps the testbed's nodes alive, and runs their pods."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from shared_pathways_service.errors import SharedPathwaysError
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.errors import ApiError
from shared_pathways_service.kube.watch import WatchEvent, watch
from shared_pathways_service.testing.testbed.api import Object
from shared_pathways_service.testing.testbed.errors import TestbedError
from shared_pathways_service.testing.testbed.node_agent.addresses import AddressBook
from shared_pathways_service.testing.testbed.node_agent.container import find_isolation, now
from shared_pathways_service.testing.testbed.node_agent.endpoint import KubeletEndpoint
from shared_pathways_service.testing.testbed.node_agent.nodes import (
    MANAGED_LABEL,
    NAMESPACE_LABEL,
    UNREACHABLE_TAINTS,
    NodePool,
    condition,
    lease,
    node_objects,
    node_status,
)
from shared_pathways_service.testing.testbed.node_agent.pod import PodLife, Surroundings
from shared_pathways_service.testing.testbed.node_agent.pod_reporter import PodReporter
from shared_pathways_service.testing.testbed.node_agent.storage import Storage

__all__ = ["NodeAgent"]

_log = logging.getLogger(__name__)

#: Seconds between two renewals of a node's lease, as in the kubelet.
_RENEW_S = 10.0
_PAUSE_S = 0.5
_NODES = "/api/v1/nodes"
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


class NodeAgent:
    """Runs in the testbed's process.

    Args:
      api: The API server, as the administrator.
      directory: For the pods' directories.
      kubelet_port: The port of KWOK, the nodes' kubelet endpoint.
    """

    def __init__(self, api: KubeApi, directory: Path, kubelet_port: int) -> None:
        self._api = api
        self._endpoint = KubeletEndpoint(kubelet_port)
        self._directory = directory
        self._surroundings: Surroundings | None = None
        self._addresses = AddressBook()
        self._storage = Storage(api, directory.with_name("volumes"), self._is_up)
        #: By node, the address of pods on its network.
        self._nodes: dict[str, str] = {}
        self._vanished: set[str] = set()
        self._lives: dict[str, PodLife] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Starts to watch pods and to keep nodes alive."""
        self._directory.mkdir()
        await self._endpoint.start()
        await self._storage.start()
        isolation = await asyncio.to_thread(find_isolation)
        self._surroundings = Surroundings(
            directory=self._directory,
            addresses=self._addresses,
            isolation=isolation,
            storage=self._storage,
        )
        self._keep(self._follow_pods())
        self._keep(self._keep_nodes())

    async def stop(self) -> None:
        """Ends all pods, without reporting it to the API server."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(life.vanish() for life in self._lives.values()))
        await self._storage.stop()
        await self._endpoint.stop()
        self._addresses.close()

    async def add_pools(self, pools: Iterable[NodePool]) -> list[str]:
        """Creates ready node pools; returns the names of their nodes."""
        added = []
        for pool in pools:
            for node in node_objects(pool):
                name = node["metadata"]["name"]
                self._nodes[name] = self._addresses.take()
                await self._renew(name)
                await self._api.request("POST", _NODES, body=node)
                status = node_status(pool, kubelet_port=self._endpoint.port, now=now())
                await self._patch_status(name, status)
                added.append(name)
        return added

    async def remove_nodes(self, namespace: str) -> None:
        """Removes a namespace's nodes, and the remaining processes of its pods."""
        left = [life for life in self._lives.values() if life.namespace == namespace]
        for life in left:
            self._lives.pop(life.pod["metadata"]["uid"])
        await asyncio.gather(*(life.vanish() for life in left))
        selector = {"labelSelector": f"{NAMESPACE_LABEL}={namespace}"}
        for node in (await self._api.get(_NODES, params=selector))["items"]:
            name = node["metadata"]["name"]
            self._addresses.give_back(self._nodes.pop(name))
            self._vanished.discard(name)
            for path in (f"{_NODES}/{name}", f"{_LEASES}/{name}"):
                with contextlib.suppress(ApiError):
                    await self._api.request("DELETE", path)
        self._addresses.forget(namespace)

    async def vanish(self, node: str) -> None:
        """Makes a node disappear: its pods die, and its heartbeats stop.

        It is marked as unreachable at once, instead of after the control plane's grace period, with
        the taint of a cloud that knows of the loss.
        """
        await self._switch_off(node)
        found = await self._api.get(f"{_NODES}/{node}")
        taints = [*(found["spec"].get("taints") or ()), *UNREACHABLE_TAINTS]
        await self._api.patch(f"{_NODES}/{node}", {"spec": {"taints": taints}})

    async def reboot(self, node: str) -> None:
        """Switches a node off and on: containers start again in the same pods.

        It is back before the control plane takes its pods for lost. (Pods that must not restart
        are not failed, as a kubelet would.)
        """
        await self._switch_off(node)
        await self.bring_back(node)

    async def _switch_off(self, node: str) -> None:
        self._vanished.add(self._checked(node))
        gone = [life for life in self._lives.values() if life.pod["spec"]["nodeName"] == node]
        for life in gone:
            self._lives.pop(life.pod["metadata"]["uid"])
        await asyncio.gather(*(life.vanish() for life in gone))
        unknown = condition("Unknown", "NodeStatusUnknown", now())
        await self._patch_status(node, {"conditions": [unknown]})

    async def bring_back(self, node: str) -> None:
        """Restores a node that vanished, as after a reboot."""
        self._vanished.discard(self._checked(node))
        await self._renew(node)
        await self._patch_status(node, {"conditions": [condition("True", "KubeletReady", now())]})
        found = await self._api.get(f"{_NODES}/{node}")
        gone = {taint["key"] for taint in UNREACHABLE_TAINTS}
        taints = [t for t in found["spec"].get("taints") or () if t["key"] not in gone]
        await self._api.patch(f"{_NODES}/{node}", {"spec": {"taints": taints}})
        await self._storage.report(node)
        on_node = {"fieldSelector": f"spec.nodeName={node}"}
        pods = await self._api.get("/api/v1/pods", params=on_node)
        for pod in pods["items"]:
            self._take(WatchEvent(kind="ADDED", object=pod))

    def processes(self, namespace: str) -> dict[str, dict[str, int]]:
        """Returns the process ids of a namespace's containers, by pod and container."""
        return {
            life.pod["metadata"]["name"]: life.pids
            for life in self._lives.values()
            if life.namespace == namespace and life.pids
        }

    async def _follow_pods(self) -> None:
        while True:
            with contextlib.suppress(SharedPathwaysError):
                events = watch(self._api, "/api/v1/pods", give_up_after_s=math.inf)
                async with contextlib.aclosing(events):
                    async for event in events:
                        self._take(event)
            await asyncio.sleep(_PAUSE_S)

    def _take(self, event: WatchEvent) -> None:
        if event.kind == "SYNCED":
            return
        pod: Object = dict(event.object)
        uid, node = pod["metadata"]["uid"], pod["spec"].get("nodeName")
        if not self._is_up(node):
            return
        if event.kind == "DELETED":
            if (life := self._lives.pop(uid, None)) is not None:
                self._keep(life.vanish())
            return
        life = self._lives.get(uid)
        is_deleted = "deletionTimestamp" in pod["metadata"]
        if life is None:
            is_over = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
            if is_over and not is_deleted:
                return
            life = self._begin(pod, node)
            if not is_deleted:
                life.start()
        elif _is_misjudged(pod):
            life.report()
        if is_deleted:
            life.delete(float(pod["metadata"].get("deletionGracePeriodSeconds") or 0))

    def _begin(self, pod: Object, node: str) -> PodLife:
        assert self._surroundings is not None
        reporter = PodReporter(self._api, self._endpoint, pod)
        life = PodLife(pod, reporter, self._surroundings, self._nodes[node])
        self._lives[pod["metadata"]["uid"]] = life
        return life

    async def _keep_nodes(self) -> None:
        while True:
            with contextlib.suppress(SharedPathwaysError):
                for name in self._alive():
                    await self._renew(name)
                await self._make_ready()
            await asyncio.sleep(_RENEW_S)

    async def _make_ready(self) -> None:
        """Corrects a node's status, e.g. after a long outage of the control plane."""
        listed = await self._api.get(_NODES, params={"labelSelector": MANAGED_LABEL})
        alive = self._alive()
        for node in listed["items"]:
            if node["metadata"]["name"] in alive and not _is_ready(node):
                ready = condition("True", "KubeletReady", now())
                await self._patch_status(node["metadata"]["name"], {"conditions": [ready]})

    def _alive(self) -> list[str]:
        return [name for name in self._nodes if self._is_up(name)]

    def _is_up(self, node: str) -> bool:
        return node in self._nodes and node not in self._vanished

    async def _renew(self, node: str) -> None:
        stamp = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        try:
            await self._api.patch(f"{_LEASES}/{node}", lease(node, stamp))
        except ApiError as error:
            if error.status != 404:
                raise
            try:
                await self._api.request("POST", _LEASES, body=lease(node, stamp))
            except ApiError as taken:
                # (A new node's first renewal and the periodic one may both have seen that there is
                # none.)
                if taken.reason != "AlreadyExists":
                    raise

    async def _patch_status(self, node: str, status: Mapping[str, Any]) -> None:
        await self._api.request(
            "PATCH",
            f"{_NODES}/{node}/status",
            body={"status": status},
            content_type="application/strategic-merge-patch+json",
        )

    def _checked(self, node: str) -> str:
        if node not in self._nodes:
            raise TestbedError(f"the testbed has no node {node}", hint=", ".join(self._nodes))
        return node

    def _keep(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _is_ready(thing: Object) -> bool:
    return _condition(thing, "Ready") == "True"


def _is_misjudged(pod: Object) -> bool:
    """Whether the control plane marked a pod as not ready, because its node was silent."""
    return _condition(pod, "ContainersReady") == "True" and not _is_ready(pod)


def _condition(thing: Object, kind: str) -> str | None:
    conditions = thing.get("status", {}).get("conditions") or ()
    return next((c["status"] for c in conditions if c["type"] == kind), None)
