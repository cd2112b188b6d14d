"""When an attempt begins, and when a checkpoint is due."""

from __future__ import annotations

from shared_pathways_service.elastic.policy.due import CheckpointsDue
from shared_pathways_service.elastic.policy.gate import Gate, Go, Late, Wait, may_grow
from shared_pathways_service.elastic.policy.options import Options, SliceRange

OPTIONS = Options(settle_seconds=1, poll_interval=10, elastic_timeout_seconds=100)
TWO_TO_THREE = SliceRange(least=2, most=3)


def test_all_slices_are_not_waited_with() -> None:
    gate = Gate(TWO_TO_THREE, OPTIONS, 0.0)
    assert gate.look((2, 0, 1), 0.0) == Go(slices=(0, 1, 2))
    assert gate.look((0, 1, 2, 3), 0.0) == Go(slices=(0, 1, 2))


def test_fewer_wait_until_it_has_settled() -> None:
    gate = Gate(TWO_TO_THREE, OPTIONS, 5.0)
    waiting = gate.look((0, 2), 5.0)
    assert isinstance(waiting, Wait)
    assert 0 < waiting.at_most_s <= 1
    assert gate.look((0, 2), 6.0) == Go(slices=(0, 2))


def test_too_few_are_waited_for_and_then_it_is_late() -> None:
    gate = Gate(TWO_TO_THREE, OPTIONS, 0.0)
    assert gate.look((0,), 50.0) == Wait(at_most_s=10)
    assert gate.look((0,), 95.0) == Wait(at_most_s=5)
    assert gate.look((0,), 100.0) == Late(have=1, want=2)
    assert gate.look((0, 1), 100.0) == Go(slices=(0, 1))


def test_the_wait_policy_takes_all_or_none() -> None:
    gate = Gate(SliceRange(least=3, most=3), OPTIONS, 0.0)
    assert isinstance(gate.look((0, 1), 50.0), Wait)


def test_growing_is_worth_while_up_to_the_most() -> None:
    assert may_grow((0, 2), (0, 1, 2), TWO_TO_THREE)
    assert not may_grow((0, 1, 2), (0, 1, 2, 3), TWO_TO_THREE)
    assert not may_grow((0, 2), (0,), TWO_TO_THREE)


def test_checkpoints_by_steps_seconds_and_epochs() -> None:
    due = CheckpointsDue(
        Options(checkpoint_period=10, checkpoint_period_seconds=60, checkpoint_period_epochs=2)
    )
    due.begin(epoch=1, now=0.0)
    assert not due.is_due(9, 1, 1.0)
    assert due.is_due(10, 1, 2.0)
    assert due.is_due(11, 1, 62.0)
    assert not due.is_due(12, 2, 63.0)
    assert due.is_due(13, 3, 64.0)
    assert not due.is_due(14, 3, 65.0)
