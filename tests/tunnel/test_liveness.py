"""When a far end is asked, and when it is given up."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.patience import patience
from shared_pathways_service.patience.factor import Timeout
from shared_pathways_service.tunnel.liveness import Liveness, Verdict

PING_S, PONG_S = 20.0, 10.0


@pytest.fixture(scope="module", autouse=True)
def quiet_machine() -> Iterator[None]:
    with patience(1):
        yield


def begin() -> Liveness:
    return Liveness(PING_S, Timeout(PONG_S), 0.0)


def test_it_is_asked_at_intervals_and_given_up_without_an_answer() -> None:
    liveness = begin()
    assert liveness.check(19.9, is_blocked=False) is Verdict.WAIT
    assert liveness.check(20.0, is_blocked=False) is Verdict.PING
    assert liveness.check(29.9, is_blocked=False) is Verdict.WAIT
    assert liveness.check(30.0, is_blocked=False) is Verdict.GONE


def test_an_answer_may_take_longer_once_the_machine_is_busy() -> None:
    liveness = begin()
    assert liveness.check(20.0, is_blocked=False) is Verdict.PING
    with patience(3):
        assert liveness.check(30.0, is_blocked=False) is Verdict.WAIT
        assert liveness.due_at == 50.0
        assert liveness.check(50.0, is_blocked=False) is Verdict.GONE


def test_an_answer_begins_the_interval_anew() -> None:
    liveness = begin()
    assert liveness.check(20.0, is_blocked=False) is Verdict.PING
    assert liveness.on_data()
    assert not liveness.on_data()
    assert liveness.check(30.0, is_blocked=False) is Verdict.WAIT
    assert liveness.due_at == 40.0
    assert liveness.check(40.0, is_blocked=False) is Verdict.PING


def test_silence_of_a_connection_that_is_blocked_proves_nothing() -> None:
    liveness = begin()
    assert liveness.check(20.0, is_blocked=True) is Verdict.PING
    assert liveness.check(30.0, is_blocked=True) is Verdict.WAIT
    assert liveness.check(50.0, is_blocked=False) is Verdict.PING
    assert liveness.check(60.0, is_blocked=False) is Verdict.GONE


def test_an_answer_that_waited_has_its_whole_time_when_data_moves_again() -> None:
    liveness = begin()
    assert liveness.check(20.0, is_blocked=True) is Verdict.PING
    liveness.on_unblocked(29.9)
    assert liveness.check(30.0, is_blocked=False) is Verdict.WAIT
    assert liveness.due_at == 39.9
    assert liveness.check(39.9, is_blocked=False) is Verdict.GONE


def test_a_blockage_does_not_delay_the_next_ping() -> None:
    liveness = begin()
    liveness.on_unblocked(15.0)
    assert liveness.check(20.0, is_blocked=False) is Verdict.PING


@given(st.lists(st.tuples(st.floats(0.01, 50), st.booleans(), st.booleans()), max_size=50))
def test_who_answers_every_ping_is_never_given_up(
    steps: list[tuple[float, bool, bool]],
) -> None:
    now, liveness = 0.0, begin()
    for wait, is_blocked, speaks in steps:
        now += wait
        if speaks:
            liveness.on_data()
        verdict = liveness.check(now, is_blocked=is_blocked)
        assert verdict is not Verdict.GONE
        if verdict is Verdict.PING:
            liveness.on_data()
