"""Waits until the slices of an embedded service, which may have just started, are up."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Collection

from shared_pathways_service.errors import ServiceNotReady
from shared_pathways_service.homes.embedded.discovery import ServiceLink
from shared_pathways_service.homes.manager_news import ManagerNews
from shared_pathways_service.patience import timeouts
from shared_pathways_service.patience.factor import Timeout
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.rmclient.unary_calls import ManagerCalls
from shared_pathways_service.runtime.embedded.state_file import ServiceState

__all__ = ["wait_until_usable"]

_DOWN = ("starting", "lost")


async def wait_until_usable(
    link: ServiceLink, kinds: Collection[str], limit: Timeout = timeouts.SLICES_READY
) -> None:
    """Returns when no slice of these instance types is starting, and each type has one that is up.

    Slices that stay down for long are not waited for if others are up.

    Raises:
      grpc.aio.AioRpcError: The resource manager does not answer.
      ServiceNotReady: A type has no slice that is up or starting.
      SharedPathwaysError: The resource manager refuses to send events.
    """
    if (await _survey(link, kinds)).complete:
        return
    # Listen to the events of all slices only while waiting.
    news = ManagerNews(link.resource_manager, link.manager_address, link.token)
    try:
        await _wait_for_changes(news, link, kinds, limit)
    finally:
        await news.close()


async def _wait_for_changes(
    news: ManagerNews, link: ServiceLink, kinds: Collection[str], limit: Timeout
) -> None:
    await news.wait_until_listening()
    loop = asyncio.get_running_loop()
    deadline = limit.deadline()
    while True:
        news.changed.clear()
        survey = await _survey(link, kinds)
        if survey.complete:
            return
        if not deadline.left_s:
            if survey.missing:
                raise survey.error()
            return
        began, part_s = loop.time(), deadline.part_s
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(part_s):
                await news.changed.wait()
        # (The slices were probably stopped as long as this process was.)
        deadline.waited(loop.time() - began, part_s)


async def _survey(link: ServiceLink, kinds: Collection[str]) -> _Survey:
    calls = ManagerCalls(stub=link.resource_manager, metadata=link.metadata)
    status = await calls.status(timeouts.SLICES_STATUS.s)
    return _Survey(link.state, status, kinds)


class _Survey:
    """The state of the slices of some instance types.

    Attributes:
      missing: Types without any slice that is up.
      complete: Whether no slice is starting, and no type is missing.
    """

    def __init__(
        self, service: ServiceState, status: pb.GetStatusResponse, kinds: Collection[str]
    ) -> None:
        self._slices = [s for s in status.slices if s.instance_type in kinds]
        self._wanted = {kind: service.slices.get(kind, 0) + service.spares for kind in kinds}
        known = Counter(s.instance_type for s in self._slices if s.state != "starting")
        self._up = Counter(s.instance_type for s in self._slices if s.state not in _DOWN)
        self.missing = [kind for kind in kinds if not self._up[kind]]
        # The resource manager learns of a slice from its first worker.
        starting = any(known[kind] < count for kind, count in self._wanted.items())
        self.complete = not starting and not self.missing

    def error(self) -> ServiceNotReady:
        """Returns an error that names what is missing."""
        states = [f"{s.id} ({s.instance_type}) is {s.state}" for s in self._slices]
        unregistered = sum(self._wanted.values()) - len(self._slices)
        found = [*states, f"{unregistered} never started"] if unregistered > 0 else states
        return ServiceNotReady(
            f"the service has no {' and no '.join(self.missing)} slice that is up: "
            f"{', '.join(found)}",
            ready=self._up.total(),
            wanted=sum(self._wanted.values()),
            pods=states,
            hint="`sps status` and the logs of the service show more",
        )
