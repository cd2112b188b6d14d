"""Which executors count as slow, by the times of their programs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

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
    assert [one.ratio for one in comparison.facts(8, 0)] == [None, None]


def test_a_program_whose_hosts_wait_for_each_other_does_not_end_the_verdict_of_another() -> None:
    comparison, summing = RunComparison(LIMITS), STEP._replace(name="jit_sum", digest=b"2")
    found = []
    for _ in range(10):
        found += compared(comparison, [[10, 50]])
        found += compared(comparison, [[60, 60]], summing)
    assert found == [(1, True)]


def test_a_verdict_ends_some_minutes_after_the_last_run_of_its_program() -> None:
    comparison = RunComparison(LIMITS)
    tiny = STEP._replace(name="jit_tiny", digest=b"2")
    assert compared(comparison, [[10, 50]] * 3) == [(1, True)]
    # Other runs do not end it, however many there are.
    assert compared(comparison, [[60, 60], [0.1, 0.1]] * 500, tiny, now=299) == []
    assert comparison.expire(300) == []
    [change] = comparison.expire(301)
    assert (change.executor, change.is_slow) == (HOSTS[1], False)
    assert change.reason == "jit_step has not run for 5 minutes"
    facts = comparison.facts(8, 301)[1]
    assert (facts.is_slow, facts.ratio) == (False, 1)
    assert by_name(facts.programs) == {"jit_tiny": 1, "jit_step": None}
    # It begins again like any other.
    assert compared(comparison, [[10, 50]] * 2, now=400) == []
    assert compared(comparison, [[10, 50]], now=400) == [(1, True)]


def test_runs_before_a_long_pause_do_not_count() -> None:
    comparison = RunComparison(LIMITS)
    assert compared(comparison, [[10, 50]] * 2, now=0) == []
    assert compared(comparison, [[10, 50]] * 2, now=301) == []
    assert compared(comparison, [[10, 50]], now=301) == [(1, True)]


TWO_SLICES = [ExecutorId(f"slice-{i}", i, 1, host) for i in range(2) for host in range(2)]


def run_on_slice(
    comparison: RunComparison, index: int, ms: Run, now: float = 0
) -> list[tuple[int, bool]]:
    """The verdicts of one run on the hosts of a slice: the host, numbered over both slices."""
    hosts = TWO_SLICES[2 * index : 2 * index + 2]
    times = {host: one / 1000 for host, one in zip(hosts, ms, strict=True)}
    changes = comparison.ran(STEP, times, now)
    return [(TWO_SLICES.index(one.executor), one.is_slow) for one in changes]


def test_a_slice_whose_hosts_wait_for_each_other_is_compared_with_other_slices() -> None:
    comparison, found = RunComparison(LIMITS), []
    for _ in range(10):
        found += run_on_slice(comparison, 0, [10, 10])
        found += run_on_slice(comparison, 1, [30, 30])
    assert found == [(2, True), (3, True)]
    assert [one.ratio for one in comparison.facts(8, 0)] == pytest.approx([1 / 3, 1 / 3, 3, 3])


def test_one_slow_host_of_a_slice_is_told_from_its_neighbour_and_from_other_slices() -> None:
    comparison, found = RunComparison(LIMITS), []
    for _ in range(10):
        found += run_on_slice(comparison, 0, [10, 10])
        found += run_on_slice(comparison, 1, [10, 30])
    assert found == [(3, True)]


def test_a_slice_is_not_compared_with_runs_from_long_ago() -> None:
    comparison = RunComparison(LIMITS)
    for _ in range(5):
        assert run_on_slice(comparison, 0, [10, 10]) == []
    for _ in range(5):
        assert run_on_slice(comparison, 1, [30, 30], now=301) == []


def test_the_ratio_is_that_of_the_runs_of_the_verdict() -> None:
    comparison, steady = RunComparison(LIMITS), [[10, 10]] * 5
    assert compared(comparison, steady) == []
    # Runs of different lengths: the peers' time of the last run alone says little.
    runs = [[10, 40], [20, 80], [1000, 4000]]
    changes = [one for run in runs for one in comparison.ran(STEP, in_ms(run), 0)]
    [change] = changes
    assert change.ratio == pytest.approx(4)
    assert change.reason == "jit_step takes 4 times as long as on its peers: 80 ms instead of 20 ms"
    assert comparison.facts(8, 0)[1].ratio == pytest.approx(4)


def test_seconds_in_a_reason_have_no_exponents() -> None:
    comparison = RunComparison(LIMITS)
    [change] = [one for _ in range(3) for one in comparison.ran(STEP, in_ms([2, 12_345]), 0)]
    assert change.reason == (
        "jit_step takes 6170 times as long as on its peers: 12.3 s instead of 2 ms"
    )


def test_a_verdict_ends_if_the_remaining_peers_have_too_few_runs() -> None:
    comparison = RunComparison(LIMITS)
    for _ in range(5):
        alone(comparison, 0, 10)
    found = [one for _ in range(3) for one in alone(comparison, 1, 50)]
    assert [one.is_slow for one in found] == [True]
    alone(comparison, 2, 10)
    assert comparison.forget([HOSTS[0]]) == []
    [change] = alone(comparison, 1, 50)
    assert (change.is_slow, change.reason) == (False, "it has no peers any more")
    assert comparison.facts(8, 0)[0].ratio is None


def test_many_short_programs_do_not_hide_a_longer_one() -> None:
    comparison, found = RunComparison(LIMITS), []
    tiny = [STEP._replace(name=f"tiny_{i}", digest=bytes([i])) for i in range(100)]
    for step in range(4):
        found += compared(comparison, [[1000, 3000]], now=step)
        for program in tiny:
            found += compared(comparison, [[0.2, 0.3], [0.4, 1.1]], program, now=step)
    assert found == [(1, True)]


def test_the_ratio_is_that_of_the_program_with_the_most_time_of_late() -> None:
    comparison, later = RunComparison(LIMITS), STEP._replace(name="jit_later", digest=b"2")
    compared(comparison, [[1000, 1400]] * 100, now=0)
    compared(comparison, [[10, 11]] * 100, later, now=290)
    [_, facts] = comparison.facts(8, 290)
    assert [one.name for one in facts.programs] == ["jit_later", "jit_step"]
    assert facts.ratio == pytest.approx(1.1)


@pytest.mark.parametrize("limits", [{"ratio": 1.0}, {"ratio": float("nan")}, {"runs": 1}])
def test_limits_out_of_their_range_are_refused(limits: Any) -> None:
    [(field, value)] = limits.items()
    with pytest.raises(ValueError, match=f"{field}={value}: expected a number from"):
        SlowLimits(**limits)


def test_an_executor_that_has_ended_takes_its_verdict_with_it() -> None:
    comparison = RunComparison(LIMITS)
    compared(comparison, [[10, 50, 10]] * 3)
    [change] = comparison.forget([HOSTS[1]])
    assert (change.executor, change.is_slow, change.reason) == (HOSTS[1], False, "it has ended")
    assert comparison.forget([HOSTS[1]]) == []
    assert [one.executor for one in comparison.facts(8, 0)] == [HOSTS[0], HOSTS[2]]
    # The next one on this host starts anew.
    assert compared(comparison, [[10, 50, 10]] * 2) == []
    assert compared(comparison, [[10, 50, 10]]) == [(1, True)]


def test_a_verdict_ends_with_the_last_peer() -> None:
    comparison = RunComparison(LIMITS)
    compared(comparison, [[10, 50, 10]] * 3)
    assert comparison.forget([HOSTS[0]]) == []
    [change] = comparison.forget([HOSTS[2]])
    assert (change.executor, change.reason) == (HOSTS[1], "it has no peers any more")
    [left] = comparison.facts(8, 0)
    assert (left.is_slow, left.ratio, left.programs[0].is_slow) == (False, None, False)


def test_the_memory_is_bounded() -> None:
    comparison = RunComparison(LIMITS, most_programs=3)
    assert compared(comparison, [[10, 50]] * 3) == [(1, True)]
    programs = [STEP._replace(name=f"jit_{i}", digest=bytes([i])) for i in range(100)]
    for program in programs:
        assert compared(comparison, [[10, 10]], program) == []
    assert [len(one.programs) for one in comparison.facts(8, 0)] == [3, 3]
    found = [compared(comparison, [[900, 900]] * 3, one, now=100) for one in programs[:3]]
    assert list(itertools.chain(*found)) == [(1, False)]
    assert [one.is_slow for one in comparison.facts(8, 100)] == [False, False]


def test_facts_are_those_of_recent_runs() -> None:
    comparison = RunComparison(SlowLimits(ratio=2, runs=3))
    short = STEP._replace(name="jit_short", digest=b"2")
    compared(comparison, [[500, 500]] * 10)
    compared(comparison, [[10 + i, 10 + i] for i in range(16)])
    compared(comparison, [[2, 8]] * 10, short)
    first, second = comparison.facts(8, 0)
    assert [one.name for one in first.programs] == ["jit_step", "jit_short"]
    step = first.programs[0]
    assert (step.calls, step.median_s, step.ratio, step.is_slow) == (26, 0.017, 1, False)
    assert step.p90_s == pytest.approx(0.024)
    assert first.is_slow is False
    assert (second.is_slow, second.ratio) == (True, 4)
    # What makes it slow comes first, and is not left out.
    assert [one.name for one in comparison.facts(1, 0)[1].programs] == ["jit_short"]
    assert by_name(second.programs)["jit_short"] == 4
    assert by_name(first.programs)["jit_short"] == 0.25


def by_name(programs: Sequence[object]) -> Mapping[str, float | None]:
    return {one.name: one.ratio for one in programs}  # type: ignore[attr-defined]
