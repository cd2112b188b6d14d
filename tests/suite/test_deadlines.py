"""Deadlines of tests grow with the time that the machine takes for its work."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness import deadlines


@pytest.fixture
def measured_again() -> Iterator[pytest.MonkeyPatch]:
    """Forgets the measured figure for the length of a test, with all that the test patches."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("SPS_TEST_SLOWNESS", raising=False)
        deadlines.slowness.cache_clear()
        yield patch
    # (Only now, as ends of other fixtures ask for it, too.)
    deadlines.slowness.cache_clear()


@pytest.mark.parametrize(("usual_s", "load", "expected"), [(1e9, 0.0, 1.0), (1e-9, 0.0, 4.0)])
def test_a_slow_machine_and_a_fast_one(
    usual_s: float, load: float, expected: float, measured_again: pytest.MonkeyPatch
) -> None:
    measured_again.setattr(deadlines, "_USUAL_S", usual_s)
    measured_again.setattr("os.getloadavg", lambda: (load, 0.0, 0.0))
    assert deadlines.slowness() == expected
    assert deadlines.deadline(60.0) == 60.0 * expected


def test_a_busy_machine(measured_again: pytest.MonkeyPatch) -> None:
    measured_again.setattr(deadlines, "_USUAL_S", 1e9)
    measured_again.setattr("os.getloadavg", lambda: (6.0, 0.0, 0.0))
    measured_again.setattr("os.cpu_count", lambda: 2)
    assert deadlines.deadline(60.0) == 180.0


def test_others_have_the_first_figure(measured_again: pytest.MonkeyPatch) -> None:
    measured_again.setenv("SPS_TEST_SLOWNESS", "2.50")
    assert deadlines.deadline(10.0) == 25.0


def test_waiting_ends_with_what_was_seen_or_at_the_deadline() -> None:
    seen = iter([None, 0, 7])
    assert deadlines.wait_until("a number", lambda: next(seen)) == 7
    with pytest.raises(AssertionError, match="waited 0 s for nothing"):
        deadlines.wait_until("nothing", lambda: None, seconds=0.0)


@pytest.mark.timeout(123)
def test_a_tests_own_limit_grows_too(request: pytest.FixtureRequest) -> None:
    limit = request.node.get_closest_marker("timeout")
    assert limit.args == (deadlines.deadline(123),)
