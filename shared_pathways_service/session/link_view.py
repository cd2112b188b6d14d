"""The state of a resumable link, as its events describe it: pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

from shared_pathways_service.events import Event, rfc3339
from shared_pathways_service.events import session as ev

__all__ = ["LinkView", "link_after"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinkView:
    """A link to a proxy that was lost at least once, with its last loss.

    Attributes:
      state: ``up``, or ``lost`` while work waits for it.
      lost_at: When it was lost the last time, in seconds since the epoch.
      resumed_at: When it was resumed after that; None: it is lost.
      attempts: Attempts to resume it since then.
      reason: Why it was lost.
      error: Why the last attempt failed; empty: none failed.
    """

    state: Literal["up", "lost"]
    lost_at: float
    resumed_at: float | None = None
    attempts: int = 0
    reason: str = ""
    error: str = ""

    @property
    def is_lost(self) -> bool:
        """Whether work waits for it."""
        return self.state == "lost"

    def text(self, now: float) -> str:
        """Returns its state for people.

        For example ``link lost 12 s ago, reconnecting (attempt 4): connection refused``.

        Args:
          now: Seconds since the epoch.
        """
        if self.resumed_at is not None:
            return f"link resumed after {max(self.resumed_at - self.lost_at, 0.0):.0f} s"
        return f"link lost {max(now - self.lost_at, 0.0):.0f} s ago, {self.reconnection}"

    @property
    def reconnection(self) -> str:
        """The attempt that follows a loss, and why the last one failed, for people."""
        why = self.error or self.reason
        return f"reconnecting (attempt {self.attempts + 1})" + (f": {why}" if why else "")

    def as_fields(self) -> dict[str, Any]:
        """Returns its fields for ``--json``, with times as RFC 3339."""
        resumed_at = None if self.resumed_at is None else rfc3339(self.resumed_at)
        return {
            **dataclasses.asdict(self),
            "lost_at": rfc3339(self.lost_at),
            "resumed_at": resumed_at,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LinkView:
        """Makes it from its fields; those of a newer version are dropped."""
        names = {field.name for field in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in data.items() if name in names})


def link_after(link: LinkView | None, event: Event) -> LinkView | None:
    """Returns the state after an event; the same one if the event does not concern it."""
    match event:
        case ev.LinkLost():
            return LinkView(state="lost", lost_at=_time_of(event), reason=event.reason or "")
        case ev.LinkDialFailed() if link is not None:
            return dataclasses.replace(link, attempts=event.attempt, error=event.reason or "")
        case ev.LinkResumed() if link is not None:
            return dataclasses.replace(
                link, state="up", resumed_at=_time_of(event), attempts=event.attempts, error=""
            )
        case _:
            return link


def _time_of(event: Event) -> float:
    return datetime.fromisoformat(event.time).timestamp()
