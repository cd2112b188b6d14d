"""A tenant whose stated lifetime ends at the moment at which it is to be released as idle."""

from __future__ import annotations

import pytest

from shared_pathways_service.scheduling.book import messages as m
from tests.scheduling.machines import begun
from tests.scheduling.world import SMALL


# It is warned after 8 s, and answers at the next event: the end of its lifetime.
@pytest.mark.parametrize("lifetime_s", [9.0, 10.0])
def test_a_tenant_is_released_as_idle_and_by_its_lifetime_in_one_tick(lifetime_s: float) -> None:
    machine = begun(ready=1, grace_s=3.0, idle_s=(8.0, 0.0))
    proxy = machine.ask((SMALL,), lifetime_s=lifetime_s)
    machine.time_passes(seconds=lifetime_s)
    assert machine.world.idled == {proxy.name: f"released: idle for {lifetime_s:.0f} s"}
    assert proxy.parked
    assert proxy.refused is not None
    assert proxy.refused.kind is m.RefusalKind.RELEASED
    machine.teardown()
