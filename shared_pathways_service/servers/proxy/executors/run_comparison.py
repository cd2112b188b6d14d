"""Compares the times of programs on executors, and decides which executors are slow. Pure.

An executor is compared with its peers: the other executors of this proxy, of slices of the same
type, that run the same program on the same number of devices. So all of them get inputs of one
size. Of a run on several hosts, the times of that run are compared. A run on one host is compared
with the recent runs of the others.

What cannot be told apart: hosts that wait for each other in a collective all take as long as the
slowest one. The comparison of such a program finds no slow host, and ends no verdict of another
program.
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from shared_pathways_service.constants import SLOW_EXECUTOR_RATIO, SLOW_EXECUTOR_RUNS

__all__ = [
    "Change",
    "ExecutorFacts",
    "ExecutorId",
    "Program",
    "ProgramTimes",
    "RunComparison",
    "SlowLimits",
]

#: The programs that are remembered, the most recently run ones.
_PROGRAMS = 32
#: The fewest and the most recent runs of a program that are remembered for each executor.
_FEWEST_RECENT, _MOST_RECENT = 16, 64
#: The fewest runs of a program on an executor with which a single run is compared.
_ENOUGH = 5
#: Seconds by which a slow run is longer than its peers: starts and threads cost some of these.
_LEAST_EXCESS_S = 0.001
#: A verdict ends after this multiple of the runs of a verdict without its program.
_RUNS_WITHOUT = 20
#: Seconds from the beginning of a verdict to that of the next one of the same executor: proxies
#: report no event more often (ADR 100).
_PAUSE_S = 60.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class SlowLimits:
    """When an executor counts as slow.

    Attributes:
      ratio: A run is slow if it takes longer than this multiple of its peers' time, above 1.
      runs: The slow runs of a program in a row that make a verdict, and the others that end it.
    """

    ratio: float = SLOW_EXECUTOR_RATIO
    runs: int = SLOW_EXECUTOR_RUNS

    @property
    def end_ratio(self) -> float:
        """The lower multiple, below which a run counts towards the end of a verdict."""
        return 1 + (self.ratio - 1) / 2


class ExecutorId(NamedTuple):
    """An executor: its host, and the placement that it computes for."""

    slice_id: str
    virtual_index: int
    generation: int
    host_index: int


class Program(NamedTuple):
    """A program as it runs on executors that can be compared.

    Attributes:
      name: Its name, for people.
      digest: A digest of its text, which fixes the shapes of its inputs.
      instance_type: The type of the executors' slices.
      devices: The number of devices that it uses on each of them.
    """

    name: str
    digest: bytes
    instance_type: str
    devices: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Change:
    """A verdict that begins or ends.

    Attributes:
      executor: The executor.
      is_slow: Whether it is slow now.
      reason: Why, without the executor.
      program: The name of the program that shows it; empty: none does.
      ratio: How many times as long the program takes as on its peers; None: not known.
    """

    executor: ExecutorId
    is_slow: bool
    reason: str
    program: str = ""
    ratio: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProgramTimes:
    """The times of one program on one executor.

    Attributes:
      name: The program's name.
      calls: Its runs, without first ones.
      median_s: The median of the recent runs.
      p90_s: Their 90th percentile.
      ratio: The median, divided by that of the peers' medians; None: it has no peers yet.
      is_slow: Whether this program makes the executor slow.
    """

    name: str
    calls: int
    median_s: float
    p90_s: float
    ratio: float | None
    is_slow: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExecutorFacts:
    """What is known of one executor.

    Attributes:
      executor: The executor.
      is_slow: Whether it is slow.
      ratio: The largest of the programs that make it slow; if it is not slow, that of the program
        that took the most time. None: no program has peers.
      programs: The programs that took the most time, the longest first.
    """

    executor: ExecutorId
    is_slow: bool
    ratio: float | None
    programs: Sequence[ProgramTimes]


class RunComparison:
    """Compares runs, and remembers a bounded number of programs and runs. Not thread-safe.

    Args:
      limits: When an executor counts as slow.
      most_programs: The programs that are remembered.
    """

    def __init__(self, limits: SlowLimits, most_programs: int = _PROGRAMS) -> None:
        self._limits = limits
        self._most_programs = most_programs
        self._recent = min(max(limits.runs, _FEWEST_RECENT), _MOST_RECENT)
        #: In the order of their last runs.
        self._programs: dict[Program, dict[ExecutorId, _Runs]] = {}
        self._executors: dict[ExecutorId, _Executor] = {}

    def ran(self, program: Program, times: Mapping[ExecutorId, float], now: float) -> list[Change]:
        """Enters one run of a program.

        Args:
          program: The program.
          times: The seconds that it took on each executor that took part.
          now: Monotonic seconds.

        Returns:
          The verdicts that it changes.
        """
        found = self._programs.pop(program, None)
        runs = self._programs[program] = {} if found is None else found
        for executor, seconds in times.items():
            if executor not in runs:
                runs[executor] = _Runs(self._recent)
            runs[executor].add(seconds)
        together = sorted(times.values()) if len(times) > 1 else []
        changes = []
        for executor, seconds in times.items():
            own, state = runs[executor], self._executors.setdefault(executor, _Executor())
            # (Most programs are too short to be slow: their peers need not be looked at.)
            if seconds < _LEAST_EXCESS_S and not own.is_slow:
                own.above = 0
            elif together:
                self._judge(own, seconds, _median_of_others(together, seconds))
            elif others := [one.median for one in _known(runs) if one is not own]:
                self._judge(own, seconds, _median(others))
            changes += self._count(executor, state, program, own, now)
        if len(self._programs) > self._most_programs:
            changes += self._forget_oldest_program()
        return changes

    def forget(self, executors: Collection[ExecutorId]) -> list[Change]:
        """Forgets executors that have ended; returns the verdicts that end by it."""
        changes = []
        for executor in executors:
            state = self._executors.pop(executor, None)
            if state is not None and state.is_slow:
                changes.append(Change(executor=executor, is_slow=False, reason="it has ended"))
        for program, runs in list(self._programs.items()):
            for executor in executors:
                runs.pop(executor, None)
            if len(runs) == 1:
                [(left, own)] = runs.items()
                own.above, own.is_slow = 0, False
                changes += self._clear(left, program, "it has no peers any more")
            elif not runs:
                del self._programs[program]
        return changes

    def facts(self, most_programs: int) -> list[ExecutorFacts]:
        """Returns what is known of each executor, with at most so many programs of each."""
        programs: dict[ExecutorId, list[ProgramTimes]] = {one: [] for one in self._executors}
        for program, runs in self._programs.items():
            medians = sorted(one.median for one in _known(runs))
            for executor, own in runs.items():
                programs[executor].append(_times_of(program.name, own, medians))
        return [
            _facts_of(executor, programs[executor], most_programs, is_slow=state.is_slow)
            for executor, state in sorted(self._executors.items())
        ]

    def _judge(self, own: _Runs, seconds: float, peers_s: float) -> None:
        """Counts a run of a program for or against a verdict."""
        limits, excess = self._limits, seconds - peers_s
        is_beyond = excess >= _LEAST_EXCESS_S and seconds > limits.ratio * peers_s
        is_within = excess < _LEAST_EXCESS_S or seconds < limits.end_ratio * peers_s
        own.above = own.above + 1 if is_beyond else 0
        own.below = own.below + 1 if is_within else 0
        own.peers_s = peers_s
        if own.is_slow:
            own.is_slow = own.below < limits.runs
        else:
            own.is_slow = own.above >= limits.runs

    def _count(
        self, executor: ExecutorId, state: _Executor, program: Program, own: _Runs, now: float
    ) -> list[Change]:
        """Counts a run of an executor, and begins or ends the verdict on it."""
        state.runs += 1
        if own.is_slow:
            state.slow_in[program] = state.runs
            if state.is_slow or now < state.quiet_until:
                return []
            state.is_slow, state.quiet_until = True, now + _PAUSE_S
            return [_beginning(executor, program, own, self._limits.runs)]
        if not state.slow_in:
            return []
        changes = self._clear(
            executor, program, f"{program.name} takes about as long as on its peers again"
        )
        patience = _RUNS_WITHOUT * self._limits.runs
        for other, last in list(state.slow_in.items()):
            if state.runs - last > patience:
                self._programs[other][executor].above = 0
                self._programs[other][executor].is_slow = False
                reason = f"{other.name} was in none of its last {patience} runs"
                changes += self._clear(executor, other, reason)
        return changes

    def _clear(self, executor: ExecutorId, program: Program, reason: str) -> list[Change]:
        """Ends the verdict on an executor if only this program has shown it."""
        state = self._executors[executor]
        state.slow_in.pop(program, None)
        if not state.is_slow or state.slow_in:
            return []
        state.is_slow = False
        return [Change(executor=executor, is_slow=False, reason=reason, program=program.name)]

    def _forget_oldest_program(self) -> list[Change]:
        program = next(iter(self._programs))
        reason = f"{self._most_programs} other programs have run since {program.name}"
        executors = self._programs.pop(program)
        return [change for one in executors for change in self._clear(one, program, reason)]


class _Runs:
    """The runs of one program on one executor.

    Attributes:
      calls: All of them.
      recent: The seconds of the latest.
      above: The slow ones in a row, to the latest.
      below: Those in a row, to the latest, that are not longer than their peers'.
      peers_s: The time of the peers of the latest that was compared.
      is_slow: Whether they make the executor slow.
    """

    __slots__ = ("_median", "above", "below", "calls", "is_slow", "peers_s", "recent")

    def __init__(self, most: int) -> None:
        self.calls = 0
        self.recent: collections.deque[float] = collections.deque(maxlen=most)
        self.above = self.below = 0
        self.peers_s = 0.0
        self.is_slow = False
        self._median: float | None = None

    def add(self, seconds: float) -> None:
        """Enters a run."""
        self.calls += 1
        self.recent.append(seconds)
        self._median = None

    @property
    def median(self) -> float:
        """The median of the latest."""
        if self._median is None:
            self._median = _median(self.recent)
        return self._median


class _Executor:
    """What is counted of one executor.

    Attributes:
      runs: Its runs of all programs.
      slow_in: The programs that make it slow, each with the number of its latest run.
      is_slow: Whether the verdict on it is that it is slow.
      quiet_until: When the next verdict may begin, in monotonic seconds.
    """

    __slots__ = ("is_slow", "quiet_until", "runs", "slow_in")

    def __init__(self) -> None:
        self.runs = 0
        self.slow_in: dict[Program, int] = {}
        self.is_slow = False
        self.quiet_until = -math.inf


def _known(runs: Mapping[ExecutorId, _Runs]) -> list[_Runs]:
    """Returns the runs of executors that have enough of them to be compared with."""
    return [one for one in runs.values() if one.calls >= _ENOUGH]


def _median(times: Collection[float]) -> float:
    """Returns the lower median: of two, one slow peer must not hide another one."""
    return sorted(times)[(len(times) - 1) // 2]


def _median_of_others(ordered: Sequence[float], own: float) -> float:
    """Returns the lower median of ascending times without one of them."""
    index = (len(ordered) - 2) // 2
    return ordered[index + (bisect.bisect_left(ordered, own) <= index)]


def _beginning(executor: ExecutorId, program: Program, own: _Runs, runs: int) -> Change:
    """Returns the beginning of a verdict, with the times of the runs that made it."""
    median_s = _median(list(own.recent)[-runs:])
    ratio = median_s / own.peers_s if own.peers_s else None
    times = "" if ratio is None else f"{ratio:.3g} times "
    return Change(
        executor=executor,
        is_slow=True,
        reason=f"{program.name} takes {times}as long as on its peers: {median_s * 1000:.3g} ms "
        f"instead of {own.peers_s * 1000:.3g} ms",
        program=program.name,
        ratio=ratio,
    )


def _times_of(name: str, own: _Runs, medians: Sequence[float]) -> ProgramTimes:
    """Returns the times of a program; `medians` are those of all executors, ascending."""
    peers_s = 0.0
    if own.calls >= _ENOUGH and len(medians) > 1:
        peers_s = _median_of_others(medians, own.median)
    ordered = sorted(own.recent)
    return ProgramTimes(
        name=name,
        calls=own.calls,
        median_s=own.median,
        p90_s=ordered[(9 * (len(ordered) - 1) + 5) // 10],
        ratio=own.median / peers_s if peers_s else None,
        is_slow=own.is_slow,
    )


def _facts_of(
    executor: ExecutorId, programs: Sequence[ProgramTimes], most: int, *, is_slow: bool
) -> ExecutorFacts:
    ordered = sorted(programs, key=lambda one: -one.calls * one.median_s)
    ratios = [one.ratio for one in ordered if one.ratio is not None]
    slow = [one.ratio for one in ordered if one.ratio is not None and one.is_slow]
    # (One that makes it slow is shown in any case.)
    ordered.sort(key=lambda one: not one.is_slow)
    return ExecutorFacts(
        executor=executor,
        is_slow=is_slow,
        ratio=max(slow) if is_slow and slow else next(iter(ratios), None),
        programs=ordered[:most],
    )
