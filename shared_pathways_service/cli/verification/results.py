"""Results of the checks of `sps verify`."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable

from shared_pathways_service.errors import ProxyFailed, SharedPathwaysError

__all__ = ["Outcome", "Result", "SkippedError", "result_of"]


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


def result_of(name: str, look: Callable[[], str], look_at: str) -> Result:
    """Runs a check, and returns its result, without its duration.

    Args:
      name: The check's name.
      look: Runs it, and returns what it found.
      look_at: Where to look after a failure that has no hint.
    """
    try:
        return Result(name=name, outcome=Outcome.PASSED, found=look())
    except SkippedError as reason:
        return Result(name=name, outcome=Outcome.SKIPPED, found=str(reason), look_at=reason.advice)
    except SharedPathwaysError as error:
        return Result(
            name=name,
            outcome=Outcome.FAILED,
            found=error.message,
            look_at=error.hint or look_at,
            log_tail=tuple(error.log_tail) if isinstance(error, ProxyFailed) else (),
        )
