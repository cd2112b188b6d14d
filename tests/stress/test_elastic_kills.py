"""kill -9 of a process that trains: the next one goes on, and nothing is lost or repeated."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from shared_pathways_service.events import Event
from stress.elastic_kills.kills import measure, phase_of
from stress.elastic_kills.runs import Training

pytestmark = pytest.mark.race


def test_killed_three_times(record_property: Callable[[str, object], None]) -> None:
    told: list[str] = []
    seed = random.randrange(1 << 32)
    record_property("seed", seed)
    result = measure(3, Training(steps=24), seed, told.append)
    assert not result["failed"], told
    assert result["kills"] == 3


def test_the_phase_of_a_kill() -> None:
    def told(*kinds: str | int) -> list[Event]:
        return [
            Event.of("elastic.step", source="elastic", step=kind)
            if isinstance(kind, int)
            else Event.of(kind, source="elastic", step=3)
            for kind in kinds
        ]

    begun = ("elastic.run.started", "elastic.restored")
    assert phase_of([], 3) == "startup"
    assert phase_of(told(*begun[:1]), 3) == "restore"
    assert phase_of(told(*begun, 1, 2), 3) == "between"
    assert phase_of(told(*begun, 1, 2, 3, 4), 3) == "save"
    assert phase_of(told(*begun, 1, 2, 3, 4, "checkpoint.saved", 5), 3) == "between"
    assert phase_of(told(*begun, 1, 2, 3, "checkpoint.saved", "elastic.run.done"), 3) == "end"
