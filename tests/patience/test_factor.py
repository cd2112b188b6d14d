"""Time-outs and deadlines, and the factor that this process measures or is given."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from harness.deadlines import wait_until
from harness.patience import patience
from shared_pathways_service.patience import timeouts
from shared_pathways_service.patience.factor import Deadline, Timeout, factor, given


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Iterator[Clock]:
    with patience(1):
        yield Clock()


# ---- a factor that is set


def test_a_factor_that_is_set_scales_time_outs_where_they_are_read() -> None:
    timeout = Timeout(4.0)
    with patience(2.5):
        assert timeout.s == 10.0
    with patience(0.05):
        assert timeout.s == pytest.approx(0.2)
        assert timeout.seconds == 4.0


@pytest.mark.parametrize("text", ["0.01", "1", "100", " 3 ", "1e1"])
def test_factors_that_may_be_set(text: str) -> None:
    assert given(text) == float(text)


@pytest.mark.parametrize("text", ["0", "0.009", "101", "-1", "nan", "inf", "much", "1,5"])
def test_factors_that_may_not_be_set(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert given(text) is None
    monkeypatch.setenv("SPS_PATIENCE", text)
    assert factor() >= 1.0  # as measured


# ---- deadlines


def test_a_deadline_follows_the_factor(clock: Clock) -> None:
    deadline = Deadline(Timeout(4.0), clock)
    clock.now = 3.0
    assert deadline.left_s == 1.0
    with patience(3):
        assert deadline.left_s == 9.0
    clock.now = 5.0
    assert deadline.left_s == 0.0


def test_a_stall_of_this_process_does_not_count(clock: Clock) -> None:
    deadline = Deadline(Timeout(4.0), clock)

    def stalls(seconds: float) -> None:
        clock.now += seconds + 26.0

    deadline.step(stalls)
    assert deadline.left_s == 4.0


def test_a_process_that_is_late_at_the_end_of_a_wait_does_not_begin_it_again(clock: Clock) -> None:
    deadline = Deadline(Timeout(8.0), clock)
    parts = []
    while part_s := deadline.part_s:
        parts.append(part_s)
        late_s = 1.0 if clock.now >= 7.5 and len(parts) < 10 else 0.0
        clock.now += part_s + late_s
        deadline.waited(part_s + late_s, part_s)
    assert parts[:3] == [4.0, 2.0, 1.0]
    # What is over stays over; the last parts were late, and are repeated.
    assert 8.0 < clock.now < 8.0 + 5 * 1.5


def test_a_process_that_is_always_late_still_comes_to_an_end(clock: Clock) -> None:
    deadline = Deadline(Timeout(4.0), clock)

    def is_late(seconds: float) -> None:
        clock.now += seconds + 1.0

    for _ in range(20):
        deadline.step(is_late)
    assert deadline.left_s == 0.0


def test_a_wait_ends_when_it_succeeds_or_is_over(clock: Clock) -> None:
    asked = []

    def wait(seconds: float) -> bool:
        asked.append(seconds)
        clock.now += seconds
        return clock.now >= 2.0

    assert Deadline(Timeout(4.0), clock).wait(wait)
    assert sum(asked) == pytest.approx(2.0)
    clock.now = -10.0
    assert not Deadline(Timeout(1.0), clock).wait(wait)
    assert clock.now == pytest.approx(-9.0)


def test_all_time_outs_are_positive_and_have_one_name() -> None:
    table = {name: value for name, value in vars(timeouts).items() if isinstance(value, Timeout)}
    assert len(table) > 100
    assert all(timeout.seconds > 0 for timeout in table.values())


# ---- measured


#: Prints the factor for each line that it reads.
MEASURES = """
import sys, time
from shared_pathways_service.patience.factor import Timeout, factor
factor()
print("ready", flush=True)
for line in sys.stdin:
    if line == "work\\n":
        until = time.thread_time() + 0.5
        while time.thread_time() < until:
            pass
    if line == "wait\\n":
        deadline = Timeout(2.0).deadline()
        print("waits", flush=True)
        deadline.step(time.sleep)
        print(deadline.left_s, flush=True)
    time.sleep(1.0)  # between two samples
    print(factor(), flush=True)
"""


@contextlib.contextmanager
def measuring() -> Iterator[subprocess.Popen[str]]:
    environ = {name: value for name, value in os.environ.items() if name != "SPS_PATIENCE"}
    with subprocess.Popen(
        [sys.executable, "-c", MEASURES],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environ,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def ask(process: subprocess.Popen[str], line: str) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


@pytest.mark.race
@pytest.mark.skipif(
    not os.path.exists("/proc/self/schedstat"),  # noqa: PTH110 - of the system
    reason="this kernel does not count how long processes wait for a processor",
)
def test_a_process_beside_busy_ones_measures_it() -> None:
    busy = [sys.executable, "-c", "while True: pass"]
    with measuring() as process, contextlib.ExitStack() as stack:
        one_processor = psutil.Process(process.pid).cpu_affinity()[:1]
        psutil.Process(process.pid).cpu_affinity(one_processor)
        for _ in range(3):
            other = stack.enter_context(subprocess.Popen(busy))
            stack.callback(other.kill)
            psutil.Process(other.pid).cpu_affinity(one_processor)
        assert float(ask(process, "work")) >= 1.5


@pytest.mark.race
def test_a_process_that_was_stopped_measures_it_and_does_not_count_it() -> None:
    with measuring() as process:
        assert ask(process, "wait") == "waits"
        time.sleep(0.05)  # (Until it sleeps; it is stopped before or after, all the same.)
        process.send_signal(signal.SIGSTOP)
        wait_until(
            "the stop", lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED
        )
        time.sleep(2.5)
        process.send_signal(signal.SIGCONT)
        assert process.stdout is not None
        # It has lost 2.5 s of a time-out of 2 s, and may still wait.
        assert float(process.stdout.readline()) > 1.0
        assert float(process.stdout.readline()) >= 3.0
