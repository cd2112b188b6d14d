"""Classifies errors by cause: a slice, the proxy, the user, or unclear from the text alone.

JAX raises one type for all errors of a runtime, `JaxRuntimeError`, with the status at the start of
its text. DATA_LOSS means that a slice is lost. UNAVAILABLE and CANCELLED mean that the connection
of JAX's client broke (jaxlib 0.10.2). INTERNAL, DEADLINE_EXCEEDED and NOT_FOUND are used for lost
slices and for many bugs. Retrying them always would retry bugs, so slices are probed.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Collection
from typing import Final

__all__ = ["Action", "Decision", "Fault", "Verdict", "classify", "decide"]

#: The form of gRPC's statuses.
_STATUS: Final = re.compile(
    r"\b(DATA_LOSS|UNAVAILABLE|CANCELLED|INTERNAL|DEADLINE_EXCEEDED|NOT_FOUND|INVALID_ARGUMENT"
    r"|FAILED_PRECONDITION|RESOURCE_EXHAUSTED|UNIMPLEMENTED|OUT_OF_RANGE|ABORTED|UNKNOWN"
    r"|ALREADY_EXISTS|PERMISSION_DENIED|UNAUTHENTICATED)\b"
)
#: The form in which this project's proxy names a lost slice.
_SLICE: Final = re.compile(r"\bslice (\d+)\b")
#: The parts that differ between two occurrences of one error.
_NUMBER: Final = re.compile(r"0x[0-9a-f]+|\d+")


class Verdict(enum.StrEnum):
    """The cause of an error."""

    SLICE = "slice"
    PROXY = "proxy"
    UNCLEAR = "unclear"
    USER = "user"


class Action(enum.Enum):
    """The reaction to an error."""

    #: Try again on the remaining or returned slices.
    RETRY = enum.auto()
    #: The proxy has ended: reconnect, then try again.
    RECONNECT = enum.auto()
    #: A user's error: raise it unchanged.
    RAISE = enum.auto()
    #: It occurred again while all slices are healthy: raise it with the first one as its cause.
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
    """An error: its cause, the first line of its text, and the slices that it names as cause."""

    verdict: Verdict
    text: str
    slices: tuple[int, ...] = ()

    @property
    def signature(self) -> str:
        """The same for repeated errors: the text without numbers and addresses."""
        return _NUMBER.sub("#", self.text)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decision:
    """The reaction to an error, with the reason."""

    action: Action
    verdict: Verdict
    reason: str


def classify(text: str) -> Fault:
    """Classifies the text of a `JaxRuntimeError` by the first status in its first line."""
    line = text.strip().split("\n", 1)[0]
    found = _STATUS.search(line)
    verdict = _OF_STATUS.get(found[1], Verdict.USER) if found else Verdict.USER
    named = {int(index) for index in _SLICE.findall(line)} if verdict is Verdict.SLICE else set()
    return Fault(verdict=verdict, text=line, slices=tuple(sorted(named)))


def decide(
    fault: Fault,
    red: Collection[int],
    *,
    came_before: bool = False,
    dead: bool = False,
    can_reconnect: bool = False,
) -> Decision:
    """Decides about an error that is not clearly the user's, after slices were probed.

    `red` slices did not answer correctly; `dead` means that none did, because the proxy has
    ended or hangs.
    """
    which = ", ".join(str(index) for index in sorted(red))
    rules: tuple[tuple[bool, Action, Verdict, str], ...] = (
        (fault.verdict is Verdict.USER, Action.RAISE, Verdict.USER, "not caused by a slice"),
        (dead and can_reconnect, Action.RECONNECT, Verdict.PROXY, "the proxy has ended, or hangs"),
        (
            dead and fault.verdict is Verdict.PROXY,
            Action.RAISE,
            Verdict.PROXY,
            "the proxy has ended, and reconnect is not set",
        ),
        (fault.verdict is Verdict.SLICE, Action.RETRY, Verdict.SLICE, "a slice was lost"),
        (bool(red), Action.RETRY, Verdict.SLICE, f"slice {which} does not answer"),
        (came_before, Action.RAISE_BOTH, Verdict.USER, "it occurred again, and all slices answer"),
        (True, Action.RAISE, Verdict.USER, "all slices answer"),
    )
    return next(
        Decision(action=action, verdict=verdict, reason=reason)
        for applies, action, verdict, reason in rules
        if applies
    )
