from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared_pathways_service.kube.retry_rules import Failure, is_final, retry_delay_s

FOREVER = 1e9


@pytest.mark.parametrize("status", [400, 403, 404, 405, 409, 410, 413, 415, 422])
def test_final_answers_are_not_asked_for_again(status: int) -> None:
    failure = Failure(status=status, retry_after_s=1.0)
    assert is_final(failure)
    assert retry_delay_s(failure, attempt=0, jitter=0.5, left_s=FOREVER) is None


@pytest.mark.parametrize("status", [None, 408, 425, 429, 500, 502, 503, 504])
@pytest.mark.parametrize("method", ["GET", "POST", "PATCH", "DELETE"])
def test_others_are(status: int | None, method: str) -> None:
    failure = Failure(status=status, method=method)
    for attempt in range(50):
        delay = retry_delay_s(failure, attempt=attempt, jitter=1.0, left_s=FOREVER)
        assert delay is not None
        assert 0 < delay <= 5.0


def test_a_refused_token_is_tried_once_more() -> None:
    refused = Failure(status=401)
    assert retry_delay_s(refused, attempt=0, jitter=0.0, left_s=1.0) == 0.0
    assert retry_delay_s(refused, attempt=0, jitter=0.0, left_s=0.0) is None
    assert retry_delay_s(refused, attempt=1, jitter=0.0, left_s=1.0) is None


def test_a_write_that_crossed_another_is_tried_again_a_taken_name_is_not() -> None:
    assert not is_final(Failure(status=409, reason="Conflict", method="PATCH"))
    assert is_final(Failure(status=409, reason="AlreadyExists", method="POST"))
    # A precondition that does not hold: the object is another.
    assert is_final(Failure(status=409, reason="Conflict", method="DELETE"))


def test_the_server_says_how_long() -> None:
    busy = Failure(status=429, retry_after_s=3.0)
    delay = retry_delay_s(busy, attempt=0, jitter=0.0, left_s=FOREVER)
    assert delay is not None
    assert 3.0 < delay < 3.2
    assert retry_delay_s(busy, attempt=0, jitter=0.0, left_s=2.0) is None
    away = Failure(status=503, retry_after_s=3600.0)
    assert retry_delay_s(away, attempt=0, jitter=0.0, left_s=FOREVER) is None


@given(
    attempt=st.integers(0, 10_000),
    jitter=st.floats(0, 1),
    left=st.floats(0, 1e6),
    after=st.none() | st.floats(0, 1e6),
)
def test_no_try_begins_after_the_deadline(
    attempt: int, jitter: float, left: float, after: float | None
) -> None:
    failure = Failure(status=503, retry_after_s=after)
    delay = retry_delay_s(failure, attempt=attempt, jitter=jitter, left_s=left)
    assert delay is None or max(0.0, after or 0.0) <= delay < left
