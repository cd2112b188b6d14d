"""The current state of a service in a cluster: its JobSet, its pods, logs and events."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from shared_pathways_service.cluster_state.log_lines import LogEvent, parse_line
from shared_pathways_service.cluster_state.pods import PodState
from shared_pathways_service.cluster_state.readiness import ServiceReadiness, read_readiness
from shared_pathways_service.cluster_state.services import Service, read_service
from shared_pathways_service.errors import SharedPathwaysError
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.paths import collection, pod_log
from shared_pathways_service.kube.watch import WatchEvent
from shared_pathways_service.patience import timeouts
from shared_pathways_service.patience.within import within

__all__ = ["ServiceView"]

Object = Mapping[str, Any]

#: Lines to read of the resource manager's log, and of the log of a crashed pod.
_LOG_LINES = 500
_LAST_LINES = 20
#: Concurrent requests for logs, and seconds for them: they only add detail.
_PODS = 3


class ServiceView:
    """The current state of a service.

    Args:
      api: The API server.
      service: The service as its JobSet described it.
      pods: Pods that were listed with it; pods of others are ignored.
    """

    def __init__(self, api: KubeApi, service: Service, pods: Iterable[Object]) -> None:
        self.service = service
        self._api = api
        self._pods = {_uid(pod): pod for pod in pods}
        self._asked: set[str] = set()
        self._last_words: dict[str, str] = {}
        self._manager_log: list[LogEvent] = []
        self._hint = ""

    @property
    def pods(self) -> list[Object]:
        """The known pods."""
        return list(self._pods.values())

    @property
    def readiness(self) -> ServiceReadiness:
        """The readiness of the service."""
        found = read_readiness(
            self.service,
            self._pods.values(),
            self._manager_log,
            now=self._api.server_time,
            last_words=self._last_words,
        )
        if not (found.has_missing_pods and self._hint):
            return found
        return dataclasses.replace(
            found, detail="; ".join(filter(None, (found.detail, self._hint)))
        )

    def take(self, resource: str, change: WatchEvent) -> bool:
        """Applies a change; returns whether it concerns this service."""
        thing = change.object
        if not thing:
            return False
        if resource == "pods":
            self._take_pod(thing, gone=change.kind == "DELETED")
            return True
        if _uid(thing) != self.service.uid:
            return False
        now = read_service(thing)
        if now is not None:
            ended = "its JobSet was deleted" if change.kind == "DELETED" else now.ended
            # (The address remains the requested one.)
            self.service = dataclasses.replace(now, address=self.service.address, ended=ended)
        return True

    async def find_reasons(self) -> bool:
        """Reads logs and events for the reason why the service is not ready, each once.

        Returns:
          Whether they had something new.
        """
        found = self.readiness
        if found.complete:
            return False
        crashed = [pod for pod in found.crashed if pod.uid not in self._asked][:_PODS]
        questions = [self._read_pod_log(pod) for pod in crashed]
        if found.head is not None and found.head_ready and "head" not in self._asked:
            self._asked.add("head")
            questions.append(self._read_manager_log(found.head))
        if found.has_missing_pods and "events" not in self._asked:
            self._asked.add("events")
            questions.append(self._read_events())
        self._asked.update(pod.uid for pod in crashed)
        # (The readiness is not compared: each reading of it has other times.)
        known = self._answers()
        await asyncio.gather(*questions)
        return self._answers() != known

    def _answers(self) -> tuple[object, ...]:
        return dict(self._last_words), self._manager_log, self._hint

    def _take_pod(self, pod: Object, *, gone: bool) -> None:
        uid = _uid(pod)
        if gone:
            self._pods.pop(uid, None)
            return
        if _restarts(pod) != _restarts(self._pods.get(uid, {})):
            # Another crash may have another reason.
            self._asked.discard(uid)
        self._pods[uid] = pod

    async def _read_pod_log(self, pod: PodState) -> None:
        for previous in ("true", "false"):
            lines = await self._log(pod.name, tailLines=str(_LAST_LINES), previous=previous)
            if lines:
                self._last_words[pod.uid] = "\n".join(lines)
                return

    async def _read_manager_log(self, head: PodState) -> None:
        lines = await self._log(head.name, tailLines=str(_LOG_LINES))
        self._manager_log = [event for event in map(parse_line, lines) if event is not None]

    async def _read_events(self) -> None:
        """Looks for the reason why Jobs cannot create pods: a quota, or a refused admission."""
        params = {"fieldSelector": "reason=FailedCreate"}
        events: list[Object] = []
        with contextlib.suppress(SharedPathwaysError, TimeoutError):
            async with within(timeouts.SERVICE_DETAILS):
                path = collection("events", self.service.namespace)
                events = (await self._api.get(path, params=params)).get("items") or []
        mine = [event for event in events if self._is_about_us(event)]
        if mine:
            last = max(mine, key=lambda event: str(event.get("lastTimestamp") or ""))
            self._hint = str(last.get("message") or "")

    def _is_about_us(self, event: Object) -> bool:
        about = event.get("involvedObject") or {}
        return str(about.get("name", "")).startswith(f"{self.service.name}-")

    async def _log(self, pod: str, **params: str) -> list[str]:
        """Returns lines of a log; none if it cannot be read."""
        lines: list[str] = []
        with contextlib.suppress(SharedPathwaysError, TimeoutError):
            path = pod_log(self.service.namespace, pod)
            stream = self._api.stream_lines(path, params=params)
            async with within(timeouts.SERVICE_DETAILS), contextlib.aclosing(stream):
                lines = [line async for line in stream]
        return lines


def _uid(thing: Object) -> str:
    return str(thing["metadata"]["uid"])


def _restarts(pod: Object) -> int:
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return sum(int(status.get("restartCount") or 0) for status in statuses)
