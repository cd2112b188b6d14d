"""What was looked at before anything is begun: each check with its outcome and its fix."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable

from shared_pathways_service.errors import AccessDenied, SharedPathwaysError

__all__ = ["Check", "Outcome", "judge"]


class Outcome(enum.StrEnum):
    """How a check came out."""

    OK = "ok"
    WARNING = "warning"
    """It may go wrong later."""
    FAILED = "failed"
    """It cannot work like this."""
    UNKNOWN = "unknown"
    """It cannot be told, and is no reason not to try."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that was looked at.

    Attributes:
      name: What was looked at, e.g. ``permissions``.
      found: What was found, in words.
      fix: What would mend it; empty where nothing is amiss, or nothing sensible can be said.
      error: What a program is told where it failed; else None.
    """

    name: str
    outcome: Outcome
    found: str
    fix: str = ""
    error: SharedPathwaysError | None = dataclasses.field(default=None, compare=False)

    @classmethod
    def failed(cls, name: str, error: SharedPathwaysError) -> Check:
        """Makes the check of the error that it came to."""
        fix = error.hint
        if isinstance(error, AccessDenied) and error.rule:
            fix = f"{fix}\n{error.rule}" if fix else error.rule
        return cls(name=name, outcome=Outcome.FAILED, found=error.message, fix=fix, error=error)

    @classmethod
    def unknown(cls, name: str, why: str) -> Check:
        """Makes a check that could not be made."""
        return cls(name=name, outcome=Outcome.UNKNOWN, found=why)


def judge(name: str, look: Callable[[], str], *, warns: Callable[[], str] = str) -> Check:
    """Makes a check.

    Args:
      name: Its name.
      look: Returns what was found, or raises the error that it comes to.
      warns: Returns a warning, or nothing, and may raise as well.
    """
    try:
        warning, found = warns(), look()
    except SharedPathwaysError as error:
        return Check.failed(name, error)
    if warning:
        return Check(name=name, outcome=Outcome.WARNING, found=warning)
    return Check(name=name, outcome=Outcome.OK, found=found)
