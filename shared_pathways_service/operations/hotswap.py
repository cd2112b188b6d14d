"""Two JobSets on a cluster while a node pool goes and comes back: done, watched and timed."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any

from shared_pathways_service.cluster_state.hotswap_watch import PHASES, Crew, HotswapWatch
from shared_pathways_service.errors import InvalidRequestError, ServiceNotFound, ServiceNotReady
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.drain import (
    NODE_POOL,
    cordon,
    evict_pods,
    nodes_of_pool,
    uncordon,
)
from shared_pathways_service.kube.errors import ApiError
from shared_pathways_service.kube.paths import collection, item
from shared_pathways_service.kube.watch import watch
from shared_pathways_service.manifests import names

__all__ = ["Hotswap", "Report", "create_missing", "following"]

#: Is told of each phase when it comes, by its name in `PHASES`.
Tell = Callable[[str], object]

_EXISTS = "AlreadyExists"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """What came of one disruption; seconds.

    Attributes:
      pool: That was drained; empty: what somebody else did was watched.
      phases: Since the disruption began, those of the lower JobSet's return since the nodes came
        back; those that did not come are missing. What somebody else did began when it was seen: a
        node of the higher JobSet was not heard of, or a pod of its was told to go.
      high_back_s: From then until the higher one was ready.
      low_back_s: From the nodes' return until the lower one was ready; None: it was never gone.
      pools: Where the higher one is now.
      shared: Node pools that had pods of both at one time.
    """

    pool: str
    phases: Mapping[str, float]
    high_back_s: float
    low_back_s: float | None
    pools: Sequence[str]
    shared: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        """Returns it as plain data."""
        return dataclasses.asdict(self)


class Hotswap:
    """A disruption, step by step; see `following`.

    Attributes:
      seen: What is known so far.
      closed: The nodes that were cordoned and not opened again.
    """

    def __init__(self, api: KubeApi, seen: HotswapWatch, high: Crew, low: Crew, tell: Tell) -> None:
        self._api = api
        self._high, self._low = high, low
        self._tell = tell
        self._told: set[str] = set()
        self._news = asyncio.Event()
        self._nodes_known = asyncio.Event()
        self._failure: Exception | None = None
        self.seen = seen
        self.closed: list[str] = []

    async def wait_until_all_ready(self, *, timeout_s: float) -> None:
        """Waits until all pods of both are ready."""
        for crew in (self._high, self._low):
            await self._until(
                functools.partial(self.seen.is_ready, crew.name),
                f"all {crew.pods} pods of {crew.name} to be ready",
                timeout_s,
            )

    async def drain(self, pool: str, *, timeout_s: float) -> list[str]:
        """Closes a node pool, and evicts its pods; returns its nodes.

        Raises:
          InvalidRequestError: There is no such pool, or the higher JobSet is not there.
          ServiceNotReady: Not all may be evicted in time.
        """
        nodes = await nodes_of_pool(self._api, pool)
        if not nodes or pool not in self.seen.pools_of(self._high.name):
            there = ", ".join(self.seen.pools_of(self._high.name))
            expected = f"a node pool of {self._high.name}: {there}"
            raise InvalidRequestError("--disrupt", pool, expected)
        self.seen.disrupted(time.monotonic())
        self._hear()
        await self._close(nodes)
        try:
            async with asyncio.timeout(timeout_s):
                await evict_pods(self._api, nodes)
        except TimeoutError as error:
            raise ServiceNotReady(
                f"pods of {pool} cannot be evicted within {timeout_s:g} s",
                hint="a PodDisruptionBudget may protect them",
            ) from error
        return nodes

    async def wait_until_lost(self, *, timeout_s: float) -> list[str]:
        """Waits until somebody else takes a node of the higher JobSet away.

        What is left of a pool that lost a node is no slice any more, but looks free to the
        scheduler: it is closed, as a cloud closes a pool that it repairs.

        Returns:
          The nodes that were closed.
        """
        self.seen.begun()
        moments = self.seen.moments
        await self._until(
            lambda: "not_ready" in moments or "lost" in moments, PHASES["lost"], timeout_s
        )
        closed = [
            node
            for pool in self.seen.broken_pools()
            for node in await nodes_of_pool(self._api, pool)
        ]
        await self._close(closed)
        await self._until_phase("lost", timeout_s)
        return closed

    async def wait_until_back(self, *, timeout_s: float) -> None:
        """Waits until the higher JobSet is ready again."""
        await self._until_phase("ready", timeout_s)

    async def restore(self, nodes: Sequence[str], *, timeout_s: float) -> None:
        """Opens nodes again, and waits until the lower JobSet is ready."""
        self.seen.restored(time.monotonic())
        self._hear()
        await uncordon(self._api, nodes)
        self.closed = [node for node in self.closed if node not in nodes]
        await self._until_phase("low_ready", timeout_s)

    def report(self, pool: str = "") -> Report:
        """Returns what came of it."""
        seen = self.seen
        back_s = seen.seconds("ready", "disrupted")
        assert back_s is not None, "wait_until_back comes first"
        since = {phase: "restored" if phase.startswith("low_") else "disrupted" for phase in PHASES}
        phases = {phase: seen.seconds(phase, since[phase]) for phase in PHASES}
        return Report(
            pool=pool,
            phases={phase: round(at, 3) for phase, at in phases.items() if at is not None},
            high_back_s=round(back_s, 3),
            low_back_s=_rounded(phases["low_ready"]) if "preempted" in seen.moments else None,
            pools=seen.pools_of(self._high.name),
            shared=dict(seen.shared),
        )

    async def follow_nodes(self) -> None:
        """Takes changes of nodes in, until it is cancelled."""
        changes = watch(self._api, collection("nodes"), params={"labelSelector": NODE_POOL})
        with self._failing():
            async with contextlib.aclosing(changes):
                async for change in changes:
                    if change.kind == "SYNCED":
                        self._nodes_known.set()
                    elif change.kind != "DELETED":
                        self.seen.take_node(change.object, time.monotonic())
                        self._hear()

    async def follow_pods(self, namespace: str) -> None:
        """Takes changes of pods in, until it is cancelled."""
        # A pod tells its node; of what pool that is must be known.
        await self._nodes_known.wait()
        selector = f"{names.LABEL_JOBSET} in ({self._high.name},{self._low.name})"
        changes = watch(
            self._api, collection("pods", namespace), params={"labelSelector": selector}
        )
        with self._failing():
            async with contextlib.aclosing(changes):
                async for change in changes:
                    if change.kind != "SYNCED":
                        gone = change.kind == "DELETED"
                        self.seen.take_pod(change.object, time.monotonic(), gone=gone)
                        self._hear()

    async def _close(self, nodes: Sequence[str]) -> None:
        # (Some of them may be closed where one cannot be.)
        self.closed += nodes
        await cordon(self._api, nodes)

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - raised where it is waited for
            self._failure = error
            self._news.set()

    def _hear(self) -> None:
        for phase in self.seen.moments:
            if phase not in self._told:
                self._told.add(phase)
                self._tell(phase)
        self._news.set()

    async def _until_phase(self, phase: str, timeout_s: float) -> None:
        await self._until(lambda: phase in self.seen.moments, PHASES[phase], timeout_s)

    async def _until(self, is_so: Callable[[], bool], what: str, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                while not is_so():
                    self._news.clear()
                    if self._failure is not None:
                        raise self._failure
                    await self._news.wait()
        except TimeoutError as error:
            raise ServiceNotReady(
                f"waited {timeout_s:g} s in vain for this: {what}",
                hint="`kubectl get pods -o wide` and `kubectl describe jobset` show what keeps it",
            ) from error


@contextlib.asynccontextmanager
async def following(
    api: KubeApi, namespace: str, high: str, low: str, *, tell: Tell = lambda _phase: None
) -> AsyncIterator[Hotswap]:
    """Follows two JobSets, for the length of the block.

    Args:
      api: The cluster's.
      namespace: Of both.
      high: The name of that of higher priority.
      low: The name of the other one.
      tell: Is told of each phase when it comes; must not block.

    Raises:
      ServiceNotFound: One of them does not exist.
    """
    first, second = [await _crew(api, namespace, name) for name in (high, low)]
    running = Hotswap(api, HotswapWatch(first, second), first, second, tell)
    tasks = [
        asyncio.create_task(running.follow_nodes()),
        asyncio.create_task(running.follow_pods(namespace)),
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
    """Creates those PriorityClasses and JobSets that there are not; returns their names.

    One that is there stays as it is, whoever made it.
    """
    made = []
    for manifest in manifests:
        wide = manifest["kind"] == "PriorityClass"
        path = collection("priorityclasses") if wide else collection("jobsets", namespace)
        try:
            await api.create(path, manifest)
        except ApiError as error:
            if error.reason != _EXISTS:
                raise
        else:
            made.append(str(manifest["metadata"]["name"]))
    return made


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


async def _crew(api: KubeApi, namespace: str, name: str) -> Crew:
    found = await api.find(item("jobsets", namespace, name))
    if found is None:
        raise ServiceNotFound(
            f"there is no JobSet {name} in namespace {namespace}",
            service=name,
            hint="`sps hotswap --create` makes both of the recipe",
        )
    return Crew.of(found)
