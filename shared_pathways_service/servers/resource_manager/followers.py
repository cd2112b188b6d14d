"""Sends events to watchers, and decisions to followers as they are written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from shared_pathways_service.events import Event
from shared_pathways_service.events.manager_events import ManagerRecovered
from shared_pathways_service.events.tenants import SlicePlaced
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.protocol.event_messages import event_message
from shared_pathways_service.scheduling.book.holdings import StatusReport
from shared_pathways_service.scheduling.history.expectation import HoldingTimes
from shared_pathways_service.servers.resource_manager.history_table import Filter, Numbered
from shared_pathways_service.servers.resource_manager.history_wire import decision_message
from shared_pathways_service.servers.resource_manager.outbox import Outbox
from shared_pathways_service.servers.resource_manager.status_report import snapshot_events

__all__ = ["Followers", "Watchers"]

#: Seconds after which deferred decisions are written.
_FLUSH_INTERVAL_S = 0.2


class Watchers:
    """All watchers of events: each gets a snapshot, and then the events of all tenants or of one.

    Args:
      report: Returns the state of one tenant; with an empty name, of all.
      limit: Events that may be queued for one watcher, not counting its snapshot.
    """

    def __init__(self, report: Callable[[str], StatusReport], limit: int) -> None:
        self._report = report
        self._limit = limit
        self._outboxes: dict[Outbox[pb.EventMessage], str] = {}
        self._has_recovered = False

    def __len__(self) -> int:
        return len(self._outboxes)

    def add(self, tenant: str) -> Outbox[pb.EventMessage]:
        """Adds a watcher of a tenant's events, or of all; returns its outbox with the snapshot."""
        events = [e for e in snapshot_events(self._report(tenant)) if tenant in {"", e.tenant}]
        outbox = Outbox(self._limit, map(_in_snapshot, events))
        self._outboxes[outbox] = tenant
        return outbox

    def remove(self, outbox: Outbox[pb.EventMessage]) -> None:
        """Removes a watcher."""
        self._outboxes.pop(outbox, None)

    def announce(self, event: Event) -> None:
        """Sends an event to its watchers."""
        self._has_recovered |= isinstance(event, ManagerRecovered)
        takers = [box for box, who in self._outboxes.items() if who in {"", event.tenant}]
        if takers:
            # Creating the message is the costliest step here, and usually there are no watchers.
            message = event_message(event)
            for outbox in takers:
                outbox.put(message)

    def catch_up(self) -> None:
        """Sends the placements of a tenant to its watchers again, after a recovery.

        Before, it was not known which of them start. The caller has announced all events.
        """
        if not self._has_recovered:
            return
        self._has_recovered = False
        for outbox, tenant in self._outboxes.items():
            for event in snapshot_events(self._report(tenant)) if tenant else ():
                if isinstance(event, SlicePlaced):
                    outbox.put(_in_snapshot(event))


class Followers:
    """All followers of the decisions; collects holding times from these.

    Args:
      limit: Decisions that may be queued for one follower.

    Attributes:
      times: How long slices were held.
    """

    def __init__(self, limit: int) -> None:
        self.times = HoldingTimes()
        self._limit = limit
        self._outboxes: dict[Outbox[pb.EventMessage], Filter] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._outboxes)

    def publish(self, written: Iterable[Numbered]) -> None:
        """Sends decisions that are on disk to the followers."""
        for number, decision in written:
            self.times.add(decision)
            takers = [box for box, wanted in self._outboxes.items() if wanted.takes(decision)]
            if takers:
                message = decision_message(number, decision)
                for outbox in takers:
                    outbox.put(message)

    def add(self, wanted: Filter) -> Outbox[pb.EventMessage]:
        """Adds a follower; returns the outbox of its messages from now on."""
        outbox = Outbox[pb.EventMessage](self._limit)
        self._outboxes[outbox] = wanted
        return outbox

    def remove(self, outbox: Outbox[pb.EventMessage]) -> None:
        """Removes a follower."""
        self._outboxes.pop(outbox, None)

    def flush_later(self, flush: Callable[[], None]) -> None:
        """Schedules one call of `flush`."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(
                _FLUSH_INTERVAL_S, self._flush, flush
            )

    def close(self) -> None:
        """Cancels a scheduled flush."""
        if self._timer is not None:
            self._timer.cancel()

    def _flush(self, flush: Callable[[], None]) -> None:
        self._timer = None
        flush()


def _in_snapshot(event: Event) -> pb.EventMessage:
    return event_message(event, snapshot=True)
