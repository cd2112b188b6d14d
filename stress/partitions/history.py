"""What happened in a run, by one clock: seconds since the epoch."""

from __future__ import annotations

import dataclasses
from typing import Literal

__all__ = [
    "Belief",
    "Cause",
    "Fault",
    "History",
    "Life",
    "Recorded",
    "Settled",
    "Times",
]

#: ``silent``: no packet passes; ``to``, ``from``: none passes in that direction, as seen from the
#: other host towards the first; ``reset``: connections are reset; the others are as they say.
Cause = Literal["silent", "to", "from", "reset", "loss10", "loss30", "delay", "slow"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Times:
    """Settings of the service, in seconds.

    Attributes:
      beat_s: Between heartbeats of a worker.
      hung_s: Without a heartbeat until a worker counts as hung.
      ttl_s: That slices outlive their proxy's stream.
      late_s: That an action may be late on a busy machine.
    """

    beat_s: float
    hung_s: float
    ttl_s: float
    late_s: float = 3.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fault:
    """A link that was impaired for some time.

    Attributes:
      cause: What was wrong.
      host: One end: ``rm`` or a proxy's host.
      other: The other end: a worker's or a proxy's host.
      began: When.
      ended: When it was healed.
    """

    cause: Cause
    host: str
    other: str
    began: float
    ended: float

    @property
    def lasted_s(self) -> float:
        """How long it lasted."""
        return self.ended - self.began


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recorded:
    """A decision in the history of the resource manager."""

    at: float
    kind: str
    tenant: str = ""
    slice_id: str = ""
    index: int = -1
    generation: int = 0
    reason: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Belief:
    """A line of a proxy's log: a virtual slice is placed, or (generation 0) is not."""

    at: float
    tenant: str
    index: int
    slice_id: str = ""
    generation: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Life:
    """The start or end of a process.

    Attributes:
      at: When.
      host: Where.
      name: Of the tenant, or of the worker's slice.
      what: ``started`` or ``ended``.
    """

    at: float
    host: str
    name: str
    what: Literal["started", "ended"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settled:
    """The end of one schedule.

    Attributes:
      began: When its first fault could begin.
      healed: When its last fault had ended.
      at: When everything agreed; if it did not, when that was given up.
      differences: What did not agree.
    """

    began: float
    healed: float
    at: float
    differences: tuple[str, ...] = ()


@dataclasses.dataclass(kw_only=True)
class History:
    """A run so far; each list is in the order of time, beliefs for each tenant.

    Attributes:
      stalls: When this machine did not run, and for how many seconds.
    """

    times: Times
    faults: list[Fault] = dataclasses.field(default_factory=list)
    decisions: list[Recorded] = dataclasses.field(default_factory=list)
    beliefs: list[Belief] = dataclasses.field(default_factory=list)
    lives: list[Life] = dataclasses.field(default_factory=list)
    settled: list[Settled] = dataclasses.field(default_factory=list)
    stalls: list[tuple[float, float]] = dataclasses.field(default_factory=list)
