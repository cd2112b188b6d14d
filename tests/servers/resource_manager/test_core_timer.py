"""When the core is called about its deadlines."""

from __future__ import annotations

import asyncio
import time

import pytest

from harness.deadlines import deadline
from shared_pathways_service.servers.resource_manager import core_timer
from shared_pathways_service.servers.resource_manager.core_timer import CoreTimer
from shared_pathways_service.servers.resource_manager.steady_clock import SteadyClock


@pytest.mark.parametrize("due_s", [0.2, 0.8], ids=["before its pulse", "after its pulse"])
def test_a_deadline_that_passed_in_a_stall_is_deferred(
    monkeypatch: pytest.MonkeyPatch, due_s: float
) -> None:
    monkeypatch.setattr(core_timer, "_PULSE_INTERVAL_S", 0.5)

    async def work() -> None:
        clock = SteadyClock()
        began = clock()
        ticked = asyncio.Event()
        timer = CoreTimer(clock, lambda: None if ticked.is_set() else began + due_s, ticked.set)
        timer.arm()
        time.sleep(2.0)  # The whole process stands still.
        resumed = clock()
        await asyncio.sleep(0.1)
        assert not ticked.is_set()
        assert resumed < timer.patience.until
        # It is only deferred.
        await ticked.wait()
        assert clock() >= timer.patience.until
        timer.close()

    asyncio.run(asyncio.wait_for(work(), deadline(60.0)))
