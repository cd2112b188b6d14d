"""Events as a run tells them, with clocks that a test sets."""

from __future__ import annotations

import dataclasses
from typing import Any

from shared_pathways_service.events import Event, rfc3339

EPOCH = 1_760_000_000.0
_FIELDS = {"slice", "step", "duration_s", "reason"}


@dataclasses.dataclass
class Process:
    """Tells events of one process.

    Attributes:
      wall: When its clock began, in seconds since the run's first process began.
      monotonic: What its monotonic clock showed then.
    """

    wall: float = 0.0
    monotonic: float = 1000.0
    events: list[Event] = dataclasses.field(default_factory=list)

    def tell(self, at: float, kind: str, **fields: Any) -> Event:
        """Tells an event, `at` seconds after the process' clock began."""
        known = {name: value for name, value in fields.items() if name in _FIELDS}
        event = Event.of(
            kind,
            source="elastic",
            time=rfc3339(EPOCH + self.wall + at),
            monotonic=self.monotonic + at,
            data={name: value for name, value in fields.items() if name not in _FIELDS},
            **known,
        )
        self.events.append(event)
        return event

    def start(self, at: float, slices: str = "0,1,2") -> None:
        """Tells that a run started, and its first attempt with it."""
        self.tell(at, "elastic.run.started", enabled=True)
        self.attempt(at, slices)

    def attempt(self, at: float, slices: str, **fields: Any) -> None:
        count = len(slices.split(","))
        self.tell(at, "elastic.attempt.started", slices=slices, slice_count=count, **fields)

    def steps(self, at: float, first: int, last: int, seconds: float = 1.0) -> float:
        """Tells steps one after the other from `at` on; returns when the last was done."""
        for step in range(first, last + 1):
            at += seconds
            self.tell(at, "elastic.step", step=step, duration_s=seconds)
        return at
