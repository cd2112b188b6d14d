"""The known state of one session, from the answers of its steps and its events."""

from __future__ import annotations

import dataclasses
from typing import Any

from shared_pathways_service.api.requests import SessionRequest
from shared_pathways_service.events import Event, tenants
from shared_pathways_service.events import session as ev
from shared_pathways_service.session.link_view import link_after
from shared_pathways_service.session.messages import Phase, SliceView, Snapshot

__all__ = ["SessionView"]


class SessionView:
    """The known state of one session.

    Attributes:
      known: The state without the slices and the error.
      is_serving: Whether the proxy's server runs.
      is_queued: Whether the tenant waits in the queue for its first slices.
    """

    def __init__(self, request: SessionRequest) -> None:
        self.known = Snapshot(name=request.name, phase=Phase.NEW)
        self.is_serving = False
        self.is_queued = False
        self._gang = request.tenant.gang
        self._slices = {
            index: SliceView(index=index, instance_type=str(kind), state="unplaced")
            for index, kind in enumerate(request.tenant.virtual_slices)
        }

    def set(self, **changes: Any) -> None:
        """Changes fields of `known`."""
        self.known = dataclasses.replace(self.known, **changes)

    @property
    def slices(self) -> tuple[SliceView, ...]:
        """The virtual slices, by index."""
        return tuple(self._slices[index] for index in sorted(self._slices))

    def assume_slice(self, instance_type: str) -> None:
        """Records the type of the one slice that a request without slices gets."""
        if not self._slices:
            self._slices[0] = SliceView(index=0, instance_type=instance_type, state="unplaced")

    def end(self, left: str) -> None:
        """Records that the session has no slices any more, and that `left` could not be deleted."""
        self.set(left=left, preempted=False, position=None, holders=(), link=None)
        self._slices = {
            index: dataclasses.replace(view, state="unplaced", slice_id="", starting=False)
            for index, view in self._slices.items()
        }

    def take(self, event: Event) -> None:
        """Processes an event of the proxy, its link, the tenant or a slice."""
        match event:
            case ev.LinkLost() | ev.LinkDialFailed() | ev.LinkResumed():
                self.set(link=link_after(self.known.link, event))
            case ev.ProxyServing():
                self.is_serving = True
                self.set(pod=event.pod or self.known.pod)
            case tenants.TenantQueued():
                self.set(position=event.position, holders=event.holders)
                # (A preempted tenant is queued too, but its wait has no timeout.)
                self.is_queued |= not self.known.placed
            case tenants.TenantRunning():
                self._gang_placed()
            case tenants.TenantDequeued():
                self._leave_queue()
            case tenants.TenantPreempted():
                self.set(preempted=True)
            case tenants.SlicePlaced():
                self._take_slice(event, "placed", starting=bool(event.starting))
            case tenants.ExecutorStarted():
                self._executors_started(event)
            case tenants.SliceUnplaced():
                self._take_slice(event, "unplaced")

    def _take_slice(
        self, event: tenants.VirtualSliceEvent, state: str, *, starting: bool = False
    ) -> None:
        index = event.virtual_index
        if index is None:
            return
        known = self._slices.get(index)
        self._slices[index] = SliceView(
            index=index,
            instance_type=event.instance_type or (known.instance_type if known else ""),
            state=state,
            slice_id=event.slice_id,
            generation=event.generation or 0,
            starting=starting,
        )
        if sum(view.state == "placed" for view in self._slices.values()) >= self._gang:
            self._gang_placed()

    def _executors_started(self, event: tenants.ExecutorStarted) -> None:
        for index, view in self._slices.items():
            if (index, view.generation) == (event.virtual_index, event.generation):
                self._slices[index] = dataclasses.replace(view, starting=False)

    def _gang_placed(self) -> None:
        self.set(placed=True, preempted=False)
        self._leave_queue()

    def _leave_queue(self) -> None:
        self.set(position=None, holders=())
        self.is_queued = False
