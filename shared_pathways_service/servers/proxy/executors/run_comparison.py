"""Compares the times of programs on executors, and decides which executors are slow. Pure.

The peers of an executor are the other executors of this proxy, of slices of the same type, that run
the same program on the same number of devices, and so with inputs of one size. A run is compared
with the times of the same run on its other executors, and with the recent medians of all executors
that were not part of it.

The times do not show why a host is slow. In a collective each host waits for the slowest one: if
all hosts take part, they are equal, and the comparison of such a program ends no verdict of another
program; if the collectives stay inside a slice, all hosts of a slice with a slow host are slow. A
program whose work depends on values is compared as if the values were equal on all hosts: lengths
of loops, branches that depend on the host, uneven loads of experts, calls into the host.
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from shared_pathways_service.api.shown_numbers import shown_digits, shown_seconds
from shared_pathways_service.constants import (
    SLOW_EXECUTOR_RATIO,
    SLOW_EXECUTOR_RATIOS,
    SLOW_EXECUTOR_RUN_COUNTS,
    SLOW_EXECUTOR_RUNS,
)

__all__ = [
    "Change",
    "ExecutorFacts",
    "ExecutorId",
    "Program",
    "ProgramTimes",
    "RunComparison",
    "SlowLimits",
]

#: The fewest seconds by which a slow run is longer than its peers, since starts and threads cost
#: some; shorter runs are not compared.
_LEAST_S = 0.001
#: The maximum number of programs in memory: those that took the most time recently.
_PROGRAMS = 32
#: The bounds of the number of recent runs of a program in memory, for each executor.
_FEWEST_RECENT, _MOST_RECENT = 16, 64
#: The fewest runs of a program on an executor with which another executor's run is compared.
_ENOUGH = 5
#: Seconds after which the runs of a program no longer count, if it has not run again.
_AGE_S = 300.0
#: Seconds in which the weight of a run's time halves, for the choice of programs.
_HALF_LIFE_S = 30.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class SlowLimits:
    """When an executor counts as slow.

    Attributes:
      ratio: A run is slow if it takes longer than this multiple of its peers' time; from 1.1 to
        1000.
      runs: The number of consecutive slow runs of a program that begin a verdict, and of other runs
        that end it; from 2 to 10000.

    Raises:
      ValueError: A number is out of its range.
    """

    ratio: float = SLOW_EXECUTOR_RATIO
    runs: int = SLOW_EXECUTOR_RUNS

    def __post_init__(self) -> None:
        for field, (least, most) in (
            ("ratio", SLOW_EXECUTOR_RATIOS),
            ("runs", SLOW_EXECUTOR_RUN_COUNTS),
        ):
            value = getattr(self, field)
            if not least <= value <= most:
                raise ValueError(f"{field}={value!r}: expected a number from {least} to {most}")

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
      digest: A digest of its text, which fixes the shapes of its inputs, and of its options.
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
      ratio: How many times as long the program takes as on its peers, the median of the runs of the
        verdict; None: the verdict ends, or the peers' time is 0.
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
      calls: The number of its runs, without first ones.
      median_s: The median of the recent runs.
      p90_s: Their 90th percentile.
      ratio: How many times as long as on the peers, the median of as many recent runs as a verdict
        takes; None: they were not compared, or the program has not run for some minutes.
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
    """The state of one executor.

    Attributes:
      executor: The executor.
      is_slow: Whether it is slow.
      ratio: The largest of the programs that make it slow; if it is not slow, that of the program
        that took the most time recently. None: no program was compared.
      programs: The programs that make it slow, and then those that took the most time recently.
    """

    executor: ExecutorId
    is_slow: bool
    ratio: float | None
    programs: Sequence[ProgramTimes]


class RunComparison:
    """Compares runs, and remembers a bounded number of programs and runs. Not thread-safe.

    Args:
      limits: When an executor counts as slow.
      most_programs: The maximum number of programs in memory.
    """

    def __init__(self, limits: SlowLimits, most_programs: int = _PROGRAMS) -> None:
        self._limits = limits
        self._most_programs = most_programs
        self._recent = min(max(limits.runs, _FEWEST_RECENT), _MOST_RECENT)
        self._programs: dict[Program, _ProgramRuns] = {}
        #: The programs that make each executor slow.
        self._slow_in: dict[ExecutorId, set[Program]] = {}

    def ran(self, program: Program, times: Mapping[ExecutorId, float], now: float) -> list[Change]:
        """Enters one run of a program.

        Args:
          program: The program.
          times: The seconds that it took on each executor that took part.
          now: Monotonic seconds.

        Returns:
          The verdicts that it changes.
        """
        longest = max(times.values(), default=0.0)
        known = self._programs.get(program)
        if known is None:
            # (Eager code has many tiny programs, which are never slow.)
            if longest < _LEAST_S:
                return []
            known = self._programs[program] = _ProgramRuns()
        if longest >= _LEAST_S:
            known.load.add(longest, now)
        runs = known.executors
        for executor, seconds in times.items():
            self._slow_in.setdefault(executor, set())
            runs.setdefault(executor, _Runs(self._recent)).add(seconds, now)
        if longest < _LEAST_S and not any(runs[executor].is_slow for executor in times):
            for executor in times:
                runs[executor].above = 0
            return []
        others = [
            one.median
            for executor, one in runs.items()
            if executor not in times and one.counts(now)
        ]
        ordered = sorted([*times.values(), *others])
        changes = []
        for executor, seconds in times.items():
            own = runs[executor]
            if len(ordered) == 1:
                own.forget_peers()
                reason = "it has no peers any more"
            else:
                self._judge(own, seconds, _median_of_others(ordered, seconds))
                reason = f"{program.name} takes about as long as on its peers again"
            changes += self._settle(executor, program, own, reason)
        return changes + self._forget_programs(now)

    def forget(self, executors: Collection[ExecutorId]) -> list[Change]:
        """Forgets executors that have ended; returns the verdicts that end by it."""
        changes = [
            Change(executor=executor, is_slow=False, reason="it has ended")
            for executor in executors
            if self._slow_in.pop(executor, None)
        ]
        for program, known in list(self._programs.items()):
            for executor in executors:
                known.executors.pop(executor, None)
            if len(known.executors) == 1:
                [(left, own)] = known.executors.items()
                own.forget_peers()
                changes += self._settle(left, program, own, "it has no peers any more")
            elif not known.executors:
                del self._programs[program]
        return changes

    def expire(self, now: float) -> list[Change]:
        """Ends the verdicts of programs that have not run for some minutes; returns them."""
        changes = []
        for program, known in self._programs.items():
            for executor, own in known.executors.items():
                if own.is_slow and not own.is_recent(now):
                    own.clear()
                    reason = f"{program.name} has not run for {_AGE_S / 60:g} minutes"
                    changes += self._settle(executor, program, own, reason)
        return changes

    def facts(self, most_programs: int, now: float) -> list[ExecutorFacts]:
        """Returns the state of each executor, with at most `most_programs` of each."""
        programs: dict[ExecutorId, list[tuple[str, _Runs]]] = {one: [] for one in self._slow_in}
        for program, known in self._programs.items():
            for executor, own in known.executors.items():
                programs[executor].append((program.name, own))
        return [
            self._facts_of(executor, programs[executor], most_programs, now)
            for executor in sorted(self._slow_in)
        ]

    def _facts_of(
        self, executor: ExecutorId, found: list[tuple[str, _Runs]], most: int, now: float
    ) -> ExecutorFacts:
        found.sort(key=lambda one: (not one[1].is_slow, -one[1].load.at(now)))
        is_slow = bool(self._slow_in[executor])
        relevant = (own for _, own in found if own.is_slow or not is_slow)
        ratios = (own.ratio(self._limits.runs, now) for own in relevant)
        known = (ratio for ratio in ratios if ratio is not None)
        return ExecutorFacts(
            executor=executor,
            is_slow=is_slow,
            ratio=max(known, default=None) if is_slow else next(known, None),
            programs=[
                ProgramTimes(
                    name=name,
                    calls=own.calls,
                    median_s=own.median,
                    p90_s=own.p90,
                    ratio=own.ratio(self._limits.runs, now),
                    is_slow=own.is_slow,
                )
                for name, own in found[:most]
            ],
        )

    def _judge(self, own: _Runs, seconds: float, peers_s: float) -> None:
        """Counts the latest run of a program for or against a verdict."""
        limits, excess = self._limits, seconds - peers_s
        is_beyond = excess >= _LEAST_S and seconds > limits.ratio * peers_s
        is_within = excess < _LEAST_S or seconds < limits.end_ratio * peers_s
        own.above = own.above + 1 if is_beyond else 0
        own.below = own.below + 1 if is_within else 0
        own.peers[-1] = peers_s
        if own.is_slow:
            own.is_slow = own.below < limits.runs
        else:
            own.is_slow = own.above >= limits.runs

    def _settle(
        self, executor: ExecutorId, program: Program, own: _Runs, reason: str
    ) -> list[Change]:
        """Returns the change of the verdict on an executor; `reason` is that of its end."""
        slow_in = self._slow_in[executor]
        was_slow = bool(slow_in)
        if own.is_slow:
            slow_in.add(program)
        else:
            slow_in.discard(program)
        if bool(slow_in) == was_slow:
            return []
        if own.is_slow:
            return [_beginning(executor, program, own, self._limits.runs)]
        return [Change(executor=executor, is_slow=False, reason=reason, program=program.name)]

    def _forget_programs(self, now: float) -> list[Change]:
        """Forgets the programs that took the least time recently, if there are too many."""
        changes = []
        while len(self._programs) > self._most_programs:
            program = min(self._programs, key=lambda one: self._programs[one].load.at(now))
            reason = (
                f"{self._most_programs} other programs have taken more time than {program.name}"
            )
            for executor, own in self._programs.pop(program).executors.items():
                own.clear()
                changes += self._settle(executor, program, own, reason)
        return changes


class _Load:
    """The time that something took recently: each run counts half as much after a half-life."""

    __slots__ = ("last", "seconds")

    def __init__(self) -> None:
        self.seconds = self.last = 0.0

    def add(self, seconds: float, now: float) -> None:
        """Enters a run."""
        self.seconds, self.last = self.at(now) + seconds, now

    def at(self, now: float) -> float:
        """Returns the seconds of now."""
        age = now - self.last
        return 0.0 if age > _AGE_S else self.seconds * 0.5 ** (age / _HALF_LIFE_S)


class _ProgramRuns:
    """The runs of one program.

    Attributes:
      executors: Those on each executor.
      load: The time of its runs, without those that are too short to be compared.
    """

    __slots__ = ("executors", "load")

    def __init__(self) -> None:
        self.executors: dict[ExecutorId, _Runs] = {}
        self.load = _Load()


class _Runs:
    """The runs of one program on one executor.

    Attributes:
      calls: The number of all runs.
      seconds: The seconds of the recent ones.
      peers: The peers' seconds for each of these; None: it was not compared.
      above: The number of slow runs in a row, to the latest one.
      below: The number of runs in a row, to the latest one, that are not longer than on the peers.
      is_slow: Whether they make the executor slow.
      load: The time of all runs.
    """

    __slots__ = ("_median", "above", "below", "calls", "is_slow", "load", "peers", "seconds")

    def __init__(self, most: int) -> None:
        self.calls = 0
        self.seconds: collections.deque[float] = collections.deque(maxlen=most)
        self.peers: collections.deque[float | None] = collections.deque(maxlen=most)
        self.above = self.below = 0
        self.is_slow = False
        self.load = _Load()
        self._median: float | None = None

    def add(self, seconds: float, now: float) -> None:
        """Enters a run that is not compared yet."""
        if not self.is_recent(now):
            self.above = 0
        self.calls += 1
        self.seconds.append(seconds)
        self.peers.append(None)
        self.load.add(seconds, now)
        self._median = None

    def clear(self) -> None:
        """Ends the verdict, and begins to count anew."""
        self.above = self.below = 0
        self.is_slow = False

    def forget_peers(self) -> None:
        """Does the same, and drops what the runs were compared with."""
        self.clear()
        for index in range(len(self.peers)):
            self.peers[index] = None

    def is_recent(self, now: float) -> bool:
        """Whether the program has run in the last minutes."""
        return now - self.load.last <= _AGE_S

    def counts(self, now: float) -> bool:
        """Whether other executors can be compared with these runs."""
        return self.calls >= _ENOUGH and self.is_recent(now)

    @property
    def median(self) -> float:
        """The median of the recent runs."""
        if self._median is None:
            self._median = _median(self.seconds)
        return self._median

    @property
    def p90(self) -> float:
        """Their 90th percentile."""
        ordered = sorted(self.seconds)
        return ordered[(9 * (len(ordered) - 1) + 5) // 10]

    def compared(self, runs: int) -> list[tuple[float, float]]:
        """Returns the seconds and the peers' seconds of the last `runs`, if they were compared."""
        latest = list(zip(self.seconds, self.peers, strict=True))[-runs:]
        return [(seconds, peers_s) for seconds, peers_s in latest if peers_s]

    def ratio(self, runs: int, now: float) -> float | None:
        """Returns the median of the ratios of the last `runs`; None: there are none."""
        found = self.compared(runs) if self.is_recent(now) else []
        return _median([seconds / peers_s for seconds, peers_s in found]) if found else None


def _median(times: Collection[float]) -> float:
    """Returns the lower median: of two, one slow peer must not hide another one."""
    return sorted(times)[(len(times) - 1) // 2]


def _median_of_others(ordered: Sequence[float], own: float) -> float:
    """Returns the lower median of ascending times without one of them."""
    index = (len(ordered) - 2) // 2
    return ordered[index + (bisect.bisect_left(ordered, own) <= index)]


def _beginning(executor: ExecutorId, program: Program, own: _Runs, runs: int) -> Change:
    """Returns the beginning of a verdict, with the medians of the runs that made it."""
    found = own.compared(runs)
    ratio = _median([seconds / peers_s for seconds, peers_s in found]) if found else None
    times = "" if ratio is None else f"{shown_digits(ratio)} times "
    own_s = _median(list(own.seconds)[-runs:])
    peers_s = _median([peers_s for _, peers_s in found]) if found else 0.0
    return Change(
        executor=executor,
        is_slow=True,
        reason=f"{program.name} takes {times}as long as on its peers: {shown_seconds(own_s)} "
        f"instead of {shown_seconds(peers_s)}",
        program=program.name,
        ratio=ratio,
    )
