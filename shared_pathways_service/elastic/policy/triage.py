"""Whose an error is: a slice's, the proxy's, the user's, or not to be told from its text alone.

JAX raises one type for all that a runtime tells, `JaxRuntimeError`; the status stands at the head
of its text. DATA_LOSS says that a slice is gone. UNAVAILABLE and CANCELLED are what JAX's client
makes of a connection that broke (jaxlib 0.10.2). INTERNAL, DEADLINE_EXCEEDED and NOT_FOUND are said
of slices that are gone, and of many a bug: who retries those retries bugs, so slices are asked.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Collection
from typing import Final

__all__ = ["Action", "Decision", "Fault", "Verdict", "classify", "decide"]

#: How the statuses of gRPC are written.
_STATUS: Final = re.compile(
    r"\b(DATA_LOSS|UNAVAILABLE|CANCELLED|INTERNAL|DEADLINE_EXCEEDED|NOT_FOUND|INVALID_ARGUMENT"
    r"|FAILED_PRECONDITION|RESOURCE_EXHAUSTED|UNIMPLEMENTED|OUT_OF_RANGE|ABORTED|UNKNOWN"
    r"|ALREADY_EXISTS|PERMISSION_DENIED|UNAUTHENTICATED)\b"
)
#: How this project's proxy names the slice that was lost.
_SLICE: Final = re.compile(r"\bslice (\d+)\b")
#: What differs between two occurrences of one error.
_NUMBER: Final = re.compile(r"0x[0-9a-f]+|\d+")


class Verdict(enum.StrEnum):
    """Whose an error is."""

    SLICE = "slice"
    PROXY = "proxy"
    UNCLEAR = "unclear"
    USER = "user"


class Action(enum.Enum):
    """What is done about it."""

    #: Try again on the slices that are left, or come back.
    RETRY = enum.auto()
    #: The proxy is gone: connect anew, then try again.
    RECONNECT = enum.auto()
    #: It is the user's: raised as it is.
    RAISE = enum.auto()
    #: It came again with all slices well: raised with the first one as its cause.
    RAISE_BOTH = enum.auto()


_OF_STATUS: Final = {
    "DATA_LOSS": Verdict.SLICE,
    "UNAVAILABLE": Verdict.PROXY,
    "CANCELLED": Verdict.PROXY,
    "INTERNAL": Verdict.UNCLEAR,
    "DEADLINE_EXCEEDED": Verdict.UNCLEAR,
    "NOT_FOUND": Verdict.UNCLEAR,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fault:
    """An error as its text tells it.

    Attributes:
      verdict: Whose it is.
      text: Its first line.
      slices: Those that it names, where it was a slice's.
    """

    verdict: Verdict
    text: str
    slices: tuple[int, ...] = ()

    @property
    def signature(self) -> str:
        """The same for an error that came again: its text without numbers and addresses."""
        return _NUMBER.sub("#", self.text)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decision:
    """What is done about an error, and why."""

    action: Action
    verdict: Verdict
    reason: str


def classify(text: str) -> Fault:
    """Tells whose an error of JAX's runtime is, from the first status in its first line.

    Args:
      text: Of a `JaxRuntimeError`. Errors of other types are the user's.
    """
    line = text.strip().split("\n", 1)[0]
    found = _STATUS.search(line)
    verdict = _OF_STATUS.get(found[1], Verdict.USER) if found else Verdict.USER
    named = {int(index) for index in _SLICE.findall(line)} if verdict is Verdict.SLICE else set()
    return Fault(verdict=verdict, text=line, slices=tuple(sorted(named)))


def decide(
    fault: Fault, red: Collection[int], *, came_before: bool, dead: bool, can_reconnect: bool
) -> Decision:
    """Decides about an error that is not the user's beyond doubt, after the slices were asked.

    Args:
      fault: The error.
      red: Slices that did not answer as they should.
      came_before: Whether the same error was retried before.
      dead: Whether no slice answered, for want of a proxy.
      can_reconnect: Whether there is a way to a new proxy.
    """
    which = ", ".join(str(index) for index in sorted(red))
    rules: tuple[tuple[bool, Action, Verdict, str], ...] = (
        (fault.verdict is Verdict.USER, Action.RAISE, Verdict.USER, "not of a slice"),
        (dead and can_reconnect, Action.RECONNECT, Verdict.PROXY, "the proxy is gone"),
        (
            dead and fault.verdict is Verdict.PROXY,
            Action.RAISE,
            Verdict.PROXY,
            "the proxy is gone, and no way to a new one was given",
        ),
        (fault.verdict is Verdict.SLICE, Action.RETRY, Verdict.SLICE, "a slice was lost"),
        (bool(red), Action.RETRY, Verdict.SLICE, f"slice {which} does not answer"),
        (came_before, Action.RAISE_BOTH, Verdict.USER, "it came again, and all slices answer"),
        (True, Action.RAISE, Verdict.USER, "all slices answer"),
    )
    return next(
        Decision(action=action, verdict=verdict, reason=reason)
        for applies, action, verdict, reason in rules
        if applies
    )
