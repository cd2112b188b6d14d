"""What the resource manager of the embedded service tells, over its restarts, each thing once."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Collection

import grpc
import grpc.aio

from shared_pathways_service import constants
from shared_pathways_service.errors import ServiceNotReady
from shared_pathways_service.events import Event
from shared_pathways_service.homes.base import HomeEvent
from shared_pathways_service.homes.embedded_service import ServiceLink
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.protocol.event_messages import event_of
from shared_pathways_service.servers.embedded.state import ServiceState

__all__ = ["ManagerNews", "TenantView"]

#: Seconds that slices may take to come up; of those that come up at all, each takes one or two.
_PATIENCE_S = 30.0
_DOWN = ("starting", "lost")
_PAUSE_S = 0.05
_CALL_S = 10.0


class TenantView:
    """What was told of one tenant: news come once, also when a new watch tells them again.

    Attributes:
      over: Whether the tenant is refused or gone.
    """

    def __init__(self) -> None:
        self.over = False
        self._placed: dict[object, HomeEvent] = {}
        self._running = False
        self._queued: HomeEvent | None = None

    def hear(self, event: Event) -> list[HomeEvent]:
        """Returns what is new in an event of the tenant, which may be of a snapshot."""
        news = HomeEvent(kind=event.kind, reason=event.reason or "", data=event.data)
        match event.kind:
            case "slice.placed":
                return self._hear_placed(news)
            case "slice.unplaced":
                known = self._placed.pop(news.data.get("virtual_index"), None)
                return [news] if known is not None else []
            case "tenant.running":
                first, self._running = not self._running, True
                return [news] if first else []
            case "tenant.queued":
                known, self._queued = self._queued, news
                return [news] if news != known else []
            case "tenant.refused":
                self.over = True
                return [news]
            case "tenant.gone":
                self.over = True
        return []

    def _hear_placed(self, news: HomeEvent) -> list[HomeEvent]:
        index = news.data.get("virtual_index")
        known = self._placed.get(index)
        self._placed[index] = news
        if known is None:
            return [news]
        if known.data.get("generation") == news.data.get("generation"):
            return []
        # The loss between the two was told while nobody listened.
        lost = HomeEvent(
            kind="slice.unplaced",
            reason="it was lost while the resource manager was away",
            data=known.data,
        )
        return [lost, news]


class ManagerNews:
    """All events of the resource manager, from before the proxy is created.

    Args:
      link: The service; its channels are the caller's to close, after this.
    """

    def __init__(self, link: ServiceLink) -> None:
        self._link = link
        self._changed = asyncio.Event()
        self._listening = asyncio.Event()
        self._tenant = ""
        self._view = TenantView()
        self._tell: Callable[[HomeEvent], None] | None = None
        self._task = asyncio.create_task(self._listen())

    @property
    def tenant_is_over(self) -> bool:
        """Whether the last word on the tenant has come."""
        return self._view.over

    async def close(self) -> None:
        """Listens no more."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    def follow(self, tenant: str, tell: Callable[[HomeEvent], None]) -> None:
        """Has the news of a tenant told from now on.

        Args:
          tenant: Its name; it need not exist yet.
          tell: Called with each.
        """
        self._tenant, self._tell, self._view = tenant, tell, TenantView()

    async def wait_until_usable(self, kinds: Collection[str]) -> None:
        """Returns when no slice of these instance types is starting any more, and each has some up.

        A slice that does not come up for long is not waited for if others do.

        Raises:
          ServiceNotReady: A type has no slice up, and gets none.
        """
        await self._listening.wait()
        patience = asyncio.get_running_loop().time() + _PATIENCE_S
        while True:
            self._changed.clear()
            survey = _Survey(self._link.state, await self._status(), kinds)
            if survey.complete:
                return
            try:
                async with asyncio.timeout_at(patience):
                    await self._changed.wait()
            except TimeoutError:
                if survey.missing:
                    raise survey.error() from None
                return

    async def _status(self) -> pb.GetStatusResponse:
        return await self._link.resource_manager.GetStatus(
            pb.GetStatusRequest(),
            metadata=self._link.metadata,
            wait_for_ready=True,
            timeout=_CALL_S,
        )

    async def _listen(self) -> None:
        request = pb.WatchRequest(
            versions=pb.VersionRange(min=constants.PROTOCOL_MIN, max=constants.PROTOCOL_MAX)
        )
        while True:
            # It ends when the resource manager does, which is then started again.
            with contextlib.suppress(grpc.aio.AioRpcError):
                call = self._link.resource_manager.Watch(
                    request, metadata=self._link.metadata, wait_for_ready=True
                )
                async for message in call:
                    self._listening.set()
                    self._changed.set()
                    self._hear(event_of(message))
            await asyncio.sleep(_PAUSE_S)

    def _hear(self, event: Event) -> None:
        if self._tell is not None and event.tenant == self._tenant:
            for news in self._view.hear(event):
                self._tell(news)


class _Survey:
    """How the slices of some instance types stand.

    Attributes:
      missing: Types without a single slice that is up.
      complete: Whether none is starting, and none of the types is missing.
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
        """Says what is missing."""
        states = [f"{s.id} ({s.instance_type}) is {s.state}" for s in self._slices]
        unheard = sum(self._wanted.values()) - len(self._slices)
        return ServiceNotReady(
            f"the service has no {' and no '.join(self.missing)} slice that is up: "
            f"{', '.join([*states, *([f'{unheard} never came'] if unheard > 0 else [])])}",
            ready=self._up.total(),
            wanted=sum(self._wanted.values()),
            pods=states,
            hint="`sps status` and the logs of the service tell more",
        )
