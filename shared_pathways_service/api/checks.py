"""Preflight checks, each with its outcome and its fix."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable

from shared_pathways_service.errors import AccessDenied, SharedPathwaysError

__all__ = ["Check", "Outcome", "judge"]


class Outcome(enum.StrEnum):
    """The outcome of a check."""

    OK = "ok"
    WARNING = "warning"
    """It may fail later."""
    FAILED = "failed"
    """It cannot work."""
    UNKNOWN = "unknown"
    """The check could not be made, which is no reason not to try."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check:
    """The result of one check: the finding in words, and what to do about it, if known."""

    name: str
    outcome: Outcome
    found: str
    fix: str = ""
    error: SharedPathwaysError | None = dataclasses.field(default=None, compare=False)

    @classmethod
    def failed(cls, name: str, error: SharedPathwaysError) -> Check:
        """Makes a failed check from its error."""
        fix = error.hint
        if isinstance(error, AccessDenied) and error.rule:
            fix = f"{fix}\n{error.rule}" if fix else error.rule
        return cls(name=name, outcome=Outcome.FAILED, found=error.message, fix=fix, error=error)

    @classmethod
    def unknown(cls, name: str, why: str) -> Check:
        """Makes a check with an unknown outcome."""
        return cls(name=name, outcome=Outcome.UNKNOWN, found=why)


def judge(name: str, look: Callable[[], str], *, warns: Callable[[], str] = str) -> Check:
    """Performs a check: `look` returns the finding, `warns` a warning or an empty text.

    Each may raise the error of a failed check.
    """
    try:
        warning, found = warns(), look()
    except SharedPathwaysError as error:
        return Check.failed(name, error)
    if warning:
        return Check(name=name, outcome=Outcome.WARNING, found=warning)
    return Check(name=name, outcome=Outcome.OK, found=found)
