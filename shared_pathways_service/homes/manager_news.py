"""What a resource manager tells, over its restarts, each thing once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

import grpc.aio

from shared_pathways_service import constants
from shared_pathways_service.errors import SharedPathwaysError
from shared_pathways_service.events import Event
from shared_pathways_service.events.tenants import (
    SlicePlaced,
    SliceUnplaced,
    TenantGone,
    TenantIdled,
    TenantNotice,
    TenantPreempted,
    TenantQueued,
    TenantRefused,
    TenantRunning,
)
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.protocol import resource_manager_pb2_grpc as pb_grpc
from shared_pathways_service.protocol.auth import bearer
from shared_pathways_service.protocol.event_messages import event_of
from shared_pathways_service.rmclient.event_stream import EventStream
from shared_pathways_service.rmclient.failures import translate
from shared_pathways_service.rmclient.unary_calls import ManagerCalls

__all__ = ["ManagerNews", "TenantView"]

#: Seconds for a release, which only hastens what comes anyway.
_RELEASE_S = 4.0

#: The version from which on who watches one tenant is told at once that it is heard.
_TELLS_THAT_IT_HEARS = 2

_log = logging.getLogger(__name__)


class TenantView:
    """What was told of one tenant: news come once, also when a new watch tells them again.

    Attributes:
      over: Whether the tenant is refused or gone.
    """

    def __init__(self) -> None:
        self.over = False
        self._placed: dict[int | None, SlicePlaced] = {}
        self._running = False
        self._queued: TenantQueued | None = None

    def hear(self, event: Event) -> list[Event]:
        """Returns what is new in an event of the tenant, which may be of a snapshot."""
        if isinstance(event, SlicePlaced):
            return self._hear_placed(event)
        return [event] if self._is_new(event) else []

    def _is_new(self, event: Event) -> bool:
        is_new = False
        match event:
            case TenantNotice():
                self._running &= not isinstance(event, TenantPreempted | TenantIdled)
                is_new = True
            case SliceUnplaced():
                is_new = self._placed.pop(event.virtual_index, None) is not None
            case TenantRunning():
                was_running, self._running = self._running, True
                is_new = not was_running
            case TenantQueued():
                known, self._queued = self._queued, event
                is_new = event != known
            case TenantRefused():
                self.over = is_new = True
            case TenantGone():
                self.over = True
        return is_new

    def _hear_placed(self, event: SlicePlaced) -> list[Event]:
        known = self._placed.get(event.virtual_index)
        self._placed[event.virtual_index] = event
        if known is None:
            return [event]
        if known.generation == event.generation:
            return []
        # The loss between the two was told while nobody listened.
        lost = SliceUnplaced(
            reason="it was lost while the resource manager was away",
            virtual_index=known.virtual_index,
            slice_id=known.slice_id,
            generation=known.generation,
            instance_type=known.instance_type,
        )
        return [lost, event]


class ManagerNews:
    """The events of a resource manager, from before the proxy is created.

    Args:
      resource_manager: Its stub; the channel is the caller's to close, after this.
      address: Where it is, for errors.
      token: What it wants to be shown; None: nothing.
      only: The one tenant whose events are asked for, as all of a large service's are many; empty:
        all. A resource manager that speaks version 1 alone is asked for all, until it ends.
      on_trouble: Told why listening broke off, or could not begin, each time; must not block.

    Attributes:
      changed: Set at every event that is heard; the waiter's to clear.
    """

    def __init__(
        self,
        resource_manager: pb_grpc.ResourceManagerAsyncStub,
        address: str,
        token: str | None = None,
        *,
        only: str = "",
        on_trouble: Callable[[str], object] = lambda _: None,
    ) -> None:
        self.changed = asyncio.Event()
        self._calls = ManagerCalls(stub=resource_manager, metadata=bearer(token))
        self._address = address
        self._on_trouble = on_trouble
        self._listening = asyncio.Event()
        self._stream = EventStream(
            resource_manager,
            lambda: _watch_request(only),
            metadata=self._calls.metadata,
            fallback=(lambda: _watch_request("")) if only else None,
            on_open=self._listening.set,
            on_lost=self._on_lost,
        )
        self._heard_of = asyncio.Event()
        self._failure: SharedPathwaysError | None = None
        self._tenant = ""
        self._view = TenantView()
        self._tell: Callable[[Event], None] | None = None
        self._task = asyncio.create_task(self._run())

    @property
    def reconnects(self) -> int:
        """How often listening broke off and began anew."""
        return self._stream.reconnects

    @property
    def tenant_is_over(self) -> bool:
        """Whether the last word on the tenant has come."""
        return self._view.over

    async def close(self) -> None:
        """Listens no more."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    def give_up(self, failure: SharedPathwaysError) -> None:
        """Listens no more, as there is no way to the resource manager; whoever waits is told."""
        self._task.cancel()
        self._failure = failure
        self._listening.set()

    def follow(self, tenant: str, tell: Callable[[Event], None]) -> None:
        """Has the news of a tenant told from now on.

        Args:
          tenant: Its name; it need not exist yet. Who asked for one tenant's events names that.
          tell: Called with each.
        """
        self._tenant, self._tell, self._view = tenant, tell, TenantView()
        self._heard_of.clear()

    async def wait_until_listening(self) -> None:
        """Returns once nothing that happens is missed any more; the caller has a deadline.

        Raises:
          SharedPathwaysError: It does not let us listen, and will not.
        """
        await self._listening.wait()
        if self._failure is not None:
            raise self._failure

    async def wait_until_heard_of(self) -> None:
        """Returns once anything was told of the tenant that is followed; the caller has a deadline.

        That nobody listens any more is no end of it: who cannot hear of a tenant may release it.
        """
        await self._heard_of.wait()

    async def release(self, tenant: str, reason: str) -> bool:
        """Has a tenant's slices given back at once.

        They are given back later in any case: a tenant whose proxy is gone has some seconds to
        come back.

        Returns:
          False when there is no such tenant, or the answer did not come in time.
        """
        try:
            return await self._calls.release(tenant, reason, _RELEASE_S)
        except grpc.aio.AioRpcError as error:
            _log.info("%s is not released: %s", tenant, error.details())
            return False

    async def _run(self) -> None:
        try:
            await self._listen()
        except SharedPathwaysError as error:
            self._failure = error
        except Exception as error:  # noqa: BLE001 - whoever waits for news must hear of it
            _log.exception("listening to the resource manager failed")
            what = f"{type(error).__name__}: {error}"
            self._failure = SharedPathwaysError(f"no news of the resource manager: {what}")
        _log.warning("the resource manager is not listened to any more: %s", str(self._failure))
        self._listening.set()

    async def _listen(self) -> None:
        try:
            await self._stream.follow(self._take)
        except grpc.aio.AioRpcError as error:
            raise translate(error, self._address) from error

    def _on_lost(self, reason: str) -> None:
        _log.info("the resource manager is asked again for its news: %s", reason)
        self._on_trouble(reason)

    def _take(self, message: pb.EventMessage) -> None:
        self.changed.set()
        self._hear(event_of(message))

    def _hear(self, event: Event) -> None:
        if self._tell is not None and event.tenant == self._tenant:
            self._heard_of.set()
            for news in self._view.hear(event):
                self._tell(news)


def _watch_request(only: str) -> pb.WatchRequest:
    lowest = _TELLS_THAT_IT_HEARS if only else constants.PROTOCOL_MIN
    versions = pb.VersionRange(min=lowest, max=constants.PROTOCOL_MAX)
    return pb.WatchRequest(versions=versions, tenant=only)
