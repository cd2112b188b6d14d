"""What `sps hotswap` does where the loss of pods is seen before that of their node."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any, TypeAlias

import pytest

from harness.deadlines import deadline
from harness.processes import run_async
from shared_pathways_service.errors import ServiceNotReady
from shared_pathways_service.manifests.hotswap_jobset import (
    HIGH,
    LOW,
    HotswapInputs,
    hotswap_jobset,
)
from shared_pathways_service.operations.hotswap import following
from tests.cluster_state.objects import Object, pod
from tests.kube.nowhere import NowhereApi

LIMIT_S = deadline(60.0)
POOL = "cloud.google.com/gke-nodepool"
#: The kind of an event, and its object.
_News: TypeAlias = tuple[str, Object]


def node(pool: str, number: int, *, ready: bool = True) -> Object:
    name = f"{pool}-{number}"
    return {
        "metadata": {"name": name, "uid": name, "resourceVersion": "1", "labels": {POOL: pool}},
        "status": {"conditions": [{"type": "Ready", "status": str(ready)}]},
    }


def a_pod(crew: str, name: str, where: str, *, ready: bool = True) -> Object:
    labels = {"jobset.sigs.k8s.io/jobset-name": crew}
    made = pod(name, ready=ready, node=where, labels=labels)
    made["metadata"] |= {"namespace": "n", "resourceVersion": "2"}
    return made


def a_jobset(inputs: HotswapInputs) -> Object:
    jobset = hotswap_jobset(inputs)
    jobset["metadata"] |= {"uid": inputs.name, "resourceVersion": "1"}
    return jobset


class Cluster(NowhereApi):
    """Pools `a`, `b` and `c` of four nodes, with the higher JobSet on `a` and `b`.

    Attributes:
      cordoned: The nodes that were cordoned.
      evictions: The names of evicted pods.
      answers: Cleared while the API server does not answer requests to cordon a node.
      asked: Set once it has got one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.nodes = [node(pool, number) for pool in "abc" for number in range(4)]
        self.pods = [
            a_pod(crew, f"old-{pool}-{number}", f"{pool}-{number}")
            for pool, crew in {"a": HIGH.name, "b": HIGH.name, "c": LOW.name}.items()
            for number in range(4)
        ]
        self.jobsets = [a_jobset(inputs) for inputs in (HIGH, LOW)]
        self.news = {kind: asyncio.Queue[_News]() for kind in ("nodes", "pods", "jobsets")}
        self.cordoned: asyncio.Queue[str] = asyncio.Queue()
        self.evictions: asyncio.Queue[str] = asyncio.Queue()
        self.answers = asyncio.Event()
        self.answers.set()
        self.asked = asyncio.Event()

    async def request(self, method: str, path: str, **_: Any) -> dict[str, Any]:
        name = path.rpartition("/")[2]
        match method, name:
            case "GET", "nodes" | "pods":
                items = self.nodes if name == "nodes" else self.pods
                return {"metadata": {"resourceVersion": "1"}, "items": items}
            case "GET", "jobsets":
                return {"metadata": {"resourceVersion": "1"}, "items": self.jobsets}
            case "GET", _:
                return next(one for one in self.jobsets if one["metadata"]["name"] == name)
            case "PATCH", _:
                self.asked.set()
                await self.answers.wait()
                self.cordoned.put_nowait(name)
            case "POST", "eviction":
                evicted = path.split("/")[-2]
                self.evictions.put_nowait(evicted)
                self.end(evicted)
            case _:
                raise AssertionError((method, path))
        return {}

    async def chunks(self, path: str) -> AsyncIterator[bytes]:
        while True:
            kind, found = await self.news[path.rpartition("/")[2]].get()
            yield json.dumps({"type": kind, "object": found}).encode() + b"\n"

    def fail(self, inputs: HotswapInputs) -> None:
        """Tells that a JobSet failed."""
        failed = {"type": "Failed", "status": "True", "message": "too many restarts"}
        jobset = {**a_jobset(inputs), "status": {"conditions": [failed]}}
        self.news["jobsets"].put_nowait(("MODIFIED", jobset))

    def lose(self, pool: str, number: int) -> None:
        """Tells that a node is not ready."""
        self.news["nodes"].put_nowait(("MODIFIED", node(pool, number, ready=False)))

    def end(self, name: str) -> None:
        """Tells that a pod was deleted."""
        [gone] = [p for p in self.pods if p["metadata"]["name"] == name]
        self.pods.remove(gone)
        self.news["pods"].put_nowait(("DELETED", gone))

    def begin(self, name: str, where: str, *, ready: bool = True) -> None:
        """Tells of a new pod."""
        self.pods.append(a_pod(HIGH.name, name, where, ready=ready))
        self.news["pods"].put_nowait(("ADDED", self.pods[-1]))


def test_the_rest_of_a_broken_pool_is_cordoned_and_kept_empty() -> None:
    phases: list[str] = []
    told: list[Sequence[str]] = []

    async def test() -> None:
        cluster = Cluster()
        async with (
            asyncio.timeout(LIMIT_S),
            following(
                cluster,
                "n",
                HIGH.name,
                LOW.name,
                on_phase=phases.append,
                on_cordoned=told.append,
            ) as running,
        ):
            await running.wait_until_all_ready(timeout_s=LIMIT_S)
            lost = asyncio.create_task(running.wait_until_lost(timeout_s=LIMIT_S))
            await asyncio.sleep(0)  # it counts from here on
            for old in list(cluster.pods):
                cluster.end(old["metadata"]["name"])
            await lost

            back = asyncio.create_task(running.wait_until_back(timeout_s=LIMIT_S))
            # The scheduler, too, takes the node's pool for a whole one.
            cluster.begin("stray", "a-1", ready=False)
            cluster.lose("a", 0)
            broken = [f"a-{number}" for number in range(4)]
            assert sorted([await cluster.cordoned.get() for _ in broken]) == broken
            assert await cluster.evictions.get() == "stray"
            for pool in "bc":
                for number in range(4):
                    cluster.begin(f"new-{pool}-{number}", f"{pool}-{number}")
            await back
            assert running.closed == broken
            assert running.seen.pools_of(HIGH.name) == ["b", "c"]
            assert cluster.cordoned.empty()

    run_async(test())
    assert told == [[f"a-{number}" for number in range(4)]]
    assert phases[:3] == ["disrupted", "lost", "ended"]
    assert {"not_ready", "created", "ready"} <= set(phases)


def test_a_pool_is_cordoned_though_the_pods_are_lost_meanwhile() -> None:
    async def test() -> None:
        cluster = Cluster()
        async with (
            asyncio.timeout(LIMIT_S),
            following(cluster, "n", HIGH.name, LOW.name) as running,
        ):
            await running.wait_until_all_ready(timeout_s=LIMIT_S)
            lost = asyncio.create_task(running.wait_until_lost(timeout_s=LIMIT_S))
            await asyncio.sleep(0)  # it counts from here on
            cluster.answers.clear()
            cluster.lose("a", 0)
            await cluster.asked.wait()
            cluster.end("old-a-0")
            await lost

            cluster.answers.set()
            back = asyncio.create_task(running.wait_until_back(timeout_s=LIMIT_S))
            broken = [f"a-{number}" for number in range(4)]
            assert sorted([await cluster.cordoned.get() for _ in broken]) == broken
            assert running.closed == broken
            back.cancel()
            await asyncio.gather(back, return_exceptions=True)

    run_async(test())


@pytest.mark.parametrize("inputs", [HIGH, LOW])
def test_a_jobset_that_failed_is_not_waited_for(inputs: HotswapInputs) -> None:
    async def test() -> None:
        cluster = Cluster()
        async with (
            asyncio.timeout(LIMIT_S),
            following(cluster, "n", HIGH.name, LOW.name) as running,
        ):
            await running.wait_until_all_ready(timeout_s=LIMIT_S)
            cluster.fail(inputs)
            with pytest.raises(ServiceNotReady) as caught:
                await running.wait_until_back(timeout_s=LIMIT_S)
            assert str(caught.value).startswith(
                f"the JobSet {inputs.name} has failed: too many restarts"
            )

    run_async(test())
