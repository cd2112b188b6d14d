"""Watches one proxy in a cluster: its Job, its pod, their events, and its log."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any

from shared_pathways_service.api.tenant_requests import TenantRequest
from shared_pathways_service.cluster_state.proxy_progress import (
    Outcome,
    ProxyProgress,
    Stage,
    read_progress,
)
from shared_pathways_service.cluster_state.readiness import is_over
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
from shared_pathways_service.patience import timeouts
from shared_pathways_service.patience.within import within

__all__ = ["ProxyFollower"]

Object = Mapping[str, Any]

_log = logging.getLogger(__name__)

#: Ends that a Job reports as well, without what happened to its pod.
_FROM_JOB = (Outcome.CRASHED, Outcome.COMPLETED)


class ProxyFollower:
    """Watches one proxy from its creation to its end.

    Args:
      api: The API server.
      namespace: The namespace of the proxy.
      tenant: The request.
      job: The created Job.
      tell: Called with events.
      silent_service: The service, if its resource manager does not report placements: then the
        proxy's log and other proxies' pods are read.
      patience_s: Seconds without an API server after which the proxy counts as lost, if they are
        more than a watch's own.
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
        patience_s: float = 0.0,
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._tenant = tenant
        session = job["metadata"]["labels"][LABEL_SESSION]
        self._of_pods = {"labelSelector": f"{LABEL_SESSION}={session}"}
        self._job: Object | None = job
        self._uid = str(job["metadata"]["uid"])
        self._tell = tell
        self._silent_service = silent_service
        self._patience_s = patience_s
        self._pods: dict[str, Object] = {}
        self._hints: dict[str, Object] = {}
        self._running = asyncio.Event()
        self._ended = asyncio.Event()
        self._progress = ProxyProgress(stage=Stage.WAITING)

    @property
    def pod(self) -> str:
        """The pod's name; empty before the pod exists."""
        return self._progress.pod

    async def wait_until_ended(self) -> None:
        """Returns once the proxy has ended."""
        await self._ended.wait()

    async def run(self) -> None:
        """Reports events of the proxy; returns when it has ended.

        Raises:
          SharedPathwaysError: The proxy can no longer be watched.
        """
        # Failures of details do not end the watch.
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
        except Exception as error:  # noqa: BLE001 - reported; the session continues without it
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
        # (Versions compare within one resource only: of the others there is a list first.)
        await first_of(
            self._follow_each(path, of_job, self._take_job, self._job),
            self._follow_each(collection("pods", self._namespace), self._of_pods, self._take_pod),
        )

    async def _follow_each(
        self,
        path: str,
        params: Mapping[str, str],
        take: Callable[[WatchEvent], None],
        known: Object | None = None,
    ) -> None:
        """Applies changes until the proxy has ended, starting after a known object if given."""
        changes = watch(
            self._api,
            path,
            params=params,
            resource_version=str(known["metadata"]["resourceVersion"]) if known else None,
            known=[known] if known else [],
            give_up_after_s=max(self._patience_s, timeouts.WATCH_AWAY.s),
            on_trouble=self._on_trouble,
        )
        async with contextlib.aclosing(changes):
            async for change in changes:
                if change.kind == "SYNCED":
                    continue
                take(change)
                if self._look():
                    return

    def _on_trouble(self, trouble: str) -> None:
        if not self._running.is_set():
            reason = trouble or self._progress.reason
            self._tell(ev.ProxyWaiting(reason=reason))

    def _take_job(self, change: WatchEvent) -> None:
        if change.object["metadata"]["uid"] == self._uid:
            self._job = None if change.kind == "DELETED" else change.object

    def _take_pod(self, change: WatchEvent) -> None:
        # (Of a deleted pod the last state is kept, which may show the reason.)
        pod = _gone(change.object) if change.kind == "DELETED" else change.object
        self._pods[str(change.object["metadata"]["uid"])] = pod

    async def _follow_hints(self) -> None:
        """Reads events of Job and pod until the proxy runs; only they have some of the reasons."""
        # (The Job's version does not apply to events, which may be in another etcd.)
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

    # ---- events

    def _look(self) -> bool:
        """Reports new events, except the end; returns whether the proxy has ended."""
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
        """Returns how the proxy ended. Job and pod end together, but are seen one by one."""
        progress = self._progress
        with contextlib.suppress(SharedPathwaysError, TimeoutError):
            async with within(timeouts.PROXY_END_DETAILS):
                if progress.outcome is Outcome.POD_DELETED:
                    job = await self._api.find(item("jobs", self._namespace, self._tenant.name))
                    self._job = job if job and job["metadata"]["uid"] == self._uid else None
                elif progress.outcome in _FROM_JOB and progress.exit_code is None:
                    # (From the Job, which does not know what happened to the pod.)
                    path = collection("pods", self._namespace)
                    pods = (await self._api.get(path, params=self._of_pods))["items"]
                    if self._pods and not pods and progress.outcome is Outcome.COMPLETED:
                        # (It ended with code 0 when it was deleted.)
                        deleted = Outcome.POD_DELETED
                        return replace(progress, outcome=deleted, reason="its pod was deleted")
                    self._pods = {str(pod["metadata"]["uid"]): pod for pod in pods}
        return read_progress(self._job, self._pods.values(), self._hints.values())


def _gone(pod: Object) -> Object:
    """Returns the state of a pod that no longer exists, from its last known state."""
    metadata = pod["metadata"]
    if is_over(pod) or metadata.get("deletionTimestamp"):
        return pod
    # (Its deletion was not seen, as while the API server was away.)
    return {**pod, "metadata": {**metadata, "deletionTimestamp": metadata.get("creationTimestamp")}}


def _end_of(progress: ProxyProgress) -> Event:
    if progress.outcome is Outcome.DELETED:
        return ev.ProxyDeleted(reason=progress.reason)
    return ev.ProxyExited(
        reason=progress.reason,
        exit_code=progress.exit_code,
        outcome=progress.outcome.value,
        log_tail=tuple(progress.log_tail),
    )
