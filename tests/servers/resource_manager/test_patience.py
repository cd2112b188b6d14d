"""How long deadlines are put off."""

from __future__ import annotations

import dataclasses

import pytest

from shared_pathways_service.api.tenant_requests import TenantRequest
from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.events import Event
from shared_pathways_service.scheduling.book import messages as m
from shared_pathways_service.servers.resource_manager.patience import Patience

KIND = InstanceType.parse("tpuv6e:2x2")
BACK = m.WorkerJoined(
    slice_id="slice-0", instance_type=KIND, host_index=0, incarnation="1", welcomed_at=0
)
CLAIMS = m.TenantAsked(
    request=TenantRequest(name="ada", virtual_slices=(KIND,)),
    incarnation="1",
    claims=(m.Claim(virtual_index=0, slice_id="slice-0", generation=1),),
)


def test_a_pulse_in_time_puts_nothing_off() -> None:
    patience = Patience()
    assert not patience.pulsed(100.5, due=100.0)
    assert patience.until == 0.0


def test_who_stood_still_waits_and_not_for_ever() -> None:
    patience = Patience()
    assert patience.pulsed(102.0, due=100.0)
    assert patience.until == 107.0
    for now in range(104, 200, 2):
        assert patience.pulsed(float(now), due=now - 2.0)
    assert patience.until == 132.0
    assert not patience.pulsed(202.0, due=202.0)
    assert patience.pulsed(302.0, due=300.0)
    assert patience.until == 307.0, "another time"


def test_a_late_timer_of_a_deadline_shows_a_stall_before_any_pulse() -> None:
    patience = Patience()
    assert not patience.rang(100.5, due=100.0)
    assert patience.until == 0.0
    assert patience.rang(102.0, due=100.0)
    assert patience.until == 107.0
    # Of stalls without end, deadlines become due in between.
    for now in range(104, 130, 2):
        patience.pulsed(float(now), due=now - 2.0)
    assert not patience.rang(134.0, due=132.0)


def test_as_long_as_somebody_comes_back_the_others_are_waited_for_and_not_for_ever() -> None:
    patience = Patience()
    patience.announced(Event.of("rm.recovering"))
    patience.received(BACK, 100.0)
    assert patience.until == 104.0
    patience.received(CLAIMS, 103.0)
    assert patience.until == 107.0
    for now in range(104, 400, 2):
        patience.received(BACK, float(now))
    assert patience.until == 280.0
    patience.announced(Event.of("rm.recovered"))
    patience.announced(Event.of("rm.recovering"))
    patience.received(BACK, 500.0)
    assert patience.until == 504.0, "another recovery"


@pytest.mark.parametrize("kind", ["rm.recovered", "slice.ready"])
def test_a_return_after_the_recovery_extends_nothing(kind: str) -> None:
    patience = Patience()
    patience.announced(Event.of(kind))
    patience.received(BACK, 100.0)
    assert patience.until == 0.0


def test_a_new_tenant_extends_nothing() -> None:
    patience = Patience()
    patience.announced(Event.of("rm.recovering"))
    patience.received(dataclasses.replace(BACK, welcomed_at=None), 100.0)
    patience.received(dataclasses.replace(CLAIMS, claims=()), 100.0)
    patience.received(m.Tick(), 100.0)
    assert patience.until == 0.0
