"""Decides what follows the end of a submitted job's attempt, without I/O."""

from __future__ import annotations

import dataclasses
import signal

from shared_pathways_service.api.job_requests import JobState

__all__ = ["AttemptEnd", "NextStep", "after_attempt", "after_restart", "pause_before"]

#: Exit codes of `sps run`: it failed itself; the program cannot be run, or does not exist.
_RUNNER_FAILED = 125
_CANNOT_RUN = (126, 127)
#: Seconds before the first retry, and before any.
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 300.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttemptEnd:
    """How an attempt of a job ended.

    Attributes:
      exit_code: Of its runner; negative: a signal killed the runner.
      has_started: Whether the runner started the program.
      is_cancelled: Whether its end was requested.
      is_refused: Whether its request was refused, so that trying again would not help.
      lost: Why its connection ended before the program; empty: it did not.
      last_error: The runner's last message, if it failed itself.
    """

    exit_code: int
    has_started: bool = False
    is_cancelled: bool = False
    is_refused: bool = False
    lost: str = ""
    last_error: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class NextStep:
    """The state of a job after an attempt; `exit_code` is None if the attempt has none."""

    state: JobState
    reason: str
    exit_code: int | None


def after_attempt(end: AttemptEnd, *, attempt: int, retries: int) -> NextStep:
    """Returns how a job goes on after its n-th attempt, counted from 1."""
    code = end.exit_code if end.exit_code >= 0 else 128 - end.exit_code
    if end.is_cancelled:
        return NextStep(state="cancelled", reason="", exit_code=code if end.has_started else None)
    if code == 0:
        return NextStep(state="succeeded", reason="", exit_code=0)
    reason = _reason(end)
    if end.is_refused or code in _CANNOT_RUN or attempt > retries:
        return NextStep(state="failed", reason=reason, exit_code=code)
    return NextStep(state="retrying", reason=reason, exit_code=code)


def after_restart(*, had_started: bool, attempt: int, retries: int) -> NextStep:
    """Returns how a job goes on that was active when its service, or the machine, ended."""
    reason = "its service ended while it was active"
    if not had_started:
        return NextStep(state="queued", reason=reason, exit_code=None)
    if attempt > retries:
        return NextStep(state="lost", reason=reason, exit_code=None)
    return NextStep(state="retrying", reason=reason, exit_code=None)


def pause_before(retry: int) -> float:
    """Returns the seconds before the n-th retry, counted from 1."""
    return float(min(_FIRST_PAUSE_S * 2.0 ** min(retry - 1, 30), _LONGEST_PAUSE_S))


def _reason(end: AttemptEnd) -> str:
    if end.exit_code < 0:
        how = f"its runner was killed by {_signal_name(-end.exit_code)}"
    elif end.exit_code == _RUNNER_FAILED and end.last_error:
        how = end.last_error
    elif end.exit_code > 128 and end.has_started:
        how = f"killed by {_signal_name(end.exit_code - 128)}"
    else:
        how = f"exit code {end.exit_code}"
    return f"its connection was lost ({end.lost}); {how}" if end.lost else how


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
