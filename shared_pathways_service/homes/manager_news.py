"""Receives a resource manager's events across its restarts, each once."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Callable

import grpc.aio

from shared_pathways_service import constants
from shared_pathways_service.errors import SharedPathwaysError
from shared_pathways_service.events import Event
from shared_pathways_service.events.tenants import (
    ExecutorStarted,
    SlicePlaced,
    SliceUnplaced,
    TenantEvent,
    TenantGone,
    TenantIdled,
    TenantPreempted,
    TenantQueued,
    TenantRefused,
    TenantRunning,
)
from shared_pathways_service.patience import timeouts
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.protocol import resource_manager_pb2_grpc as pb_grpc
from shared_pathways_service.protocol.auth import bearer
from shared_pathways_service.protocol.event_messages import event_of
from shared_pathways_service.rmclient.event_stream import EventStream
from shared_pathways_service.rmclient.failures import translate
from shared_pathways_service.rmclient.unary_calls import ManagerCalls

__all__ = ["ManagerNews", "TenantView"]


#: The protocol version from which on a watcher of one tenant is notified at once when its watch
#: begins.
_TELLS_THAT_IT_HEARS = 2

_log = logging.getLogger(__name__)


class TenantView:
    """The reported state of one tenant, by which events are passed on only once.

    Attributes:
      over: Whether the tenant was refused or has ended.
    """

    def __init__(self) -> None:
        self.over = False
        self._placed: dict[int | None, SlicePlaced] = {}
        self._running = False
        self._queued: TenantQueued | None = None

    def hear(self, event: Event) -> list[Event]:
        """Returns the new events in an event of the tenant, which may be part of a snapshot."""
        if isinstance(event, SlicePlaced):
            return self._on_placed(event)
        return [event] if self._is_new(event) else []

    def _is_new(self, event: Event) -> bool:
        is_new = isinstance(event, TenantEvent)
        match event:
            case TenantPreempted() | TenantIdled():
                self._running = False
            case ExecutorStarted():
                is_new = self._on_started(event)
            case SliceUnplaced():
                is_new = self._placed.pop(event.virtual_index, None) is not None
            case TenantRunning():
                was_running, self._running = self._running, True
                is_new = not was_running
            case TenantQueued():
                known, self._queued = self._queued, event
                is_new = event != known
            case TenantRefused():
                self.over = True
            case TenantGone():
                self.over, is_new = True, False
        return is_new

    def _on_placed(self, event: SlicePlaced) -> list[Event]:
        known = self._placed.get(event.virtual_index)
        self._placed[event.virtual_index] = event
        if known is None:
            return [event]
        if known.generation == event.generation:
            if event.starting is None or known.starting is False:
                # After its restart, the resource manager does not know at first that they serve.
                self._placed[event.virtual_index] = known
            # The start in between may not have been received.
            has_started = known.starting and event.starting is False
            return [_start_of(event)] if has_started else []
        # The loss between the two was not received.
        lost = SliceUnplaced(
            reason="it was lost while the resource manager was away",
            virtual_index=known.virtual_index,
            slice_id=known.slice_id,
            generation=known.generation,
            instance_type=known.instance_type,
        )
        return [lost, event]

    def _on_started(self, event: ExecutorStarted) -> bool:
        known = self._placed.get(event.virtual_index)
        if known is None or known.generation != event.generation:
            return True
        self._placed[event.virtual_index] = dataclasses.replace(known, starting=False)
        return known.starting is not False


class ManagerNews:
    """The events of a resource manager, from before the proxy is created.

    Args:
      resource_manager: The stub; the caller closes the channel, after this object.
      address: The address, for errors.
      token: The token for calls; None: none.
      only: The tenant whose events are requested, as those of a large service are many; empty: all.
        A resource manager with protocol version 1 is asked for all, until it ends.
      on_trouble: Called with the reason each time a watch breaks or cannot begin; must not block.

    Attributes:
      changed: Set at every received event; the waiter clears it.
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
        """The number of reconnections."""
        return self._stream.reconnects

    @property
    def tenant_is_over(self) -> bool:
        """Whether the tenant's last event has been received."""
        return self._view.over

    async def close(self) -> None:
        """Stops receiving events."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    def give_up(self, failure: SharedPathwaysError) -> None:
        """Stops receiving events, because the resource manager cannot be reached; waits fail."""
        self._task.cancel()
        self._failure = failure
        self._listening.set()

    def follow(self, tenant: str, tell: Callable[[Event], None]) -> None:
        """Passes on a tenant's events from now on.

        Args:
          tenant: Its name; it need not exist yet. With `only`, that name.
          tell: Called with each event.
        """
        self._tenant, self._tell, self._view = tenant, tell, TenantView()
        self._heard_of.clear()

    async def wait_until_listening(self) -> None:
        """Returns once no event can be missed; the caller sets a deadline.

        Raises:
          SharedPathwaysError: The resource manager refuses, permanently.
        """
        await self._listening.wait()
        if self._failure is not None:
            raise self._failure

    async def wait_until_known(self) -> None:
        """Returns once an event of the followed tenant was received; the caller sets a deadline.

        Does not return on disconnect: without events the caller may release the tenant.
        """
        await self._heard_of.wait()

    async def release(self, tenant: str, reason: str) -> bool:
        """Releases a tenant's slices at once.

        They are released later in any case: a tenant whose proxy has ended has some seconds to
        return.

        Returns:
          False if there is no such tenant, or the answer did not arrive in time.
        """
        try:
            return await self._calls.release(tenant, reason, timeouts.RELEASE.s)
        except grpc.aio.AioRpcError as error:
            _log.info("%s is not released: %s", tenant, error.details())
            return False

    async def _run(self) -> None:
        try:
            await self._listen()
        except SharedPathwaysError as error:
            self._failure = error
        except Exception as error:  # noqa: BLE001 - raised in every wait for events
            _log.exception("receiving the resource manager's events failed")
            what = f"{type(error).__name__}: {error}"
            self._failure = SharedPathwaysError(
                f"the resource manager's events cannot be received: {what}"
            )
        _log.warning("the resource manager's events are no longer received: %s", str(self._failure))
        self._listening.set()

    async def _listen(self) -> None:
        try:
            await self._stream.follow(self._take)
        except grpc.aio.AioRpcError as error:
            raise translate(error, self._address) from error

    def _on_lost(self, reason: str) -> None:
        _log.info("the resource manager's events are requested again: %s", reason)
        self._on_trouble(reason)

    def _take(self, message: pb.EventMessage) -> None:
        self.changed.set()
        self._on_event(event_of(message))

    def _on_event(self, event: Event) -> None:
        if self._tell is not None and event.tenant == self._tenant:
            self._heard_of.set()
            for news in self._view.hear(event):
                self._tell(news)


def _watch_request(only: str) -> pb.WatchRequest:
    lowest = _TELLS_THAT_IT_HEARS if only else constants.PROTOCOL_MIN
    versions = pb.VersionRange(min=lowest, max=constants.PROTOCOL_MAX)
    return pb.WatchRequest(versions=versions, tenant=only)


def _start_of(placed: SlicePlaced) -> ExecutorStarted:
    """Returns the event that the executors of a placement serve, which was not received."""
    return ExecutorStarted(
        tenant=placed.tenant,
        slice=placed.slice,
        virtual_index=placed.virtual_index,
        slice_id=placed.slice_id,
        generation=placed.generation,
        instance_type=placed.instance_type,
    )
