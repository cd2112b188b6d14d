"""Shows the output of a submitted job's program, across broken streams and attempts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any

from shared_pathways_service.api.job_requests import JobStatus
from shared_pathways_service.cluster_state.job_reading import pods_in_order
from shared_pathways_service.cluster_state.log_cursor import LogCursor
from shared_pathways_service.cluster_state.readiness import is_over
from shared_pathways_service.homes.job_home import OnStatus
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.errors import ApiError, ApiUnreachable
from shared_pathways_service.kube.paths import pod_log
from shared_pathways_service.manifests.names import JOB_CONTAINER

__all__ = ["JobOutput"]

Object = Mapping[str, Any]

#: Seconds until a broken stream is requested again.
_PAUSE_S = 1.0
_BEGUN = ("Running", "Succeeded", "Failed")


class JobOutput:
    """The output of one job.

    Args:
      api: The API server.
      namespace: Of the job.
      lines: The number of last lines of the first attempt that is shown.
      show: Called with each line.
    """

    def __init__(
        self, api: KubeApi, namespace: str, lines: int, show: Callable[[str], object]
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._lines = lines
        self._show = show

    async def show(self, pod: Object) -> None:
        """Shows the last lines of an attempt; none if its pod has no log (yet)."""
        with contextlib.suppress(ApiError):
            await self._stream(pod, LogCursor(), {"tailLines": str(self._lines)})

    async def follow(
        self,
        changes: AsyncIterator[tuple[JobStatus, Sequence[Object]]],
        on_status: OnStatus,
    ) -> JobStatus | None:
        """Shows lines until the job has ended, and all of them are shown; returns its last state.

        Args:
          changes: Yields the state of the job and its pods, repeatedly.
          on_status: Called when the state has changed.

        Raises:
          Exception: What `show` raised, such as BrokenPipeError.
        """
        shown: dict[str, asyncio.Task[None]] = {}
        # Attempts before the first one that is shown.
        ignored: set[str] = set()
        ended: set[str] = set()
        last: JobStatus | None = None
        try:
            async for status, pods in changes:
                if last is not None and _differs(status, last):
                    on_status(status)
                last = status
                ordered = pods_in_order(pods)
                ended |= {_uid(pod) for pod in ordered if is_over(pod)}
                ended |= shown.keys() - {_uid(pod) for pod in ordered}
                if not shown:
                    ignored = {_uid(pod) for pod in ordered[:-1]}
                for pod in ordered:
                    if _uid(pod) not in ignored | shown.keys() and _phase(pod) in _BEGUN:
                        following = self._follow(pod, ended, list(shown.values()))
                        shown[_uid(pod)] = asyncio.create_task(following)
                _raise_errors(shown.values())
                if not status.is_active:
                    break
            ended |= shown.keys()
            for task in shown.values():
                await task
        finally:
            for task in shown.values():
                task.cancel()
            await asyncio.gather(*shown.values(), return_exceptions=True)
        return last

    async def _follow(
        self, pod: Object, ended: set[str], earlier: Sequence[asyncio.Task[None]]
    ) -> None:
        """Shows the output of one attempt until its end, after that of earlier ones."""
        await asyncio.gather(*earlier)
        cursor = LogCursor()
        params = {} if earlier else {"tailLines": str(self._lines)}
        while True:
            is_last = _uid(pod) in ended
            # The pod may be gone, or its container not started. The caller notices a server that
            # stays unreachable.
            with contextlib.suppress(ApiError, ApiUnreachable):
                await self._stream(pod, cursor, {**params, "follow": "true"})
            if is_last:
                return
            if cursor.since:
                params = {"sinceTime": cursor.since}
            await asyncio.sleep(_PAUSE_S)

    async def _stream(self, pod: Object, cursor: LogCursor, params: Mapping[str, str]) -> None:
        query = {**params, "timestamps": "true", "container": JOB_CONTAINER}
        cursor.restart()
        path = pod_log(self._namespace, str(pod["metadata"]["name"]))
        async with contextlib.aclosing(self._api.stream_lines(path, params=query)) as stream:
            async for line in stream:
                if (text := cursor.take(line)) is not None:
                    self._show(text)


def _raise_errors(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Raises the error of a task that has failed."""
    for task in tasks:
        if task.done():
            task.result()


def _differs(status: JobStatus, other: JobStatus) -> bool:
    return (status.state, status.attempt) != (other.state, other.attempt)


def _uid(pod: Object) -> str:
    return str(pod["metadata"]["uid"])


def _phase(pod: Object) -> str:
    return str((pod.get("status") or {}).get("phase") or "")
