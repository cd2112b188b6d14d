"""Results of the checks of `sps verify`."""

from __future__ import annotations

import dataclasses
import enum

__all__ = ["Outcome", "Result", "SkippedError"]


class Outcome(enum.StrEnum):
    """How a check of a verification came out."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    """It could not be made; the verification as a whole has not passed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """The result of one check.

    Attributes:
      name: The check's name.
      found: What was found, or what went wrong.
      look_at: What to look at after a failure, or what to do about a check that was skipped.
      seconds: How long the check took.
    """

    name: str
    outcome: Outcome
    found: str
    look_at: str = ""
    seconds: float = 0.0


class SkippedError(Exception):
    """A check cannot be made.

    Attributes:
      advice: What to do to have it made.
    """

    def __init__(self, why: str, advice: str = "") -> None:
        super().__init__(why)
        self.advice = advice
