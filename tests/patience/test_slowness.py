"""The factor of time-outs, from measurements."""

from __future__ import annotations

import concurrent.futures
import itertools
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared_pathways_service.patience.slowness import MOST, STALL_S, Sample, Slowness


def slowness(*samples: Sample, pace: float = 1.0) -> Slowness:
    made = Slowness(0.0, pace)
    for sample in samples:
        made.sample(sample)
    return made


def test_a_quiet_machine_has_factor_one() -> None:
    assert Slowness(0.0).factor(1.0) == 1.0
    assert slowness(Sample(at=1.0, ran_s=0.5, queued_s=0.01, load=0.8)).factor(1.0) == 1.0


def test_the_factor_is_the_time_that_work_takes_by_the_time_that_it_runs() -> None:
    # 1 s of work took 4 s.
    assert slowness(Sample(at=5.0, ran_s=0.9, queued_s=3.0)).factor(5.0) == 4.0


def test_only_the_time_since_the_last_sample_counts() -> None:
    before = Sample(at=10.0, ran_s=5.0, queued_s=40.0)
    after = Sample(at=100.0, ran_s=6.0, queued_s=40.0)
    assert slowness(before, after).factor(100.0) == 1.0


def test_a_short_wait_of_a_process_that_hardly_runs_is_no_slow_machine() -> None:
    assert slowness(Sample(at=5.0, ran_s=0.0002, queued_s=0.004)).factor(5.0) == 1.0


def test_a_busy_machine_raises_the_factor_of_a_process_that_has_not_run_yet() -> None:
    assert slowness(Sample(at=1.0, load=3.5)).factor(1.0) == 3.5


def test_the_load_alone_has_a_limit() -> None:
    assert slowness(Sample(at=1.0, load=50.0)).factor(1.0) == 4.0


def test_each_second_of_a_stall_adds_one() -> None:
    made = Slowness(0.0)
    made.stall(1.0, 2.5)
    assert made.factor(1.0) == 3.5


def test_a_wake_up_that_is_a_little_late_is_no_stall() -> None:
    made = Slowness(0.0)
    made.stall(1.0, STALL_S - 0.01)
    assert made.factor(1.0) == 1.0


def test_what_is_observed_counts_for_a_minute() -> None:
    made = Slowness(0.0)
    made.stall(100.0, 4.0)
    made.stall(130.0, 1.0)
    assert [made.factor(now) for now in (100.0, 160.0, 161.0, 190.0, 191.0)] == [5, 5, 2, 2, 1]


@pytest.mark.parametrize(
    ("pace", "expected"),
    [(0.1, 1.0), (1.0, 1.0), (1.9, 1.0), (4.0, 2.0), (1000.0, MOST)],
)
def test_a_slow_processor_raises_the_factor(pace: float, expected: float) -> None:
    assert Slowness(0.0, pace).factor(0.0) == expected


def test_a_slow_processor_and_a_busy_machine_multiply() -> None:
    assert slowness(Sample(at=1.0, load=2.0), pace=6.0).factor(1.0) == 6.0


def test_counters_that_go_back_are_ignored() -> None:
    before = Sample(at=1.0, ran_s=8.0, queued_s=1.0)
    assert slowness(before, Sample(at=2.0, ran_s=0.0, queued_s=0.0)).factor(2.0) == 1.1


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("frequent_switches")
def test_threads_use_it_at_the_same_time() -> None:
    made = Slowness(0.0)

    def use(thread: int) -> None:
        for number in range(3000):
            # (Each observation soon makes another one too old.)
            now = 45.0 * number + thread
            made.sample(Sample(at=now, load=1 + (number + thread) % 3))
            made.stall(now, 1.0)
            assert 1.0 <= made.factor(now) <= MOST

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert list(pool.map(use, range(4))) == [None] * 4


times = st.floats(0, 1e6)
observations = st.lists(
    st.tuples(times, times, st.floats(0, 1e4), st.floats(0, 100), st.floats(-1e3, 1e6)), max_size=20
)


@given(observations, st.floats(0, 1e3))
def test_the_factor_is_always_from_one_to_ten(
    observed: list[tuple[float, float, float, float, float]], pace: float
) -> None:
    made, now = Slowness(0.0, pace), 0.0
    for ran_s, queued_s, later_s, load, late_s in observed:
        now += later_s
        made.sample(Sample(at=now, ran_s=ran_s, queued_s=queued_s, load=load))
        assert 1.0 <= made.factor(now) <= MOST
        made.stall(now, late_s)
        assert 1.0 <= made.factor(now) <= MOST


@given(st.lists(st.tuples(st.floats(0, 30), st.floats(0, 20)), max_size=20))
def test_the_factor_is_the_largest_of_the_last_minute(stalls: list[tuple[float, float]]) -> None:
    made = Slowness(0.0)
    times = list(itertools.accumulate(later for later, _ in stalls))
    for index, (now, (_, late_s)) in enumerate(zip(times, stalls, strict=True)):
        made.stall(now, late_s)
        recent = [
            1 + late
            for at, (_, late) in zip(times[: index + 1], stalls[: index + 1], strict=True)
            if at >= now - 60 and late >= STALL_S
        ]
        assert made.factor(now) == round(min(MOST, max(recent, default=1.0)), 1)
