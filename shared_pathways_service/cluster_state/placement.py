"""Derives events of a proxy's slices from its log and from the slices of other proxies."""

from __future__ import annotations

from collections.abc import Sequence

from shared_pathways_service.cluster_state.claims import Shortage
from shared_pathways_service.cluster_state.log_lines import LogEvent, LogKind
from shared_pathways_service.events import Event
from shared_pathways_service.events.session import ProxyServing
from shared_pathways_service.events.tenants import (
    SlicePlaced,
    SliceUnplaced,
    TenantDequeued,
    TenantQueued,
    TenantRefused,
    TenantRunning,
)

__all__ = ["PlacementFollower"]


class PlacementFollower:
    """Turns log lines of a proxy and shortages of slices into events, each once.

    Args:
      virtual_slices: Instance types, one per virtual slice.
      elastic_slices: The number of slices that may be missing at the start.
      queues: Whether the proxy waits for slices that others hold; otherwise the request is refused.

    Attributes:
      serving: Whether the proxy reported that it serves.
    """

    def __init__(
        self, virtual_slices: Sequence[str], *, elastic_slices: int = 0, queues: bool = False
    ) -> None:
        self.serving = False
        self._kinds = tuple(virtual_slices)
        self._gang = max(1, len(self._kinds) - elastic_slices)
        self._queues = queues
        self._indices: dict[str, int] = {}
        self._placed: dict[int, SlicePlaced] = {}
        self._generation = 0
        self._requested = False
        #: Whether enough slices have been placed once.
        self.running = False
        self._refused = False
        self._shortage: Shortage | None = None

    @property
    def placed(self) -> int:
        """The number of placed virtual slices."""
        return len(self._placed)

    @property
    def waiting(self) -> bool:
        """Whether the proxy has requested its slices, and neither has them nor was refused."""
        return self._requested and not self.running and not self._refused

    def take_line(self, event: LogEvent) -> list[Event]:
        """Processes a parsed line, and returns new events."""
        news: list[Event] = []
        match event.kind:
            case LogKind.SERVING if not self.serving:
                self.serving = True
                news = [ProxyServing()]
            case LogKind.SIGNALING | LogKind.PLACEMENT:
                self._requested = True
            case LogKind.PLACED:
                news = self._on_placed(event)
            case LogKind.UNPLACED:
                news = self._on_unplaced(event)
            case LogKind.ALL_PLACED:
                news = self._on_running(event.count, event.wanted)
            case LogKind.REFUSED:
                news = self._on_refused(event)
        return news

    def take_shortage(self, shortage: Shortage | None) -> list[Event]:
        """Processes a shortage of slices, and returns new events; None: others leave enough.

        If a proxy waits without a shortage, its placement is slow, and nothing more is known.
        """
        if shortage == self._shortage or not self.waiting:
            return []
        self._shortage = shortage
        if shortage is None:
            # (Without a queue the shortage was a refusal.)
            return [TenantDequeued(reason="other connections leave enough slices")]
        reason, wanted, free = shortage.reason, shortage.wanted, shortage.free
        holders = shortage.holders
        if self._queues:
            return [TenantQueued(reason=reason, wanted=wanted, free=free, holders=holders)]
        self._refused = True
        return [
            TenantRefused(
                reason=reason,
                refusal="slices_taken",
                message=reason,
                wanted=wanted,
                free=free,
                holders=holders,
            )
        ]

    def _on_placed(self, event: LogEvent) -> list[Event]:
        self._requested = True
        index = self._index(event)
        if index is None:
            return []
        known = self._placed.get(index)
        if known is not None and event.generation in (None, known.generation):
            return []
        self._generation = max(self._generation + 1, event.generation or 0)
        placed = self._placed[index] = SlicePlaced(
            virtual_index=index,
            slice_id=event.slice_id,
            generation=event.generation or self._generation,
            instance_type=self._kinds[index],
        )
        news: list[Event] = [placed]
        if known is not None:
            # The line in between was lost with the old stream.
            news.insert(0, self._unplaced(known, "it was placed elsewhere"))
        if self.placed >= self._gang:
            news += self._on_running(self.placed, len(self._kinds))
        return news

    def _on_unplaced(self, event: LogEvent) -> list[Event]:
        index = self._index(event)
        known = None if index is None else self._placed.pop(index, None)
        if known is None:
            return []
        return [self._unplaced(known, event.reason or event.text)]

    def _unplaced(self, known: SlicePlaced, reason: str) -> SliceUnplaced:
        return SliceUnplaced(
            reason=reason,
            virtual_index=known.virtual_index,
            slice_id=known.slice_id,
            generation=known.generation,
        )

    def _on_running(self, placed: int, wanted: int) -> list[Event]:
        if self.running:
            return []
        self.running = True
        return [TenantRunning(placed=placed, wanted=wanted)]

    def _on_refused(self, event: LogEvent) -> list[Event]:
        # Once programs run, one of them may have failed in this way.
        if self.running or self._refused:
            return []
        self._refused = True
        message = event.reason or event.text
        return [TenantRefused(reason=message, refusal="failed_precondition", message=message)]

    def _index(self, event: LogEvent) -> int | None:
        """Returns the virtual slice of a line; names get numbers in turn."""
        index = event.index
        if index is None:
            index = self._indices.get(event.slice_name, len(self._indices))
        if index >= len(self._kinds):
            return None
        if event.index is None:
            self._indices[event.slice_name] = index
        return index
