"""Reads and follows logs of pods, across broken streams, restarts and replaced pods."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from shared_pathways_service.cluster_state.log_cursor import LogCursor
from shared_pathways_service.cluster_state.readiness import is_over, service_selector
from shared_pathways_service.errors import ServiceNotFound
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.errors import ApiError, ApiUnreachable
from shared_pathways_service.kube.paths import collection, pod_log
from shared_pathways_service.kube.watch import WatchEvent, watch
from shared_pathways_service.manifests import names
from shared_pathways_service.operations.cluster_access import Cluster
from shared_pathways_service.operations.service_readers.base import Component

__all__ = ["PodLogs", "PodSelection", "pods_of"]

Object = Mapping[str, Any]
#: Called with the source of a line, and the line.
Show: TypeAlias = Callable[[str, str], object]
#: Returns the source and the text of a line to show; None: it is not to be shown.
Select: TypeAlias = Callable[[str], tuple[str, str] | None]

_JOB_LABEL = "batch.kubernetes.io/job-name"
#: Seconds until a broken stream is requested again.
_PAUSE_S = 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class PodSelection:
    """A selection of pods, and of the container in each.

    Attributes:
      what: A description for messages.
      several: Whether there may be more than one pod at a time.
      ends: Whether a pod that has ended is not replaced.
    """

    what: str
    selector: str
    container: str
    several: bool = False
    ends: bool = False


async def pods_of(cluster: Cluster, component: Component, *, name: str) -> PodSelection:
    """Selects the pods of a component.

    Args:
      cluster: The cluster.
      component: The component.
      name: A connection; may be empty, except for a proxy or executors.

    Raises:
      ServiceNotFound: There is no such connection, or service.
    """
    if component == "proxy":
        return PodSelection(
            what=f"proxy {name}",
            selector=f"{_JOB_LABEL}={name},{names.PROXY_SELECTOR}",
            container=names.PROXY_CONTAINER,
            ends=True,
        )
    found = await cluster.service()
    is_rm = component == "rm"
    # (Executors write into the logs of their workers.)
    jobs = [names.HEAD_JOB] if is_rm else [group.name for group in found.workers]
    return PodSelection(
        what=f"{'resource manager' if is_rm else 'workers'} of {found.name}",
        selector=f"{service_selector(found)},{names.LABEL_REPLICATED_JOB} in ({','.join(jobs)})",
        container=names.RM_CONTAINER if is_rm else names.WORKER_CONTAINER,
        several=not is_rm,
    )


class PodLogs:
    """Reads the logs of selected pods.

    Args:
      api: The API server.
      namespace: The namespace of the pods.
      pods: The selection.
      show: Called with the source of a line (empty if there is only one), and the line.
      select: Selects lines, with their sources; None: all are shown.
    """

    def __init__(
        self,
        api: KubeApi,
        namespace: str,
        pods: PodSelection,
        show: Show,
        select: Select | None = None,
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._pods = pods
        self._show = show
        self._select = select
        self._path = collection("pods", namespace)
        self._params = {"labelSelector": pods.selector}
        self._followed: dict[str, _Followed] = {}

    @property
    def selects(self) -> bool:
        """Whether only some lines are shown."""
        return self._select is not None

    async def read(self, lines: int) -> None:
        """Shows the last lines of each log.

        Raises:
          ServiceNotFound: There is no such pod.
          SharedPathwaysError: A log cannot be read.
        """
        pods = (await self._api.get(self._path, params=self._params)).get("items") or []
        if not pods:
            raise self._not_found()
        for pod in sorted(pods, key=_name):
            if _began(pod, self._pods.container):
                await self.last(_name(pod), LogCursor(), lines)

    async def follow(self, lines: int) -> None:
        """Shows the last lines of each log and follows it, a proxy's until its end.

        Raises:
          ServiceNotFound: There is no such pod, and none is expected.
          SharedPathwaysError: The pods cannot be watched.
        """
        try:
            async with asyncio.TaskGroup() as group:
                await self._follow(lines, group)
        except BaseExceptionGroup as errors:
            # The first error cancelled the other tasks.
            raise errors.exceptions[0] from None

    async def read_rest(self) -> None:
        """Shows what has been written since the end of `follow`, and does not wait for more."""
        for pod in self._followed.values():
            await pod.read_rest()

    async def _follow(self, lines: int, group: asyncio.TaskGroup) -> None:
        followed = self._followed
        async with contextlib.aclosing(
            watch(self._api, self._path, params=self._params)
        ) as changes:
            async for change in changes:
                if change.kind == "SYNCED":
                    if self._pods.ends and not followed:
                        raise self._not_found()
                    continue
                uid = str(change.object["metadata"]["uid"])
                if uid not in followed:
                    pod = followed[uid] = _Followed(_name(change.object), lines, self)
                    group.create_task(pod.run())
                followed[uid].update(change, self._pods.container)
                if self._pods.ends and followed[uid].ended:
                    # The task group waits for the remaining lines.
                    return

    async def last(self, name: str, cursor: LogCursor, lines: int) -> None:
        """Shows the last lines of a log."""
        if self._select is None:
            await self.stream(name, cursor, {"tailLines": str(lines)})
            return
        # (The API server cannot select.)
        kept: deque[tuple[str, str]] = deque(maxlen=lines)
        try:
            await self.stream(name, cursor, {}, lambda *shown: kept.append(shown))
        finally:
            for source, line in kept:
                self._show(source, line)

    async def stream(
        self, name: str, cursor: LogCursor, params: Mapping[str, str], show: Show | None = None
    ) -> None:
        """Shows a log from a cursor on, until the server ends the stream."""
        show = show or self._show
        query = {**params, "timestamps": "true", "container": self._pods.container}
        cursor.restart()
        stream = self._api.stream_lines(pod_log(self._namespace, name), params=query)
        async with contextlib.aclosing(stream):
            async for line in stream:
                if (text := cursor.take(line)) is None:
                    continue
                if self._select is None:
                    show(name if self._pods.several else "", text)
                elif (found := self._select(text)) is not None:
                    show(*found)

    def _not_found(self) -> ServiceNotFound:
        commands = self._api.access.commands
        return ServiceNotFound(
            f"there is no pod of the {self._pods.what} in namespace {self._namespace}",
            hint=f"`{commands.sps('list', '--all', namespace=self._namespace)}` shows the "
            "connections there; logs are deleted with their pods",
        )


class _Followed:
    """Follows the log of one pod.

    Args:
      name: The pod's name.
      lines: The number of last lines to begin with.
      logs: Shows them.

    Attributes:
      ended: Whether the pod has ended, so that the log no longer grows.
    """

    def __init__(self, name: str, lines: int, logs: PodLogs) -> None:
        self.ended = False
        self._name = name
        self._lines = lines
        self._logs = logs
        self._has_log = asyncio.Event()
        self._cursor = LogCursor()
        self._params = {"tailLines": str(lines)}

    def update(self, change: WatchEvent, container: str) -> None:
        """Updates the state of the pod."""
        self.ended = change.kind == "DELETED" or is_over(change.object)
        if self.ended or _began(change.object, container):
            self._has_log.set()
        else:
            self._has_log.clear()

    async def run(self) -> None:
        """Shows the log until its end.

        Raises:
          AccessDenied: The user may not read the log.
        """
        while True:
            await self._has_log.wait()
            is_last = self.ended
            await self._read_on({"follow": "true"})
            if is_last:
                return
            self._params = _after(self._cursor) or self._params
            await asyncio.sleep(_PAUSE_S)

    async def read_rest(self) -> None:
        """Shows the rest of the log, after `run` was cancelled."""
        if self._has_log.is_set():
            self._params = _after(self._cursor) or self._params
            await self._read_on({})

    async def _read_on(self, query: Mapping[str, str]) -> None:
        cursor = self._cursor
        # The pod may be gone, or not started again yet. The watch reports that, and a server
        # that stays unreachable.
        with contextlib.suppress(ApiError, ApiUnreachable):
            if self._logs.selects and not cursor.since:
                await self._logs.last(self._name, cursor, self._lines)
                self._params = _after(cursor)
            await self._logs.stream(self._name, cursor, {**self._params, **query})


def _name(pod: Object) -> str:
    return str(pod["metadata"]["name"])


def _after(cursor: LogCursor) -> dict[str, str]:
    return {"sinceTime": cursor.since} if cursor.since else {}


def _began(pod: Object, container: str) -> bool:
    """Whether a container has started, so that it has a log."""
    status = pod.get("status") or {}
    every = [*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ())]
    mine: Object = next((s for s in every if s.get("name") == container), {})
    state = mine.get("state") or {}
    return "running" in state or "terminated" in state or bool(mine.get("restartCount"))
