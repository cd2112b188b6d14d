"""What becomes of one proxy in a cluster: its Job, its pod, the events about both, and its log."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from shared_pathways_service.api.tenant_requests import TenantRequest
from shared_pathways_service.cluster_state.proxy_progress import (
    Outcome,
    ProxyProgress,
    Stage,
    read_progress,
)
from shared_pathways_service.cluster_state.services import Service
from shared_pathways_service.errors import SharedPathwaysError
from shared_pathways_service.events import Event
from shared_pathways_service.events import session as ev
from shared_pathways_service.homes.base import Tell
from shared_pathways_service.homes.kubernetes.placement_watch import PlacementWatch, cannot_follow
from shared_pathways_service.homes.racing import first_of
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.paths import collection, item
from shared_pathways_service.kube.watch import WatchEvent, watch
from shared_pathways_service.manifests.names import LABEL_SESSION

__all__ = ["ProxyFollower"]

Object = Mapping[str, Any]

_log = logging.getLogger(__name__)

#: Seconds for the answer to what only makes the reason of an end clearer.
_ANSWER_S = 2.0


class ProxyFollower:
    """Follows one proxy from its creation to its end.

    Args:
      api: The server.
      namespace: Where it is.
      tenant: What was asked for.
      job: The Job as it was created.
      tell: Hears the news.
      silent_service: The service, if its resource manager does not report placements: the proxy's
        log is read then, and other proxies' pods.
    """

    def __init__(
        self,
        api: KubeApi,
        namespace: str,
        tenant: TenantRequest,
        job: Object,
        *,
        tell: Tell,
        silent_service: Service | None = None,
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._tenant = tenant
        self._session = str(job["metadata"]["labels"][LABEL_SESSION])
        self._job: Object | None = job
        self._uid = str(job["metadata"]["uid"])
        self._tell = tell
        self._silent_service = silent_service
        self._pods: dict[str, Object] = {}
        self._hints: dict[str, Object] = {}
        self._running = asyncio.Event()
        self._ended = asyncio.Event()
        self._progress = ProxyProgress(stage=Stage.WAITING)

    @property
    def pod(self) -> str:
        """Its pod's name; empty before there is one."""
        return self._progress.pod

    async def wait_until_ended(self) -> None:
        """Returns once it has ended."""
        await self._ended.wait()

    async def run(self) -> None:
        """Tells what becomes of it; returns when it has ended.

        Raises:
          SharedPathwaysError: It cannot be followed any more.
        """
        # What only adds detail fails alone.
        details = [asyncio.create_task(self._detail("the proxy's events", self._follow_hints()))]
        if (service := self._silent_service) is not None:
            placing = self._follow_placement(service)
            details.append(asyncio.create_task(self._detail("the proxy's log", placing)))
        try:
            await first_of(self._follow_objects(), self.wait_until_ended())
            self._tell(_end_of(await self._end()))
        finally:
            for task in details:
                task.cancel()
            await asyncio.gather(*details, return_exceptions=True)

    async def _detail(self, what: str, following: Coroutine[Any, Any, None]) -> None:
        try:
            await following
        except Exception as error:  # noqa: BLE001 - told, and the session goes on without it
            if not isinstance(error, SharedPathwaysError):
                _log.exception("%s cannot be followed", what)
            self._tell(cannot_follow(what, error))

    async def _follow_placement(self, service: Service) -> None:
        await self._running.wait()
        watched = PlacementWatch(
            self._api, self._namespace, self._tenant, service, pod=self.pod, tell=self._tell
        )
        await watched.run()

    # ---- objects

    async def _follow_objects(self) -> None:
        path = collection("jobs", self._namespace)
        of_job = {"fieldSelector": f"metadata.name={self._tenant.name}"}
        of_pods = {"labelSelector": f"{LABEL_SESSION}={self._session}"}
        # (Versions compare within one resource only: of the others there is a list first.)
        await first_of(
            self._follow_each(path, of_job, self._take_job, self._job),
            self._follow_each(collection("pods", self._namespace), of_pods, self._take_pod),
        )

    async def _follow_each(
        self,
        path: str,
        params: Mapping[str, str],
        take: Callable[[WatchEvent], None],
        known: Object | None = None,
    ) -> None:
        """Takes changes in, from a known object on if there is one, until the proxy has ended."""
        changes = watch(
            self._api,
            path,
            params=params,
            resource_version=str(known["metadata"]["resourceVersion"]) if known else None,
            known=[known] if known else [],
            on_trouble=self._hear_of_trouble,
        )
        async with contextlib.aclosing(changes):
            async for change in changes:
                if change.kind == "SYNCED":
                    continue
                take(change)
                if self._look():
                    return

    def _hear_of_trouble(self, trouble: str) -> None:
        if not self._running.is_set():
            reason = trouble or self._progress.reason
            self._tell(ev.ProxyWaiting(reason=reason))

    def _take_job(self, change: WatchEvent) -> None:
        if change.object["metadata"]["uid"] == self._uid:
            self._job = None if change.kind == "DELETED" else change.object

    def _take_pod(self, change: WatchEvent) -> None:
        # (A pod that is gone is kept as it was last: it may tell why.)
        self._pods[str(change.object["metadata"]["uid"])] = change.object

    async def _follow_hints(self) -> None:
        """Listens to the events about Job and pod until the proxy runs; some reasons are there."""
        # (The Job's version is none of theirs: they may be in an etcd of their own.)
        path, params = collection("events", self._namespace), {"fieldSelector": "type=Warning"}
        changes = watch(self._api, path, params=params)
        async with contextlib.aclosing(changes):
            async for change in changes:
                if self._running.is_set():
                    return
                if change.kind == "SYNCED":
                    continue
                about = (change.object.get("involvedObject") or {}).get("uid")
                if about == self._uid or about in self._pods:
                    self._hints[str(change.object["metadata"]["uid"])] = change.object
                    self._look()

    # ---- what they come to

    def _look(self) -> bool:
        """Tells what is new, but for the end; returns whether the proxy has ended."""
        before = self._progress
        if before.stage is Stage.ENDED:
            return True
        now = self._progress = read_progress(self._job, self._pods.values(), self._hints.values())
        match now.stage:
            case Stage.WAITING if now.reason != before.reason:
                self._tell(ev.ProxyWaiting(reason=now.reason))
            case Stage.RUNNING if not self._running.is_set():
                self._running.set()
                self._tell(ev.ProxyServing(pod=now.pod))
            case Stage.ENDED:
                self._ended.set()
        return now.stage is Stage.ENDED

    async def _end(self) -> ProxyProgress:
        """Returns how it ended. A pod goes with its Job, whose end may be heard of later."""
        if self._progress.outcome is not Outcome.POD_DELETED:
            return self._progress
        path = item("jobs", self._namespace, self._tenant.name)
        with contextlib.suppress(SharedPathwaysError, TimeoutError):
            async with asyncio.timeout(_ANSWER_S):
                job = await self._api.find(path)
                self._job = job if job and job["metadata"]["uid"] == self._uid else None
        return read_progress(self._job, self._pods.values(), self._hints.values())


def _end_of(progress: ProxyProgress) -> Event:
    if progress.outcome is Outcome.DELETED:
        return ev.ProxyDeleted(reason=progress.reason)
    return ev.ProxyExited(
        reason=progress.reason,
        exit_code=progress.exit_code,
        outcome=progress.outcome.value,
        log_tail=tuple(progress.log_tail),
    )
