"""Executors, workers and hosts are killed while a program computes on them."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from stress.executor_kills.rounds import running

pytestmark = pytest.mark.race


def test_what_was_lost_is_back_on_another_slice(
    record_property: Callable[[str, object], None],
) -> None:
    faults: list[str] = []
    seed = random.randrange(1 << 32)
    record_property("seed", seed)
    # At any moment: those that hang take half a minute, and one of them is in tests/e2e.
    with running(seed, faults) as rounds:
        for victim, at in (("executor", "compute"), ("worker", "copy"), ("host", "compile")):
            rounds.run(victim, at)
    assert not faults + rounds.faults
    assert [one.victim for one in rounds.done] == ["executor", "worker", "host"]
    assert all(one.unplaced_s <= one.placed_s <= one.step_s for one in rounds.done)
