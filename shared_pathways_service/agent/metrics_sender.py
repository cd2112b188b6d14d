"""Sends a session's metrics in the background, without ever delaying or failing the session."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from shared_pathways_service.agent.cloud_monitoring import (
    CloudMonitoring,
    Delayed,
    Refused,
    Unavailable,
)
from shared_pathways_service.agent.messages import Start
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.events.session import MetricsUnavailable
from shared_pathways_service.homes.choice import HomeChoice
from shared_pathways_service.kube.access import context_at
from shared_pathways_service.kube.kubeconfig import read_kubeconfig
from shared_pathways_service.patience import timeouts
from shared_pathways_service.session.cloud_metrics import Meter, place_of
from shared_pathways_service.session.messages import Snapshot

__all__ = ["MetricsReporter"]

_log = logging.getLogger(__name__)


class MetricsReporter:
    """Writes a session's metrics to Cloud Monitoring inside a block.

    Leaving the block reports the session's end: it waits until all nonzero metrics are set to zero,
    but no longer than `session.cloud_metrics.LINGER_S` after the session's end.
    """

    def __init__(
        self,
        start: Start,
        send: Callable[[Mapping[str, Any]], None],
        *,
        meter: Meter | None = None,
    ) -> None:
        self._start = start
        self._send = send
        self._meter = meter or Meter(linger_s=timeouts.METRICS_LINGER.s)
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._has_complained = False

    @property
    def is_behind(self) -> bool:
        """Whether leaving the block would have to wait."""
        return self._task is not None and not self._task.done()

    def observe(self, snapshot: Snapshot) -> None:
        """Records the session's state."""
        self._meter.observe(snapshot, asyncio.get_running_loop().time())
        self._changed.set()

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._task is not None
        try:
            if self._meter.end_by is not None:
                left = self._meter.end_by - asyncio.get_running_loop().time()
                await asyncio.wait({self._task}, timeout=max(left, 0.0))
        finally:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            await self._report()
        except Unavailable as error:
            self._complain(str(error))
        except Exception as error:  # noqa: BLE001 - metrics must not fail the session
            _log.exception("metrics failed")
            self._complain(f"{type(error).__name__}: {error}")

    async def _report(self) -> None:
        project, cluster = _place(self._start.home)
        monitoring = CloudMonitoring(
            project=project,
            labels={
                "client_instance_id": self._start.session,
                "cluster_name": cluster,
                "job_name": self._start.request.name,
            },
        )
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(monitoring.close)
            while not self._meter.is_done:
                await self._wait_until_due()
                await self._write(monitoring)

    async def _wait_until_due(self) -> None:
        while not self._meter.is_done:
            self._changed.clear()
            due = self._meter.next_due
            if due is not None and due <= asyncio.get_running_loop().time():
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await self._changed.wait()

    async def _write(self, monitoring: CloudMonitoring) -> None:
        loop = asyncio.get_running_loop()
        readings = self._meter.take(loop.time())
        if not readings:
            return
        try:
            await monitoring.write(readings, at=time.time())
        except Delayed as error:
            self._meter.failed(loop.time())
            self._complain(str(error))
        except Refused as error:
            self._meter.delivered()
            self._complain(str(error))
        else:
            self._meter.delivered()

    def _complain(self, reason: str) -> None:
        """Reports once why metrics are missing."""
        if self._has_complained:
            return
        self._has_complained = True
        _log.warning("metrics are not sent: %s", reason)
        event = MetricsUnavailable(tenant=self._start.request.name, reason=reason)
        self._send({"type": "event", "event": event.to_dict()})


def _place(home: HomeChoice) -> tuple[str, str]:
    """Returns project (empty: unknown) and cluster of a home."""
    if home.name != "kubernetes":
        return "", home.name
    if home.options["cluster"]:
        return home.options["project"], home.options["cluster"]
    context = home.options["context"]
    if server := home.server_handed_over:
        with contextlib.suppress(InvalidRequestError):
            context = context_at(server)
    elif not context:
        # (The home reports an unreadable kubeconfig.)
        with contextlib.suppress(InvalidRequestError):
            context = read_kubeconfig().current
    return place_of(context)
