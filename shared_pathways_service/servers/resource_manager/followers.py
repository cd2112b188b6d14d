"""Sends decisions to followers as they are written, and collects holding times from them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.scheduling.history.expectation import HoldingTimes
from shared_pathways_service.servers.resource_manager.history_table import Filter, Numbered
from shared_pathways_service.servers.resource_manager.history_wire import decision_message
from shared_pathways_service.servers.resource_manager.outbox import Outbox

__all__ = ["Followers"]

#: Seconds after which deferred decisions are written.
_FLUSH_S = 0.2


class Followers:
    """All followers of the decisions.

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
            self._timer = asyncio.get_running_loop().call_later(_FLUSH_S, self._flush, flush)

    def close(self) -> None:
        """Cancels a scheduled flush."""
        if self._timer is not None:
            self._timer.cancel()

    def _flush(self, flush: Callable[[], None]) -> None:
        self._timer = None
        flush()
