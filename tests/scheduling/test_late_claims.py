"""Claims that come when a resource manager without a state has recovered, and of drained slices."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from shared_pathways_service.api.tenant_requests import TenantRequest
from shared_pathways_service.scheduling.book import messages as m
from shared_pathways_service.scheduling.book.states import SliceState
from tests.scheduling.harness import SMALL, Rm


def served(slices: int = 2, **config: Any) -> Rm:
    """A service without a disk whose workers are from before; its recovery has ended."""
    rm = Rm(slices, ready=False, state_lost=True, recovering_s=20.0, **config)
    for index in range(slices):
        rm.welcomed[f"slice-{index}/0/1"] = 5
        rm.join(f"slice-{index}")
    rm.after(21.0)
    assert rm.state == "serving"
    return rm


def claim_late(rm: Rm, *claims: tuple[int, str, int]) -> None:
    """A proxy comes that nobody knows, and says that it holds slices."""
    rm.asked["late"] = m.TenantAsked(
        request=TenantRequest(name="late", virtual_slices=(SMALL,) * len(claims)),
        incarnation="late/1",
        running=True,
    )
    rm.come_back("late", *claims)


def test_a_late_claim_of_a_slice_that_is_promised_is_refused() -> None:
    rm = served()
    rm.ask("low", 1)
    rm.ask("vip", 2, priority=1, queue=math.inf)
    assert rm.slice("slice-1").kept_for == "vip"
    claim_late(rm, (0, "slice-1", 9))
    assert rm.refusal("late").kind is m.RefusalKind.LOST
    rm.after(30.0)
    assert sorted(rm.on("vip")) == ["slice-0", "slice-1"]


def test_a_late_claim_of_a_slice_that_another_moves_to_is_refused() -> None:
    rm = served(3)
    rm.ask("ada", 1)
    rm.do(m.SliceDrained(slice_id="slice-0"))
    assert rm.slice("slice-1").kept_for == "slice-0"
    claim_late(rm, (0, "slice-1", 9))
    assert rm.refusal("late").kind is m.RefusalKind.LOST
    rm.after(30.0)
    assert rm.on("ada") == ["slice-1"]


def test_a_late_claim_does_not_evict_the_new_holder() -> None:
    rm = Rm(1, ready=False, state_lost=True, recovering_s=20.0)
    ahead = int((rm.now + 3600.0) * 1000)  # of a manager whose clock was an hour ahead
    rm.welcomed["slice-0/0/1"] = ahead
    rm.join("slice-0")
    rm.after(21.0)
    rm.ask("new", 1)
    claim_late(rm, (0, "slice-0", ahead + 1))
    assert rm.refusal("late").kind is m.RefusalKind.LOST
    assert rm.on("new") == ["slice-0"]
    rm.release("new")
    asked = rm.asked["late"]
    rm.asked["again"] = dataclasses.replace(
        asked, request=dataclasses.replace(asked.request, name="again"), incarnation="again/1"
    )
    rm.come_back("again", (0, "slice-0", ahead + 2))
    assert rm.refusal("again").kind is m.RefusalKind.LOST, "another was placed there since"


def test_a_late_claim_of_a_slice_that_is_not_there_passes_no_line() -> None:
    rm = served(3, spares=1)
    rm.ask("ada", 2)
    rm.ask("first", 1, queue=math.inf)
    claim_late(rm, (0, "ghost", 1))
    assert rm.refusal("late").kind is m.RefusalKind.LOST
    assert rm.slice("slice-2").tenant == "", "the spare is still there"


def test_a_late_claim_of_a_generation_that_was_given_again_is_refused() -> None:
    rm = Rm(4, ready=False, state_lost=True, recovering_s=20.0)
    ahead = int((rm.now + 3600.0) * 1000)  # of a manager whose clock was an hour ahead
    rm.after(21.0)
    for index in range(4):
        rm.welcomed[f"slice-{index}/0/1"] = 5
        rm.join(f"slice-{index}")
    rm.asked["ada"] = m.TenantAsked(
        request=TenantRequest(name="ada", virtual_slices=(SMALL,)),
        incarnation="ada/1",
        running=True,
    )
    rm.come_back("ada", (0, "slice-1", ahead + 3))
    rm.end_worker("slice-1")
    assert rm.placed("ada") == {0: ("slice-0", ahead + 4)}
    claim_late(rm, (0, "slice-3", ahead + 4))
    assert rm.refusal("late").kind is m.RefusalKind.LOST
    assert rm.placed("ada") == {0: ("slice-0", ahead + 4)}


def test_claims_are_believed_for_one_time_to_live_after_the_recovery() -> None:
    for later, believed in ((14.0, True), (16.0, False)):
        rm = served(tenant_ttl_s=15.0, hung_after_s=math.inf)
        rm.after(later - 1.0)
        claim_late(rm, (0, "slice-0", 9))
        assert ("late" in rm.tenants) == believed


def test_a_late_claim_of_a_drained_slice_moves_its_holder() -> None:
    rm = served(2)
    rm.do(m.SliceDrained(slice_id="slice-0"))
    claim_late(rm, (0, "slice-0", 9))
    assert rm.slice("slice-0").state is SliceState.DRAINING
    assert [one.withdrawn for one in rm.heard("late", m.NotifyPreempting)] == [False]
    rm.after(30.0)
    assert rm.on("late") == ["slice-1"]
    assert rm.slice("slice-0").state is SliceState.CORDONED


def test_a_claim_of_a_drained_slice_while_it_recovers_moves_its_holder_afterwards() -> None:
    rm = Rm(2, ready=False, state_lost=True, recovering_s=20.0)
    for index in range(2):
        rm.welcomed[f"slice-{index}/0/1"] = 5
        rm.join(f"slice-{index}")
    rm.do(m.SliceDrained(slice_id="slice-0"))
    claim_late(rm, (0, "slice-0", 9))
    assert rm.on("late") == ["slice-0"]
    rm.after(51.0)
    assert rm.on("late") == ["slice-1"]
