"""The disruptions of the soak of elastic training, and how a run survived each."""

from __future__ import annotations

import dataclasses
from typing import Final

from harness.deadlines import deadline
from shared_pathways_service.events import Event

__all__ = ["NOTICED_S", "Disruption", "LateError", "SoakError", "Survival"]

#: Seconds that a disruption may take to be noticed.
NOTICED_S: Final = deadline(120.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Disruption:
    """One disruption.

    Attributes:
      kind: See `stress.elastic_soak`.
      slices: Which are harmed, in order.
      after_s: Seconds that training runs on all slices before.
      down_for: For how long each is held down, or hangs.
      delay_s: Seconds from the awaited event, or the previous fault, to this fault.
      moment: The event at which the second is harmed, where that is during a recovery.
    """

    kind: str
    slices: tuple[int, ...]
    after_s: float
    down_for: float
    delay_s: float
    moment: str


@dataclasses.dataclass(kw_only=True)
class Survival:
    """What came of a disruption.

    Attributes:
      at_step: The last step before.
      at_s: Seconds since the run's beginning.
      survived: Whether training went on, on all slices in the end.
      recovered_s: Until a step was completed after the error.
      whole_s: Until training was on all slices again.
      causes: Why each attempt began: ``slice_down``, ``scale_up``, ``proxy``.
      origins: What each went on with: ``snapshot``, ``checkpoint``, ``live``.
      counts: On how many slices each was.
      lost_steps: That were done again.
      reasons: The errors, and what each was judged to be.
      left_out: How often a slice was left out for flapping.
      saves_failed: Checkpoints and snapshots.
      native_threads: Threads of this process that are unknown to Python.
    """

    kind: str
    slices: list[int]
    at_step: int = 0
    at_s: float = 0.0
    survived: bool = False
    recovered_s: float | None = None
    whole_s: float | None = None
    causes: list[str] = dataclasses.field(default_factory=list)
    origins: list[str] = dataclasses.field(default_factory=list)
    counts: list[int] = dataclasses.field(default_factory=list)
    lost_steps: int = 0
    reasons: list[str] = dataclasses.field(default_factory=list)
    left_out: int = 0
    saves_failed: int = 0
    native_threads: int = 0

    def add(self, event: Event) -> None:
        """Records what an event shows of the recovery."""
        data = event.data
        match event.kind:
            case "elastic.retry":
                self.causes.append(str(data["cause"]))
            case "elastic.attempt.started":
                self.counts.append(int(data["slice_count"] or 0))
            case "elastic.restored":
                self.origins.append(str(data["origin"]))
                self.lost_steps += int(data["lost_steps"] or 0)
            case "elastic.error":
                self.reasons.append(f"{data['verdict']}: {event.reason}"[:200])
            case "slice.left_out":
                self.left_out += 1
            case "checkpoint.failed" | "snapshot.failed":
                self.saves_failed += 1


class SoakError(AssertionError):
    """A disruption was not survived."""


class LateError(SoakError):
    """Something did not come in time."""
