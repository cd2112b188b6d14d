"""Reservations in the queue and in preemption: who passes whom, and who is protected."""

from __future__ import annotations

import math

import pytest

from shared_pathways_service.scheduling.book import messages as m
from tests.scheduling.harness import OTHER, SMALL, Rm
from tests.scheduling.policies.scenes import HOUR, WAITS


def test_an_owner_passes_the_queue_only_for_its_reserved_slices() -> None:
    rm = Rm(2)
    rm.reserve(1, user="ada", ends_in=HOUR)
    rm.ask("eve", 1)
    rm.ask("bob", 1, queue=WAITS)
    rm.ask("ada", 1)
    assert rm.on("ada") == ["slice-1"]
    rm.release("eve")
    assert rm.on("bob") == ["slice-0"]


def test_an_owner_preempts_by_its_priority_only() -> None:
    rm = Rm(1)
    rm.ask("eve", 1)
    rm.reserve(1, user="ada", ends_in=HOUR)
    rm.ask("ada", 1, priority=5)
    assert rm.tenant("eve").preempting_by
    rm.after(30)
    assert rm.on("ada") == ["slice-0"]


def test_short_tenants_may_use_slices_before_the_start() -> None:
    rm = Rm(2)
    rm.reserve(2, user="ada", starts_in=HOUR, ends_in=2 * HOUR)
    rm.ask("late", 1, lifetime=HOUR + 1)
    assert rm.refusal("late").kind is m.RefusalKind.SLICES_TAKEN
    rm.ask("brief", 1, lifetime=HOUR)
    assert rm.on("brief") == ["slice-0"]
    rm.ask("ada", 1)
    assert rm.on("ada") == ["slice-1"], "its own reservation keeps nobody from it"
    rm.after(HOUR)
    rm.ask("eve", 1)
    assert rm.refusal("eve").kind is m.RefusalKind.SLICES_TAKEN
    rm.ask("ada-2", 1)


def test_a_short_tenant_passes_a_head_that_a_reservation_blocks() -> None:
    rm = Rm(2)
    rm.reserve(2, user="ada", starts_in=HOUR, ends_in=2 * HOUR)
    rm.ask("head", 1, queue=WAITS)
    assert rm.on("head") == []
    rm.ask("brief", 1, queue=WAITS, lifetime=HOUR / 2)
    assert rm.on("brief") == ["slice-0"]
    rm.after(2 * HOUR)
    assert rm.on("head") == ["slice-0"]


@pytest.mark.parametrize(("lifetime", "on"), [(HOUR, ["slice-1"]), (HOUR + 1, [])])
def test_a_short_tenant_passes_an_elastic_slice_that_a_reservation_blocks(
    lifetime: float, on: list[str]
) -> None:
    rm = Rm(3)
    rm.reserve(2, user="ada", starts_in=HOUR, ends_in=2 * HOUR)
    rm.ask("elastic", 2, elastic=1)
    assert rm.on("elastic") == ["slice-0"], "one more is not left at the reservation's start"
    rm.ask("head", 2, queue=WAITS)
    rm.ask("brief", 1, queue=WAITS, lifetime=lifetime)
    assert rm.on("brief") == on
    rm.after(2 * HOUR)
    assert len(rm.on("elastic")) == 2


@pytest.mark.parametrize(("lifetime", "on"), [(HOUR, ["slice-1"]), (HOUR + 1, [])])
def test_a_short_head_passes_an_elastic_slice_that_a_reservation_blocks(
    lifetime: float, on: list[str]
) -> None:
    rm = Rm(3)
    rm.reserve(2, user="ada", starts_in=HOUR, ends_in=2 * HOUR)
    rm.ask("elastic", 2, elastic=1)
    rm.ask("brief", 1, queue=WAITS, lifetime=lifetime)
    assert rm.on("brief") == on
    rm.after(2 * HOUR)
    assert len(rm.on("elastic")) == 2


def test_an_owner_passes_an_elastic_slice_that_its_reservation_blocks() -> None:
    rm = Rm(3)
    rm.reserve(2, user="ada", starts_in=HOUR, ends_in=2 * HOUR)
    rm.ask("elastic", 2, elastic=1)
    assert rm.on("elastic") == ["slice-0"]
    rm.ask("ada", 2)
    assert rm.on("ada") == ["slice-1", "slice-2"]
    rm.after(HOUR)
    (reserved,) = rm.core.status(rm.now).reservations
    assert reserved.held == 2
    rm.after(HOUR)
    rm.release("ada")
    assert len(rm.on("elastic")) == 2


def test_an_owner_passes_an_elastic_slice_only_with_reserved_slices() -> None:
    rm = Rm(4)
    rm.reserve(1, user="ada", starts_in=HOUR, ends_in=2 * HOUR)
    rm.reserve(2, user="bob", starts_in=HOUR, ends_in=2 * HOUR)
    rm.ask("elastic", 2, elastic=1)
    assert rm.on("elastic") == ["slice-0"]
    rm.ask("ada", 3, elastic=2)
    assert rm.on("ada") == ["slice-1"]
    rm.ask("bob", 2)
    assert rm.on("bob") == ["slice-2", "slice-3"]


def test_an_owners_elastic_slice_passes_one_that_its_reservation_blocks() -> None:
    rm = Rm(4)
    rm.reserve(3, user="ada", starts_in=HOUR, ends_in=2 * HOUR)
    rm.ask("elastic", 2, elastic=1)
    rm.ask("brief", 1, lifetime=HOUR / 2)
    assert (rm.on("elastic"), rm.on("brief")) == (["slice-0"], ["slice-1"])
    rm.ask("ada", 3, elastic=1)
    assert rm.on("ada") == ["slice-2", "slice-3"]
    rm.release("brief")
    assert sorted(rm.on("ada")) == ["slice-1", "slice-2", "slice-3"]
    assert len(rm.on("elastic")) == 1


def test_a_placeable_elastic_slice_is_not_passed() -> None:
    rm = Rm(3)
    rm.end_worker("slice-1")
    rm.end_worker("slice-2")
    rm.reserve(1, user="ada", starts_in=HOUR, ends_in=2 * HOUR)
    rm.ask("elastic", 3, elastic=2)
    rm.ask("ada", 1, queue=WAITS)
    assert (rm.on("elastic"), rm.on("ada")) == (["slice-0"], [])
    rm.join("slice-1", life="2")
    assert (rm.on("elastic"), rm.on("ada")) == (["slice-0", "slice-1"], [])
    rm.join("slice-2", life="2")
    assert (rm.on("elastic"), rm.on("ada")) == (["slice-0", "slice-1"], ["slice-2"])


def test_preemption_does_not_exceed_what_reservations_leave() -> None:
    rm = Rm(2)
    rm.ask("low-1", 1)
    rm.ask("low-2", 1)
    rm.reserve(1, user="ada", ends_in=HOUR)
    rm.ask("vip", 2, priority=5, queue=WAITS)
    assert not [one for one in rm.core.status(rm.now).tenants if one.preempting_by]
    rm.release("vip")
    rm.ask("vip", 1, priority=5, queue=WAITS, life="2")
    assert [one.name for one in rm.core.status(rm.now).tenants if one.preempting_by] == ["low-2"]


def test_a_tenant_on_reserved_slices_is_not_preempted() -> None:
    rm = Rm(2)
    rm.reserve(1, user="ada", ends_in=HOUR)
    rm.ask("eve", 1)
    rm.ask("ada", 1)
    rm.ask("vip", 1, priority=5, queue=WAITS)
    assert rm.tenant("eve").preempting_by
    assert not rm.tenant("ada").preempting_by, "though it came later"
    rm.release("vip")
    rm.after(HOUR)
    rm.ask("vip", 1, priority=5, queue=WAITS, life="2")
    assert rm.tenant("ada").preempting_by


def sheltered_of_two_types() -> Rm:
    """Ada runs on two types, sheltered by what she reserved of one; the vip waits for the other."""
    rm = Rm({SMALL: 1, OTHER: 1})
    rm.reserve(1, user="ada", ends_in=HOUR)
    rm.ask("ada", (SMALL, OTHER))
    rm.ask("vip", (OTHER,), priority=5, queue=WAITS)
    assert not rm.tenant("ada").preempting_by
    return rm


def test_the_end_of_a_reservation_allows_preemption_for_another_type() -> None:
    rm = sheltered_of_two_types()
    rm.after(HOUR)
    assert rm.tenant("ada").preempting_by


def test_the_loss_of_a_reserved_slice_allows_preemption_for_another_type() -> None:
    rm = sheltered_of_two_types()
    rm.end_worker("slice-0")
    assert rm.tenant("ada").preempting_by


def test_a_gang_of_two_types_uses_a_reservation_and_its_turn() -> None:
    rm = Rm({SMALL: 1, OTHER: 1})
    rm.reserve(1, user="ada", ends_in=HOUR)
    rm.ask("eve", (OTHER,))
    rm.ask("bob", 1, queue=WAITS)
    rm.ask("ada", (SMALL, OTHER), queue=WAITS)
    assert rm.queue == ["bob", "ada"]
    rm.release("eve")
    assert len(rm.on("ada")) == 2


def test_an_oversized_head_does_not_block_others_by_its_reservation() -> None:
    rm = Rm(4, idle_release_s=100.0, idle_warning_s=10.0)
    rm.ask("big", 4)
    rm.tell("big", 1)
    rm = rm.restarted(slices={SMALL: 3})
    for number in range(3):
        rm.join(f"slice-{number}")
    rm.come_back("big")
    rm.after(30.0)
    rm.tell("big", 1)
    rm.after(100.0)
    rm.tell("big", 1)
    rm.after(20.0)
    assert rm.on("big") == []
    rm.reserve(1, user="big", ends_in=HOUR)
    rm.tell("big", 2)
    rm.ask("short", 1, queue=math.inf, lifetime=60.0)
    assert rm.on("short")
