"""Slices whose executors start are excused until they answer, for a limited time."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import pytest

from shared_pathways_service.elastic.health.slice_watch import SliceWatch
from shared_pathways_service.elastic.health.starts import Starts, start_text
from shared_pathways_service.elastic.policy.options import Options
from shared_pathways_service.patience import timeouts
from tests.elastic.gate import Gate


def test_a_slice_starts_until_it_answers() -> None:
    reported = {1: 7}
    starts = Starts(lambda: reported, lambda: 0.0)
    starts.look()
    assert starts.current == {1}
    assert starts.again == frozenset()
    # Its executors serve; its first answer may take a moment more.
    reported = {}
    starts.look()
    assert starts.current == {1}
    starts.answered([0, 1], reported)
    starts.look()
    assert starts.current == frozenset()


def test_a_slice_that_has_answered_starts_again_only_if_it_is_placed_again() -> None:
    reported = {1: 7}
    starts = Starts(lambda: reported, lambda: 0.0)
    # It answers before the service reports that.
    starts.answered([0, 1], starts.look())
    starts.look()
    assert starts.current == frozenset()
    reported = {0: 9, 1: 8}
    starts.look()
    assert starts.current == starts.again == {0, 1}


def test_an_answer_is_not_of_a_placement_that_was_reported_after_the_probe() -> None:
    reported = {1: 7}
    starts = Starts(lambda: reported, lambda: 0.0)
    before = starts.look()
    # Another thread looks while the slice answers, and while it answers once more.
    reported = {1: 8}
    starts.look()
    starts.answered([1], before)
    assert starts.current == starts.again == {1}
    starts.answered([1], reported)
    starts.answered([1], before)
    starts.look()
    assert starts.current == frozenset()


def test_a_slice_that_is_replaced_while_it_answers_starts_again() -> None:
    reported = {1: 7}
    gate = Gate()
    is_replaced = False

    def probe(_devices: Sequence[jax.Device]) -> None:
        if is_replaced:
            gate.wait()
        reported[1] += 1
        watch.look(())  # like another thread

    watch = SliceWatch(
        {1: []}, Options(probe_timeout=1.0), probe, lambda _: None, lambda: dict(reported)
    )
    try:
        while not watch.look().good:
            pass
        is_replaced = True
        answers = watch.look()
        assert (answers.starting, answers.replaced) == ((1,), (1,))
    finally:
        gate.open()
        watch.close()


def test_a_start_is_excused_for_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPS_PATIENCE", "1")
    reported, now = {1: 1}, 0.0
    starts = Starts(lambda: reported, lambda: now)
    starts.look()
    now = timeouts.SLICE_START.s - 1
    reported = {1: 3, 2: 2}
    starts.look()
    assert starts.current == {1, 2}
    now += 1
    starts.look()
    assert starts.current == {2}
    reported = {2: 2}
    starts.look()
    assert starts.current == {2}
    # It has another placement, which starts anew.
    reported = {1: 4, 2: 2}
    starts.look()
    assert starts.current == {1, 2}


def test_messages_name_what_starts() -> None:
    assert start_text([1]) == "slice 1 starts: its executors do not serve yet"
    assert start_text({2, 0}) == "slices 0, 2 start: their executors do not serve yet"
