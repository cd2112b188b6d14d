"""Owners of reservations that wait behind others when all proxies are back after a restart."""

from __future__ import annotations

import math

from tests.scheduling.machines import begun
from tests.scheduling.world import SMALL


def test_the_owner_of_free_slices_is_placed_once_who_is_before_it_was_promised_others() -> None:
    """It needs no victims: a plan without any would keep its slices free, and it would wait."""
    machine = begun(small=4, first_start=False)
    world = machine.world
    machine.all_workers_are_back()
    large = machine.ask((SMALL,) * 2, queue_timeout=math.inf)
    machine.operator_reserves_slices(count=2, lasts=5.0, small=True, starts_in=10.0, user="")
    machine.ask((SMALL,), priority=3)
    machine.manager_will_die_within_an_event(instructions=0)
    world.release(large)
    machine.all_workers_are_back()
    machine.ask((SMALL,), queue_timeout=math.inf)
    machine.operator_reserves_slices(count=1, lasts=5.0, small=False, starts_in=0.0, user="")
    machine.ask((SMALL,))
    machine.ask((SMALL,) * 2, priority=1, user="bob")
    # The world judges each event: who waits could not be placed.
    machine.all_proxies_are_back()
    machine.teardown()
