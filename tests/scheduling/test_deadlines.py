from __future__ import annotations

import math

from shared_pathways_service.scheduling.book.deadlines import Deadlines
from tests.scheduling.harness import Rm


def test_waits_that_are_over_long_before_their_end_are_forgotten() -> None:
    deadlines = Deadlines()
    kept: list[float | None] = [5000.0]
    deadlines.add(lambda: kept[0], lambda: None)
    for _ in range(20_000):
        over: list[float | None] = [1e9]
        deadlines.add(lambda over=over: over[0], lambda: None)  # type: ignore[misc]
        over[0] = None
    assert len(deadlines) <= 1001
    assert deadlines.next() == 5000.0


def test_many_that_are_still_due_are_all_kept_in_order() -> None:
    deadlines = Deadlines()
    acted: list[int] = []
    for number in reversed(range(5000)):
        deadlines.add(lambda n=number: float(n), lambda n=number: acted.append(n))  # type: ignore[misc]
    while act := deadlines.take_due(math.inf):
        act()
    assert acted == list(range(5000))


def test_tenants_that_came_and_went_leave_no_deadline() -> None:
    rm = Rm(1)
    for number in range(3000):
        rm.ask(f"t{number}", queue=1e9)
        rm.release(f"t{number}")
    assert len(rm.core._deadlines) < 2000
