"""What `sps hotswap` does where the loss of pods is seen before that of their node."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from harness.processes import run_async
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.cluster import ClusterAccess
from shared_pathways_service.kube.tokens import static_token
from shared_pathways_service.manifests.hotswap_jobset import HIGH, LOW, hotswap_jobset
from shared_pathways_service.operations.hotswap import following
from tests.cluster_state.objects import Object, pod

LIMIT_S = 60.0
POOL = "cloud.google.com/gke-nodepool"


def node(pool: str, number: int, *, ready: bool = True) -> Object:
    name = f"{pool}-{number}"
    return {
        "metadata": {"name": name, "uid": name, "resourceVersion": "1", "labels": {POOL: pool}},
        "status": {"conditions": [{"type": "Ready", "status": str(ready)}]},
    }


def of_high(name: str, where: str, *, ready: bool = True) -> Object:
    labels = {"jobset.sigs.k8s.io/jobset-name": HIGH.name}
    made = pod(name, ready=ready, node=where, labels=labels)
    made["metadata"] |= {"namespace": "n", "resourceVersion": "2"}
    return made


class SlowNodes(KubeApi):
    """Pools of four nodes: the higher JobSet is on `a` and `b`. A watch of nodes tells nothing."""

    def __init__(self) -> None:
        super().__init__(ClusterAccess(server="http://nowhere", tls=None, tokens=static_token()))
        self.nodes = [node(pool, number) for pool in "abc" for number in range(4)]
        self.pods = [of_high(f"old-{pool}-{n}", f"{pool}-{n}") for pool in "ab" for n in range(4)]
        self.news: asyncio.Queue[tuple[str, Object]] = asyncio.Queue()
        self.cordoned: list[str] = []
        self.evicted: list[str] = []

    async def request(self, method: str, path: str, **asked: Any) -> dict[str, Any]:
        name = path.rpartition("/")[2]
        selector = (asked.get("params") or {}).get("labelSelector", "")
        fields = (asked.get("params") or {}).get("fieldSelector", "")
        match method, name:
            case "GET", "nodes":
                pool = selector.partition("=")[2]
                items = [n for n in self.nodes if pool in ("", n["metadata"]["labels"][POOL])]
            case "GET", "pods":
                where = fields.partition("=")[2]
                items = [p for p in self.pods if where in ("", p["spec"]["nodeName"])]
            case "GET", _:
                return hotswap_jobset(HIGH if name == HIGH.name else LOW)
            case "PATCH", _:
                self.cordoned.append(name)
                return {}
            case "POST", "eviction":
                evicted = path.split("/")[-2]
                self.evicted.append(evicted)
                await self.end(evicted)
                return {}
            case _:
                raise AssertionError((method, path))
        return {"metadata": {"resourceVersion": "1"}, "items": items}

    @contextlib.asynccontextmanager
    async def stream(
        self,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        within_s: float | None = None,
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        async def chunks() -> AsyncIterator[bytes]:
            while path.endswith("/pods"):
                kind, found = await self.news.get()
                yield json.dumps({"type": kind, "object": found}).encode() + b"\n"
            await asyncio.Event().wait()

        yield chunks()

    async def end(self, name: str) -> None:
        [gone] = [p for p in self.pods if p["metadata"]["name"] == name]
        self.pods.remove(gone)
        await self.news.put(("DELETED", gone))

    async def begin(self, name: str, where: str, *, ready: bool = True) -> None:
        self.pods.append(of_high(name, where, ready=ready))
        await self.news.put(("ADDED", self.pods[-1]))


def test_the_rest_of_a_broken_pool_is_cordoned_and_kept_empty() -> None:
    api = SlowNodes()
    phases: list[str] = []

    async def test() -> None:
        async with following(api, "n", HIGH.name, LOW.name, on_phase=phases.append) as running:
            async with asyncio.timeout(LIMIT_S):
                while not running.seen.is_ready(HIGH.name):
                    await asyncio.sleep(0)
            lost = asyncio.create_task(running.wait_until_lost(timeout_s=LIMIT_S))
            await asyncio.sleep(0)  # it counts from here on
            api.nodes[0] = node("a", 0, ready=False)
            for old in list(api.pods):
                await api.end(old["metadata"]["name"])
            broken = [f"a-{number}" for number in range(4)]
            assert await lost == broken
            assert sorted(api.cordoned) == broken

            back = asyncio.create_task(running.wait_until_back(timeout_s=LIMIT_S))
            # The scheduler did not know yet, and chose a node of the broken pool.
            await api.begin("stray", "a-1", ready=False)
            async with asyncio.timeout(LIMIT_S):
                while not api.evicted:
                    await asyncio.sleep(0)
            for pool in "bc":
                for number in range(4):
                    await api.begin(f"new-{pool}-{number}", f"{pool}-{number}")
            await back
            assert set(api.evicted) == {"stray"}
            assert running.seen.pools_of(HIGH.name) == ["b", "c"]

    run_async(test())
    assert phases[:3] == ["disrupted", "lost", "ended"]
    assert {"not_ready", "created", "ready"} <= set(phases)
