"""What becomes of a proxy's slices, as its log tells it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Final

from shared_pathways_service.core.kubernetes.log_lines import LogEvent, LogKind
from shared_pathways_service.events import Scalar

__all__ = ["TAKEN_AFTER_S", "PlacementFollower", "PlacementNews"]

#: Without placement for so long, slices count as taken, where no resource manager tells.
TAKEN_AFTER_S: Final = 10.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlacementNews:
    """News of a session, of the kinds and with the data that a home tells."""

    kind: str
    reason: str = ""
    data: Mapping[str, Scalar] = dataclasses.field(default_factory=dict)


class PlacementFollower:
    """Turns the lines of a proxy's log into news, each once.

    Time is any clock's that only goes on, in seconds.

    Args:
      virtual_slices: Instance types, one a virtual slice.
      num_elastic_slices: How many of them may be missing at the start.

    Attributes:
      serving: Whether the proxy said that it serves.
    """

    def __init__(
        self,
        virtual_slices: Sequence[str],
        *,
        num_elastic_slices: int = 0,
    ) -> None:
        self.serving = False
        self._kinds = tuple(virtual_slices)
        self._gang = max(1, len(self._kinds) - num_elastic_slices)
        self._indices: dict[str, int] = {}
        self._placed: dict[int, Mapping[str, Scalar]] = {}
        self._generation = 0
        self._running = False
        self._refused = False
        self._queued: PlacementNews | None = None
        self._waiting_since: float | None = None

    @property
    def placed(self) -> int:
        """Virtual slices that are placed."""
        return len(self._placed)

    @property
    def running(self) -> bool:
        """Whether enough slices were placed once."""
        return self._running

    def hear(self, event: LogEvent, now: float) -> list[PlacementNews]:
        """Takes a line, and returns what is new.

        Args:
          event: The line, read.
          now: When.
        """
        news: list[PlacementNews] = []
        match event.kind:
            case LogKind.SERVING if not self.serving:
                self.serving = True
                news = [PlacementNews(kind="proxy.serving")]
            case LogKind.SIGNALING | LogKind.PLACEMENT:
                self._wait(now)
            case LogKind.QUEUED:
                news = self._hear_queued(event)
            case LogKind.PLACED:
                news = self._hear_placed(event)
            case LogKind.UNPLACED:
                news = self._hear_unplaced(event, now)
            case LogKind.ALL_PLACED:
                news = self._begin_to_run(event.count, event.wanted)
            case LogKind.REFUSED:
                news = self._hear_refused(event)
        return news

    def tick(self, now: float) -> list[PlacementNews]:
        """Returns the news that time alone brings: slices that are not placed are taken."""
        due = self.taken_at
        if due is None or now < due:
            return []
        news = PlacementNews(
            kind="tenant.queued",
            reason=f"no placement for {TAKEN_AFTER_S:g} s: other tenants hold the slices",
        )
        self._queued = news
        return [news]

    @property
    def taken_at(self) -> float | None:
        """When `tick` has news; None: not by itself."""
        quiet = self._running or self._refused or self._queued is not None
        if quiet or self._waiting_since is None:
            return None
        return self._waiting_since + TAKEN_AFTER_S

    def _wait(self, now: float) -> None:
        if self._waiting_since is None:
            self._waiting_since = now

    def _hear_queued(self, event: LogEvent) -> list[PlacementNews]:
        news = PlacementNews(
            kind="tenant.queued",
            reason=event.reason,
            data={"position": event.count, "holders": "\n".join(event.holders)},
        )
        known, self._queued = self._queued, news
        return [news] if news != known else []

    def _hear_placed(self, event: LogEvent) -> list[PlacementNews]:
        index = self._index(event)
        if index is None:
            return []
        known = self._placed.get(index)
        if known is not None and event.generation in (None, known["generation"]):
            return []
        self._generation = max(self._generation + 1, event.generation or 0)
        data: dict[str, Scalar] = {
            "virtual_index": index,
            "slice_id": event.slice_id,
            "generation": event.generation or self._generation,
            "instance_type": self._kinds[index],
        }
        self._placed[index] = data
        news = [PlacementNews(kind="slice.placed", data=data)]
        if known is not None:
            # The line in between was lost with the stream that brought it.
            news.insert(0, self._unplaced(known, "it was placed elsewhere"))
        if self.placed >= self._gang:
            news += self._begin_to_run(self.placed, len(self._kinds))
        return news

    def _hear_unplaced(self, event: LogEvent, now: float) -> list[PlacementNews]:
        index = self._index(event)
        known = None if index is None else self._placed.pop(index, None)
        if known is None:
            return []
        if not self._running:
            self._wait(now)
        return [self._unplaced(known, event.reason or event.text)]

    def _unplaced(self, known: Mapping[str, Scalar], reason: str) -> PlacementNews:
        data = {key: known[key] for key in ("virtual_index", "slice_id", "generation")}
        return PlacementNews(kind="slice.unplaced", reason=reason, data=data)

    def _begin_to_run(self, placed: int, wanted: int) -> list[PlacementNews]:
        if self._running:
            return []
        self._running = True
        data = {"placed": placed, "wanted": wanted}
        return [PlacementNews(kind="tenant.running", data=data)]

    def _hear_refused(self, event: LogEvent) -> list[PlacementNews]:
        # Once programs run, it may be one of them that failed so.
        if self._running or self._refused:
            return []
        self._refused = True
        message = event.reason or event.text
        data = {"kind": "failed_precondition", "message": message}
        return [PlacementNews(kind="tenant.refused", reason=message, data=data)]

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
