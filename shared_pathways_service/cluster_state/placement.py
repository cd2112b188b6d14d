"""What becomes of a proxy's slices, by its log and by what other proxies hold."""

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
    """Turns the lines of a proxy's log, and shortages of slices, into news, each once.

    Args:
      virtual_slices: Instance types, one a virtual slice.
      elastic_slices: How many of them may be missing at the start.
      queues: Whether slices that others hold are waited for; else the request is refused.

    Attributes:
      serving: Whether the proxy said that it serves.
    """

    def __init__(
        self,
        virtual_slices: Sequence[str],
        *,
        elastic_slices: int = 0,
        queues: bool = False,
    ) -> None:
        self.serving = False
        self._kinds = tuple(virtual_slices)
        self._gang = max(1, len(self._kinds) - elastic_slices)
        self._queues = queues
        self._indices: dict[str, int] = {}
        self._placed: dict[int, SlicePlaced] = {}
        self._generation = 0
        self._asked = False
        self._running = False
        self._refused = False
        self._shortage: Shortage | None = None

    @property
    def placed(self) -> int:
        """Virtual slices that are placed."""
        return len(self._placed)

    @property
    def running(self) -> bool:
        """Whether enough slices were placed once."""
        return self._running

    @property
    def waiting(self) -> bool:
        """Whether the proxy has asked for its slices, and neither has them nor was refused."""
        return self._asked and not self._running and not self._refused

    def hear(self, event: LogEvent) -> list[Event]:
        """Takes a line, and returns what is new.

        Args:
          event: The line, read.
        """
        news: list[Event] = []
        match event.kind:
            case LogKind.SERVING if not self.serving:
                self.serving = True
                news = [ProxyServing()]
            case LogKind.SIGNALING | LogKind.PLACEMENT:
                self._asked = True
            case LogKind.PLACED:
                news = self._hear_placed(event)
            case LogKind.UNPLACED:
                news = self._hear_unplaced(event)
            case LogKind.ALL_PLACED:
                news = self._begin_to_run(event.count, event.wanted)
            case LogKind.REFUSED:
                news = self._hear_refused(event)
        return news

    def take_shortage(self, shortage: Shortage | None) -> list[Event]:
        """Takes what other proxies leave too few of, and returns what is new.

        A proxy that waits without a shortage is placed slowly, and nothing more is known.

        Args:
          shortage: As of now; None: they leave enough.
        """
        if shortage == self._shortage or not self.waiting:
            return []
        self._shortage = shortage
        if shortage is None:
            # (Without a queue the shortage was a refusal.)
            reason = "other connections leave enough slices"
            return [TenantDequeued(reason=reason)]
        if self._queues:
            return [
                TenantQueued(
                    reason=shortage.reason,
                    wanted=shortage.wanted,
                    free=shortage.free,
                    holders=shortage.holders,
                )
            ]
        self._refused = True
        return [
            TenantRefused(
                reason=shortage.reason,
                refusal="slices_taken",
                message=shortage.reason,
                wanted=shortage.wanted,
                free=shortage.free,
                holders=shortage.holders,
            )
        ]

    def _hear_placed(self, event: LogEvent) -> list[Event]:
        self._asked = True
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
            # The line in between was lost with the stream that brought it.
            news.insert(0, self._unplaced(known, "it was placed elsewhere"))
        if self.placed >= self._gang:
            news += self._begin_to_run(self.placed, len(self._kinds))
        return news

    def _hear_unplaced(self, event: LogEvent) -> list[Event]:
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

    def _begin_to_run(self, placed: int, wanted: int) -> list[Event]:
        if self._running:
            return []
        self._running = True
        return [TenantRunning(placed=placed, wanted=wanted)]

    def _hear_refused(self, event: LogEvent) -> list[Event]:
        # Once programs run, it may be one of them that failed so.
        if self._running or self._refused:
            return []
        self._refused = True
        message = event.reason or event.text
        return [TenantRefused(reason=message, refusal="failed_precondition", message=message)]

    def _index(self, event: LogEvent) -> int | None:
        """Returns which virtual slice a line is of; of a name, numbers are given in turn."""
        index = event.index
        if index is None:
            index = self._indices.get(event.slice_name, len(self._indices))
        if index >= len(self._kinds):
            return None
        if event.index is None:
            self._indices[event.slice_name] = index
        return index
