"""Which executors count as slow, by the times of their programs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import pytest

from shared_pathways_service.servers.proxy.executors.run_comparison import (
    Change,
    ExecutorId,
    Program,
    RunComparison,
    SlowLimits,
)

HOSTS = [ExecutorId("slice-0", 0, 1, host) for host in range(4)]
STEP = Program("jit_step", b"1", "tpuv6e:2x4", 4)
LIMITS = SlowLimits(ratio=2, runs=3)

#: The times in ms of one run on the hosts, the first host first.
Run = Sequence[float]


def in_ms(run: Run) -> dict[ExecutorId, float]:
    return {host: ms / 1000 for host, ms in zip(HOSTS, run, strict=False)}


def compared(
    comparison: RunComparison, runs: Sequence[Run], program: Program = STEP, now: float = 0
) -> list[tuple[int, bool]]:
    """The verdicts of runs: the host, and whether it is slow."""
    changes = [one for run in runs for one in comparison.ran(program, in_ms(run), now)]
    return [(one.executor.host_index, one.is_slow) for one in changes]


@pytest.mark.parametrize(
    ("runs", "verdicts"),
    [
        pytest.param([[10, 50]] * 2, [], id="not enough runs"),
        pytest.param([[10, 50]] * 3, [(1, True)], id="of two hosts the faster one is the peer"),
        pytest.param([[10, 50]] * 9, [(1, True)], id="one verdict"),
        pytest.param([[10, 50]] * 2 + [[10, 11]] + [[10, 50]] * 2, [], id="in a row"),
        pytest.param([[10, 19]] * 9, [], id="within the ratio"),
        pytest.param([[0.1, 0.9]] * 9, [], id="less than a millisecond more"),
        pytest.param([[10, 50, 10]] * 3, [(1, True)], id="three hosts"),
        pytest.param([[10, 50, 50]] * 3, [(1, True), (2, True)], id="two of three hosts"),
        pytest.param([[10, 11, 12, 90]] * 3, [(3, True)], id="four hosts"),
        pytest.param([[10, 10], [90, 90], [30, 30]] * 9, [], id="runs of different lengths"),
        pytest.param([[50, 50]] * 9, [], id="as in a collective, where one waits for the other"),
        pytest.param([[50]] * 9, [], id="no peer"),
        pytest.param(
            [[10, 50]] * 3 + [[10, 10]] * 3, [(1, True), (1, False)], id="the end of a verdict"
        ),
        pytest.param(
            [[10, 50]] * 3 + [[10, 17]] * 9, [(1, True)], id="the end takes a lower ratio"
        ),
        pytest.param(
            [[10, 50]] * 3 + [[10, 10], [10, 10], [10, 17]] * 5, [(1, True)], id="no flapping"
        ),
    ],
)  # fmt: skip
def test_verdicts_of_runs_on_several_hosts(
    runs: Sequence[Run], verdicts: list[tuple[int, bool]]
) -> None:
    assert compared(RunComparison(LIMITS), runs) == verdicts


def alone(comparison: RunComparison, host: int, ms: float, program: Program = STEP) -> list[Change]:
    """One run on one host."""
    return comparison.ran(program, {HOSTS[host]: ms / 1000}, 0)


def test_runs_on_one_host_each_are_compared_with_the_recent_ones_of_the_others() -> None:
    comparison = RunComparison(LIMITS)
    for _ in range(4):
        assert not alone(comparison, 0, 10)
        assert not alone(comparison, 1, 50)
    alone(comparison, 0, 10)  # the fifth: from now on host 1 is compared with it
    verdicts = [alone(comparison, 1, 50) for _ in range(3)]
    [change] = verdicts[-1]
    assert not any(verdicts[:-1])
    assert (change.executor, change.is_slow, change.program) == (HOSTS[1], True, "jit_step")
    assert change.ratio == pytest.approx(5)
    assert change.reason == (
        "jit_step takes 5 times as long as on its peers: 50 ms instead of 10 ms"
    )


@pytest.mark.parametrize(
    "other",
    [
        STEP._replace(digest=b"2"),  # other shapes of inputs
        STEP._replace(devices=2),
        STEP._replace(instance_type="tpuv6e:2x2"),
    ],
)
def test_programs_that_differ_are_not_compared(other: Program) -> None:
    comparison = RunComparison(LIMITS)
    for _ in range(20):
        assert not alone(comparison, 0, 10)
        assert not alone(comparison, 1, 50, other)
    assert [one.ratio for one in comparison.facts(8)] == [None, None]


def test_a_program_whose_hosts_wait_for_each_other_does_not_end_the_verdict_of_another() -> None:
    comparison, summing = RunComparison(LIMITS), STEP._replace(name="jit_sum", digest=b"2")
    found = []
    for _ in range(10):
        found += compared(comparison, [[10, 50]])
        found += compared(comparison, [[60, 60]], summing)
    assert found == [(1, True)]
    # It does not run any more.
    assert compared(comparison, [[60, 60]] * 70, summing) == [(1, False)]
    # And begins again like any other.
    assert compared(comparison, [[10, 50]] * 2) == []
    assert compared(comparison, [[10, 50]], now=100) == [(1, True)]


def test_a_verdict_begins_at_most_once_a_minute() -> None:
    comparison = RunComparison(LIMITS)
    both = [[10, 50]] * 3 + [[10, 10]] * 3
    assert compared(comparison, both, now=5) == [(1, True), (1, False)]
    assert compared(comparison, both * 3, now=64.9) == []
    assert compared(comparison, [[10, 50]] * 3, now=64.9) == []
    assert compared(comparison, [[10, 50]], now=65) == [(1, True)]


def test_an_executor_that_has_ended_takes_its_verdict_with_it() -> None:
    comparison = RunComparison(LIMITS)
    compared(comparison, [[10, 50, 10]] * 3)
    [change] = comparison.forget([HOSTS[1]])
    assert (change.executor, change.is_slow, change.reason) == (HOSTS[1], False, "it has ended")
    assert comparison.forget([HOSTS[1]]) == []
    assert [one.executor for one in comparison.facts(8)] == [HOSTS[0], HOSTS[2]]
    # The next one on this host starts anew.
    assert compared(comparison, [[10, 50, 10]] * 2) == []
    assert compared(comparison, [[10, 50, 10]]) == [(1, True)]


def test_a_verdict_ends_with_the_last_peer() -> None:
    comparison = RunComparison(LIMITS)
    compared(comparison, [[10, 50, 10]] * 3)
    assert comparison.forget([HOSTS[0]]) == []
    [change] = comparison.forget([HOSTS[2]])
    assert (change.executor, change.reason) == (HOSTS[1], "it has no peers any more")
    [left] = comparison.facts(8)
    assert (left.is_slow, left.ratio, left.programs[0].is_slow) == (False, None, False)


def test_the_memory_is_bounded() -> None:
    comparison = RunComparison(LIMITS, most_programs=3)
    assert compared(comparison, [[10, 50]] * 3) == [(1, True)]
    programs = [STEP._replace(name=f"jit_{i}", digest=bytes([i])) for i in range(100)]
    # (A program that runs again and again is not forgotten.)
    for program in programs:
        assert compared(comparison, [[10, 50]]) == []
        assert compared(comparison, [[10, 10]], program) == []
    assert [len(one.programs) for one in comparison.facts(8)] == [3, 3]
    found = list(itertools.chain(*(compared(comparison, [[1, 1]], one) for one in programs[:3])))
    assert found == [(1, False)]
    assert [one.is_slow for one in comparison.facts(8)] == [False, False]


def test_facts_are_those_of_recent_runs() -> None:
    comparison = RunComparison(SlowLimits(ratio=2, runs=3))
    short = STEP._replace(name="jit_short", digest=b"2")
    compared(comparison, [[500, 500]] * 10)
    compared(comparison, [[10 + i, 10 + i] for i in range(16)])
    compared(comparison, [[2, 8]] * 10, short)
    first, second = comparison.facts(8)
    assert [one.name for one in first.programs] == ["jit_step", "jit_short"]
    step = first.programs[0]
    assert (step.calls, step.median_s, step.ratio, step.is_slow) == (26, 0.017, 1, False)
    assert step.p90_s == pytest.approx(0.024)
    assert (first.is_slow, first.ratio) == (False, 1)
    assert (second.is_slow, second.ratio) == (True, 4)
    # What makes it slow comes first, and is not left out.
    assert [one.name for one in comparison.facts(1)[1].programs] == ["jit_short"]
    assert by_name(second.programs)["jit_short"] == 4
    assert by_name(first.programs)["jit_short"] == 0.25


def by_name(programs: Sequence[object]) -> Mapping[str, float | None]:
    return {one.name: one.ratio for one in programs}  # type: ignore[attr-defined]
