"""Results of the checks of `sps verify`."""

from __future__ import annotations

import dataclasses
import enum

from shared_pathways_service.errors import ProxyFailed, SharedPathwaysError

__all__ = ["Outcome", "Result", "SkippedError", "failure"]


class Outcome(enum.StrEnum):
    """The outcome of a check."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    """The check could not run; the verification as a whole has not passed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """The result of one check.

    Attributes:
      name: The check's name.
      found: The finding, or the failure.
      look_at: Where to look after a failure, or what to do about a skipped check.
      seconds: The duration of the check.
      log_tail: The last lines of the log of a proxy that ended.
    """

    name: str
    outcome: Outcome
    found: str
    look_at: str = ""
    seconds: float = 0.0
    log_tail: tuple[str, ...] = ()


class SkippedError(Exception):
    """A check cannot run.

    Attributes:
      advice: How to make it run.
    """

    def __init__(self, why: str, advice: str = "") -> None:
        super().__init__(why)
        self.advice = advice


def failure(name: str, error: SharedPathwaysError, look_at: str) -> Result:
    """Returns the result of a check that failed with an error."""
    log_tail = tuple(error.log_tail) if isinstance(error, ProxyFailed) else ()
    return Result(
        name=name, outcome=Outcome.FAILED, found=error.message, look_at=look_at, log_tail=log_tail
    )
