"""Gangs, spares, re-placement, elastic slices, refusals."""

from __future__ import annotations

from shared_pathways_service.scheduling.book import messages as m
from shared_pathways_service.scheduling.book.states import TenantState, VirtualSliceState
from tests.scheduling.harness import OTHER, SMALL, Rm


def kinds(instructions: list[m.Instruction]) -> list[str]:
    return [type(one).__name__ for one in instructions if not isinstance(one, m.Announce)]


def test_a_gang_is_placed_as_a_whole_before_it_runs() -> None:
    rm = Rm(3)
    instructions = rm.ask("ada", 2)
    assert kinds(instructions) == [
        "Persist",
        "WelcomeTenant",
        "NotifyPlaced",
        "NotifyPlaced",
        "NotifyRunning",
    ]
    assert rm.placed("ada") == {0: ("slice-0", 1), 1: ("slice-1", 2)}
    assert rm.announced() == ["slice.placed", "slice.placed", "tenant.running"]
    assert rm.tenant("ada").state is TenantState.RUNNING
    assert rm.grants["ada"].placements == rm.placed("ada")


def test_a_refusal_for_taken_slices_names_their_holders() -> None:
    rm = Rm(2)
    rm.ask("ada")
    rm.ask("bob")
    rm.ask("eve")
    refused = rm.refusal("eve")
    assert refused.kind is m.RefusalKind.SLICES_TAKEN
    assert refused.wanted == {"tpuv6e:2x2": 1}
    assert refused.free == {"tpuv6e:2x2": 0}
    assert refused.holders == ("ada@laptop: 1 x tpuv6e:2x2", "bob@laptop: 1 x tpuv6e:2x2")
    assert refused.position is None
    assert "eve" not in rm.tenants
    assert "eve" not in rm.grants


def test_two_slices_and_a_spare_are_two_slices_for_requests() -> None:
    rm = Rm(3, spares=1)
    rm.ask("ada", 1)
    rm.ask("bob", 1)
    rm.ask("eve", 1)
    assert rm.refusal("eve").kind is m.RefusalKind.SLICES_TAKEN
    assert "reserved as" in rm.refusal("eve").message
    assert rm.refusal("eve").spares == {"tpuv6e:2x2": 1}
    rm.ask("max", 3)
    assert rm.refusal("max").kind is m.RefusalKind.TOO_MANY
    assert rm.refusal("max").spares == {"tpuv6e:2x2": 1}
    rm.ask("zoe", 4)
    assert rm.refusal("zoe").kind is m.RefusalKind.TOO_MANY
    assert rm.refusal("zoe").spares == {}, "there are three slices in all"


def test_a_refusal_names_spares_only_if_they_are_the_reason() -> None:
    rm = Rm(4, spares=2)
    rm.ask("ada", 1)
    rm.ask("bob", 2)
    assert rm.refusal("bob").spares == {"tpuv6e:2x2": 1}, "one is free beside the two spares"
    rm.ask("eve", 2, queue=100.0)
    rm.ask("max", 2)
    assert rm.refusal("max").spares == {}, "eve is before it in line"
    rm.after(100.0)
    assert rm.refusal("eve").spares == {"tpuv6e:2x2": 1}
    rm.end_worker("slice-2")
    rm.end_worker("slice-3")
    rm.ask("joe", 2)
    assert rm.refusal("joe").spares == {}, "one slice is free, spares included"


def test_a_spare_is_named_if_an_elastic_request_could_start_with_it() -> None:
    rm = Rm(3, spares=1)
    rm.ask("ada", 2)
    rm.ask("bob", 3, elastic=2)
    assert rm.refusal("bob").spares == {"tpuv6e:2x2": 1}
    rm.ask("eve", 3, elastic=1)
    assert rm.refusal("eve").spares == {}, "it needs two"


def test_a_spare_is_not_named_where_a_reservation_comes_first() -> None:
    rm = Rm(3, spares=1)
    rm.reserve(1, user="zoe", ends_in=1000.0)
    rm.ask("ada", 1)
    rm.ask("bob", 1)
    assert rm.refusal("bob").spares == {}


def test_a_lost_slice_is_placed_again_on_the_spare_with_a_new_generation() -> None:
    rm = Rm(3, spares=1)
    rm.ask("ada", 2)
    rm.said.clear()
    rm.end_worker("slice-0")
    assert kinds(rm.said) == ["Persist", "NotifyUnplaced", "NotifyPlaced"]
    assert rm.placed("ada") == {0: ("slice-2", 3), 1: ("slice-1", 2)}
    assert rm.announced() == ["slice.lost", "slice.unplaced", "slice.placed"]


def test_with_no_spare_left_a_slice_stays_unplaced_until_its_worker_is_back() -> None:
    rm = Rm(1)
    rm.ask("ada")
    rm.end_worker("slice-0")
    (virtual,) = rm.tenant("ada").slices
    assert virtual.state is VirtualSliceState.UNPLACED
    assert rm.tenant("ada").state is TenantState.RUNNING
    rm.join("slice-0", life="2")
    assert rm.placed("ada") == {0: ("slice-0", 2)}


def test_the_lost_slices_of_running_tenants_come_before_the_queue() -> None:
    rm = Rm(2)
    rm.ask("ada", 1)
    rm.ask("bob", 1)
    rm.ask("eve", 1, priority=100, queue=float("inf"))
    rm.end_worker("slice-0")
    rm.release("bob")
    assert rm.on("ada") == ["slice-1"]
    assert rm.queue == ["eve"]


def test_when_the_lost_slice_is_back_it_becomes_the_spare() -> None:
    rm = Rm(3, spares=1)
    rm.ask("ada", 2)
    rm.ask("eve", 1, queue=float("inf"))
    rm.end_worker("slice-0")
    rm.join("slice-0", life="2")
    assert rm.queue == ["eve"], "what is kept back is not granted"
    rm.release("ada")
    assert rm.on("eve") == ["slice-0"]


def test_an_elastic_gang_starts_with_what_it_needs_and_is_filled_up_later() -> None:
    rm = Rm(3)
    rm.ask("bob", 1)
    rm.ask("ada", 3, elastic=1)
    (running,) = rm.heard("ada", m.NotifyRunning)
    assert (running.placed, running.wanted) == (2, 3)
    rm.said.clear()
    rm.release("bob")
    assert kinds(rm.said) == ["Persist", "RefuseTenant", "NotifyPlaced"]
    assert rm.on("ada") == ["slice-1", "slice-2", "slice-0"]


def test_an_elastic_gang_larger_than_the_service_starts_if_its_core_fits() -> None:
    rm = Rm(2)
    rm.ask("ada", 3, elastic=1)
    assert rm.on("ada") == ["slice-0", "slice-1"]


def test_elastic_slices_are_not_filled_up_from_spares_but_lost_ones_are() -> None:
    rm = Rm(4, spares=1)
    rm.ask("bob", 1)
    rm.ask("ada", 3, elastic=1)
    assert len(rm.placed("ada")) == 2
    rm.end_worker("slice-1")
    assert rm.on("ada") == ["slice-3", "slice-2"]


def test_elastic_slices_are_filled_up_in_the_order_of_the_queue() -> None:
    rm = Rm(2)
    rm.ask("max", 1)
    rm.ask("ada", 2, elastic=1)
    rm.ask("bob", 2, elastic=1, queue=float("inf"))
    assert rm.queue == ["bob"]
    rm.ask("eve", 1, priority=1, queue=float("inf"))
    rm.release("max")
    assert rm.on("eve") == ["slice-0"], "a higher priority goes before what is missing"
    rm.release("eve")
    assert len(rm.placed("ada")) == 2, "what is missing goes before a later gang"
    assert rm.queue == ["bob"]
    rm.release("ada")
    assert len(rm.placed("bob")) == 2


def test_unknown_types_are_refused_naming_those_that_there_are() -> None:
    rm = Rm(2)
    rm.ask("ada", (SMALL, OTHER), queue=float("inf"))
    refused = rm.refusal("ada")
    assert refused.kind is m.RefusalKind.UNKNOWN_TYPE
    assert refused.types == ("tpuv6e:2x2",)
    assert "tpuv5e:2x2" in refused.message


def test_what_never_fits_is_refused_although_it_would_queue() -> None:
    rm = Rm({SMALL: 2, OTHER: 1})
    rm.ask("ada", (SMALL, OTHER, OTHER), queue=float("inf"))
    assert rm.refusal("ada").kind is m.RefusalKind.TOO_MANY
    rm.ask("bob", (SMALL, OTHER, OTHER), elastic=1)
    assert len(rm.placed("bob")) == 2


def test_a_gang_of_two_types_is_placed_on_both() -> None:
    rm = Rm({SMALL: 1, OTHER: 1})
    rm.ask("ada", (OTHER, SMALL))
    assert rm.on("ada") == ["tpuv5e-2x2-0", "slice-0"]


def test_a_gang_is_never_placed_by_halves() -> None:
    rm = Rm({SMALL: 1, OTHER: 1})
    rm.ask("bob", (OTHER,))
    rm.ask("ada", (SMALL, OTHER), queue=float("inf"))
    assert rm.placed("ada") == {}
    rm.release("bob")
    assert len(rm.placed("ada")) == 2


def test_while_the_service_starts_a_request_that_will_fit_waits() -> None:
    rm = Rm(2, ready=False, starting_grace_s=30.0)
    rm.ask("ada", 2)
    (queued,) = rm.heard("ada", m.NotifyQueued)
    assert "2 of 2 are not ready" in queued.reason
    rm.ask("bob", 1)
    assert rm.refusal("bob").kind is m.RefusalKind.SLICES_TAKEN, "ada will have both"
    rm.join("slice-0")
    assert rm.placed("ada") == {}
    rm.join("slice-1")
    assert len(rm.placed("ada")) == 2


def test_when_the_service_has_not_started_in_time_the_request_is_refused() -> None:
    rm = Rm(2, ready=False, starting_grace_s=30.0)
    rm.ask("ada", 2)
    rm.join("slice-0")
    rm.ask("bob", 1, queue=float("inf"))
    rm.after(29.0)
    assert not rm.heard("ada", m.RefuseTenant)
    rm.after(2.0)
    assert rm.refusal("ada").kind is m.RefusalKind.SLICES_TAKEN
    assert "1 of 2 is not ready" in rm.refusal("ada").message
    assert rm.on("bob") == ["slice-0"], "whoever waited behind it is placed"


def test_a_started_service_refuses_tenants_that_do_not_queue() -> None:
    rm = Rm(2, starting_grace_s=30.0)
    rm.ask("ada", 2)
    rm.ask("bob", 1)
    assert rm.refusal("bob").kind is m.RefusalKind.SLICES_TAKEN
