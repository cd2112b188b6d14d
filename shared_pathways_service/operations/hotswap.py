"""Drains and restores a node pool under two JobSets, and measures how they move."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from shared_pathways_service.cluster_state.hotswap_watch import PHASES, Crew, HotswapWatch
from shared_pathways_service.cluster_state.services import jobset_end
from shared_pathways_service.errors import InvalidRequestError, ServiceNotFound, ServiceNotReady
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.drain import (
    NODE_POOL,
    cordon,
    evict,
    evict_pods,
    nodes_of_pool,
    uncordon,
)
from shared_pathways_service.kube.errors import ApiError
from shared_pathways_service.kube.paths import collection, item
from shared_pathways_service.kube.watch import WatchEvent, watch
from shared_pathways_service.manifests import names

__all__ = ["Hotswap", "Report", "create_missing", "following"]

#: Called with the name of each phase in `PHASES` when the phase begins; must not block.
OnPhase = Callable[[str], object]
#: Called with the nodes of a pool that lost one, once they are cordoned; must not block.
OnCordoned = Callable[[Sequence[str]], object]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """The measurements of one disruption, in seconds.

    Attributes:
      pool: The drained node pool; empty: the disruption was caused outside.
      phases: Seconds since the disruption began, or since the nodes returned for phases of the
        lower JobSet; phases that did not occur are missing. A disruption from outside begins when
        it is observed: a node of the higher JobSet is not ready, or one of its pods is being
        deleted.
      high_back_s: Seconds until the higher JobSet was ready again.
      low_back_s: Seconds from the nodes' return until the lower JobSet was ready; None: it was not
        preempted.
      pools: The node pools of the higher JobSet now.
      shared: Node pools that had pods of both JobSets at the same time.
    """

    pool: str
    phases: Mapping[str, float]
    high_back_s: float
    low_back_s: float | None
    pools: Sequence[str]
    shared: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        """Returns the report as plain data."""
        return dataclasses.asdict(self)


class Hotswap:
    """Controls one disruption step by step; see `following`.

    Attributes:
      seen: The observations so far.
      closed: The nodes that were cordoned and not uncordoned yet.
    """

    def __init__(
        self, api: KubeApi, seen: HotswapWatch, on_phase: OnPhase, on_cordoned: OnCordoned
    ) -> None:
        self._api = api
        self._high, self._low = seen.high, seen.low
        self._on_phase = on_phase
        self._on_cordoned = on_cordoned
        self._reported: set[str] = set()
        self._changed = asyncio.Event()
        self._seen_more = asyncio.Event()
        self._nodes_known = asyncio.Event()
        self._failure: Exception | None = None
        #: The nodes in `closed` for which the API server has confirmed it.
        self._cordoned: set[str] = set()
        self.seen = seen
        self.closed: list[str] = []

    async def wait_until_all_ready(self, *, timeout_s: float) -> None:
        """Waits until all pods of both JobSets are ready."""
        for crew in (self._high, self._low):
            await self._wait_until(
                functools.partial(self.seen.is_ready, crew.name),
                f"all {crew.pods} pods of {crew.name} to be ready",
                timeout_s,
            )

    async def drain(self, pool: str, *, timeout_s: float) -> list[str]:
        """Cordons a node pool and evicts its pods; returns its nodes.

        Raises:
          InvalidRequestError: There is no such pool, or the higher JobSet is not on it.
          ServiceNotReady: Not all pods could be evicted in time.
        """
        nodes = await nodes_of_pool(self._api, pool)
        if not nodes or pool not in self.seen.pools_of(self._high.name):
            there = ", ".join(self.seen.pools_of(self._high.name))
            expected = f"a node pool of {self._high.name}: {there}"
            raise InvalidRequestError("--disrupt", pool, expected)
        self.seen.disrupted(time.monotonic())
        self._report_phases()
        await self._close(nodes)
        try:
            async with asyncio.timeout(timeout_s):
                await evict_pods(self._api, nodes)
        except TimeoutError as error:
            why = f": {self._api.trouble}" if self._api.trouble else ""
            raise ServiceNotReady(
                f"pods of {pool} could not be evicted within {timeout_s:g} s{why}",
                hint="a PodDisruptionBudget may protect them",
            ) from error
        return nodes

    async def wait_until_lost(self, *, timeout_s: float) -> None:
        """Waits until a pod of the higher JobSet is lost, as after the loss of its node.

        The rest of a pool that lost a node is not a whole slice, but looks free to the scheduler.
        So it is cordoned, as a cloud does with a pool that it repairs.
        """
        self.seen.begun()
        async with self._keeping_broken_pools_empty():
            await self._wait_for_phase("lost", timeout_s)

    async def wait_until_back(self, *, timeout_s: float) -> None:
        """Waits until the higher JobSet is ready again.

        Meanwhile pools that lost a node are cordoned, and pods of the two JobSets that were placed
        there just before are evicted: the others of their slice find no room there.
        """
        async with self._keeping_broken_pools_empty():
            await self._wait_for_phase("ready", timeout_s)

    async def restore(self, nodes: Sequence[str], *, timeout_s: float) -> None:
        """Uncordons nodes, and waits until the lower JobSet is ready."""
        self.seen.restored(time.monotonic())
        self._report_phases()
        await uncordon(self._api, nodes)
        self.closed = [node for node in self.closed if node not in nodes]
        self._cordoned.difference_update(nodes)
        await self._wait_for_phase("low_ready", timeout_s)

    def report(self, pool: str = "") -> Report:
        """Returns the measurements."""
        seen, phases = self.seen, {}
        assert "ready" in seen.moments, "call wait_until_back first"
        for phase in PHASES:
            since = "restored" if phase.startswith("low_") else "disrupted"
            if (at_s := seen.seconds(phase, since)) is not None:
                phases[phase] = round(at_s, 3)
        return Report(
            pool=pool,
            phases=phases,
            high_back_s=phases["ready"],
            low_back_s=phases.get("low_ready") if "preempted" in seen.moments else None,
            pools=seen.pools_of(self._high.name),
            shared=dict(seen.shared),
        )

    async def follow_nodes(self) -> None:
        """Observes changes of nodes until it is cancelled."""
        of_pools = {"labelSelector": NODE_POOL}
        await self._follow(collection("nodes"), of_pools, self._take_node)

    async def follow_pods(self, namespace: str) -> None:
        """Observes changes of pods until it is cancelled."""
        # A pod names its node, whose pool must be known.
        await self._nodes_known.wait()
        selector = f"{names.LABEL_JOBSET} in ({self._high.name},{self._low.name})"
        of_both = {"labelSelector": selector}
        await self._follow(collection("pods", namespace), of_both, self._take_pod)

    async def follow_jobset(self, namespace: str, name: str) -> None:
        """Observes changes of a JobSet until it is cancelled: once it has ended, no wait helps."""
        by_name = {"fieldSelector": f"metadata.name={name}"}
        await self._follow(collection("jobsets", namespace), by_name, self._take_jobset)

    async def _follow(
        self, path: str, params: Mapping[str, str], take: Callable[[WatchEvent], object]
    ) -> None:
        changes = watch(self._api, path, params=params)
        try:
            async with contextlib.aclosing(changes):
                async for change in changes:
                    take(change)
                    self._report_phases()
        except Exception as error:  # noqa: BLE001 - raised where it is waited for
            self._failure = error
            self._changed.set()

    def _take_node(self, change: WatchEvent) -> None:
        if change.kind == "SYNCED":
            self._nodes_known.set()
        else:
            gone = change.kind == "DELETED"
            self.seen.take_node(change.object, time.monotonic(), gone=gone)

    def _take_pod(self, change: WatchEvent) -> None:
        if change.kind != "SYNCED":
            gone = change.kind == "DELETED"
            self.seen.take_pod(change.object, time.monotonic(), gone=gone)

    def _take_jobset(self, change: WatchEvent) -> None:
        if change.kind == "SYNCED":
            return
        how = "was deleted" if change.kind == "DELETED" else jobset_end(change.object)
        if how:
            name = change.object["metadata"]["name"]
            raise ServiceNotReady(
                f"the JobSet {name} {how}",
                hint=f"`kubectl describe jobset {name}` shows its restarts; --create creates "
                "it again once it is deleted",
            )

    @contextlib.asynccontextmanager
    async def _keeping_broken_pools_empty(self) -> AsyncIterator[None]:
        keeping = asyncio.create_task(self._keep_broken_pools_empty())
        try:
            yield
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)

    async def _keep_broken_pools_empty(self) -> None:
        try:
            while True:
                self._seen_more.clear()
                # (The news of a node may come later than those of its pods.)
                for pool in self.seen.broken_pools():
                    left = [n for n in self.seen.nodes_of(pool) if n not in self._cordoned]
                    if left:
                        await self._close(left)
                        self._on_cordoned(left)
                await evict(self._api, self.seen.newcomers(self.closed))
                await self._seen_more.wait()
        except Exception as error:  # noqa: BLE001 - raised where something is waited for
            self._failure = error
            self._changed.set()

    async def _close(self, nodes: Sequence[str]) -> None:
        # (If one cannot be cordoned, or the wait ends meanwhile, others may have been.)
        self.closed += [node for node in nodes if node not in self.closed]
        await cordon(self._api, nodes)
        self._cordoned.update(nodes)

    def _report_phases(self) -> None:
        for phase in self.seen.moments:
            if phase not in self._reported:
                self._reported.add(phase)
                self._on_phase(phase)
        self._changed.set()
        self._seen_more.set()

    async def _wait_for_phase(self, phase: str, timeout_s: float) -> None:
        await self._wait_until(lambda: phase in self.seen.moments, PHASES[phase], timeout_s)

    async def _wait_until(self, is_so: Callable[[], bool], what: str, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                while not is_so():
                    self._changed.clear()
                    if self._failure is not None:
                        raise self._failure
                    await self._changed.wait()
        except TimeoutError as error:
            raise ServiceNotReady(
                f"this did not happen within {timeout_s:g} s: {what}",
                hint="`kubectl get pods -o wide` and `kubectl describe jobset` show the reason",
            ) from error


@contextlib.asynccontextmanager
async def following(
    api: KubeApi,
    namespace: str,
    high: str,
    low: str,
    *,
    on_phase: OnPhase = lambda _phase: None,
    on_cordoned: OnCordoned = lambda _nodes: None,
) -> AsyncIterator[Hotswap]:
    """Observes two JobSets, of higher and lower priority, for the length of the block.

    Raises:
      ServiceNotFound: One of them does not exist.
    """
    crews = [await _crew(api, namespace, name) for name in (high, low)]
    running = Hotswap(api, HotswapWatch(*crews), on_phase, on_cordoned)
    tasks = [
        asyncio.create_task(running.follow_nodes()),
        asyncio.create_task(running.follow_pods(namespace)),
        *(asyncio.create_task(running.follow_jobset(namespace, name)) for name in (high, low)),
    ]
    try:
        yield running
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def create_missing(
    api: KubeApi, namespace: str, manifests: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Creates missing PriorityClasses and JobSets; returns their names.

    Existing ones are not changed.
    """
    made = []
    for manifest in manifests:
        wide = manifest["kind"] == "PriorityClass"
        path = collection("priorityclasses") if wide else collection("jobsets", namespace)
        try:
            await api.create(path, manifest)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
        else:
            made.append(str(manifest["metadata"]["name"]))
    return made


async def _crew(api: KubeApi, namespace: str, name: str) -> Crew:
    found = await api.find(item("jobsets", namespace, name))
    if found is None:
        raise ServiceNotFound(
            f"there is no JobSet {name} in namespace {namespace}",
            service=name,
            hint="--create creates both JobSets of the recipe",
        )
    return Crew.of(found)
