"""Reservations: what is kept for whom, who may have it before, and what comes when they end."""

from __future__ import annotations

import math
from typing import Any

import pytest

from shared_pathways_service.events.recorded_decisions import DecisionKind
from shared_pathways_service.scheduling.book import messages as m
from shared_pathways_service.scheduling.book.reserved import Reservation
from shared_pathways_service.scheduling.event_log import decisions_of
from shared_pathways_service.scheduling.history.explanations import explain
from tests.scheduling.harness import OTHER, SMALL, Rm

WAITS = math.inf
HOUR = 3600.0


def reservation(rm: Rm, **fields: Any) -> Reservation:
    made: dict[str, Any] = {
        "name": "res-x",
        "instance_type": str(SMALL),
        "count": 1,
        "user": "ada",
        "team": "",
        "starts": rm.now,
        "ends": rm.now + HOUR,
    }
    return Reservation(**{**made, **fields})


def names(rm: Rm) -> list[str]:
    return [one.reservation.name for one in rm.core.status(rm.now).reservations]


def test_from_its_start_on_slices_are_kept_for_whom_they_are_reserved() -> None:
    rm = Rm(3)
    rm.reserve(2, user="ada", ends_in=HOUR)
    rm.ask("eve", 1)
    rm.ask("bob", 1)
    assert rm.on("eve") == ["slice-0"]
    assert rm.refusal("bob").kind is m.RefusalKind.SLICES_TAKEN
    assert "2 reserved for user ada until " in rm.refusal("bob").message
    rm.ask("ada", 2)
    assert len(rm.on("ada")) == 2
    (told,) = rm.core.status(rm.now).reservations
    assert told.held == 2


def test_a_team_has_it_together_and_a_user_reserves_beside_it() -> None:
    rm = Rm(3)
    rm.reserve(2, team="vision", ends_in=HOUR)
    rm.reserve(1, user="ada", ends_in=HOUR)
    rm.ask("ada", 1, team="vision")
    assert [one.held for one in rm.core.status(rm.now).reservations] == [0, 1], "counts once"
    rm.ask("bob", 1, team="vision")
    rm.ask("eve", 1)
    assert rm.refusal("eve").kind is m.RefusalKind.SLICES_TAKEN
    rm.ask("cat", 1, team="vision")
    assert len(rm.on("cat")) == 1


def test_the_owner_passes_those_who_wait_but_only_for_what_is_reserved() -> None:
    rm = Rm(2)
    rm.reserve(1, user="ada", ends_in=HOUR)
    rm.ask("eve", 1)
    rm.ask("bob", 1, queue=WAITS)
    rm.ask("ada", 1)
    assert rm.on("ada") == ["slice-1"]
    rm.release("eve")
    assert rm.on("bob") == ["slice-0"]


def test_what_others_hold_at_the_start_is_not_taken_from_them_and_kept_as_it_comes_free() -> None:
    rm = Rm(2)
    rm.ask("eve", 1)
    rm.ask("bob", 1)
    rm.reserve(1, user="ada", starts_in=10, ends_in=HOUR)
    rm.after(20)
    assert (rm.on("eve"), rm.on("bob")) == (["slice-0"], ["slice-1"])
    rm.ask("cat", 1, queue=WAITS)
    rm.release("bob")
    assert rm.on("cat") == []
    rm.ask("ada", 1)
    assert rm.on("ada") == ["slice-1"]


def test_the_owner_preempts_by_priority_as_anybody() -> None:
    rm = Rm(1)
    rm.ask("eve", 1)
    rm.reserve(1, user="ada", ends_in=HOUR)
    rm.ask("ada", 1, priority=5)
    assert rm.tenant("eve").preempting_by
    rm.after(30)
    assert rm.on("ada") == ["slice-0"]


def test_before_its_start_others_may_have_slices_if_enough_remain() -> None:
    rm = Rm(3)
    rm.reserve(2, user="ada", starts_in=HOUR, ends_in=2 * HOUR)
    rm.ask("eve", 1)
    rm.ask("bob", 1)
    assert rm.on("eve") == ["slice-0"]
    assert rm.refusal("bob").kind is m.RefusalKind.SLICES_TAKEN
    assert "2 reserved for user ada from " in rm.refusal("bob").message


def test_before_its_start_others_may_have_slices_that_they_give_back_in_time() -> None:
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


def test_who_gives_back_in_time_passes_a_head_that_is_kept_waiting_by_a_reservation() -> None:
    rm = Rm(2)
    rm.reserve(2, user="ada", starts_in=HOUR, ends_in=2 * HOUR)
    rm.ask("head", 1, queue=WAITS)
    assert rm.on("head") == []
    rm.ask("brief", 1, queue=WAITS, lifetime=HOUR / 2)
    assert rm.on("brief") == ["slice-0"]
    rm.after(2 * HOUR)
    assert rm.on("head") == ["slice-0"]


@pytest.mark.parametrize(("lifetime", "on"), [(HOUR, ["slice-1"]), (HOUR + 1, [])])
def test_who_gives_back_in_time_passes_an_elastic_slice_that_a_reservation_keeps_waiting(
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
def test_the_first_in_line_passes_an_elastic_slice_that_a_reservation_keeps_waiting_if_over_in_time(
    lifetime: float, on: list[str]
) -> None:
    rm = Rm(3)
    rm.reserve(2, user="ada", starts_in=HOUR, ends_in=2 * HOUR)
    rm.ask("elastic", 2, elastic=1)
    rm.ask("brief", 1, queue=WAITS, lifetime=lifetime)
    assert rm.on("brief") == on
    rm.after(2 * HOUR)
    assert len(rm.on("elastic")) == 2


def test_an_owner_passes_an_elastic_slice_that_its_own_reservation_keeps_waiting() -> None:
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


def test_an_owner_passes_an_elastic_slice_only_with_what_it_reserved() -> None:
    rm = Rm(4)
    rm.reserve(1, user="ada", starts_in=HOUR, ends_in=2 * HOUR)
    rm.reserve(2, user="bob", starts_in=HOUR, ends_in=2 * HOUR)
    rm.ask("elastic", 2, elastic=1)
    assert rm.on("elastic") == ["slice-0"]
    rm.ask("ada", 3, elastic=2)
    assert rm.on("ada") == ["slice-1"]
    rm.ask("bob", 2)
    assert rm.on("bob") == ["slice-2", "slice-3"]


def test_an_owners_elastic_slice_passes_one_that_its_reservation_keeps_waiting() -> None:
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


def test_an_elastic_slice_that_could_be_placed_is_not_passed() -> None:
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


def test_when_it_is_over_the_rest_is_everybodys_and_its_holders_stay() -> None:
    rm = Rm(2)
    rm.reserve(2, user="ada", ends_in=HOUR)
    rm.ask("ada", 1)
    rm.ask("eve", 1, queue=WAITS)
    rm.said.clear()
    rm.after(HOUR)
    assert (rm.on("ada"), rm.on("eve")) == (["slice-0"], ["slice-1"])
    assert names(rm) == []
    assert rm.reservations == {}
    assert rm.announced("reservation.ended") == ["reservation.ended"]


def test_it_is_cancelled() -> None:
    rm = Rm(1)
    name = rm.reserve(1, user="ada", ends_in=HOUR)
    rm.ask("eve", 1, queue=WAITS)
    assert rm.on("eve") == []
    assert rm.core.knows_reservation(name)
    rm.do(m.ReservationCancelled(name=name))
    assert rm.on("eve") == ["slice-0"]
    assert not rm.core.knows_reservation(name)
    assert rm.do(m.ReservationCancelled(name=name)) == []


def test_spares_are_beside_what_is_reserved() -> None:
    rm = Rm(3, spares=1)
    assert rm.core.refusal_of(reservation(rm, count=3), rm.now) == (
        "count",
        "from 1 to 2, the slices of tpuv6e:2x2 beside the spares",
    )
    rm.reserve(1, user="ada", ends_in=HOUR)
    rm.ask("eve", 1)
    rm.ask("bob", 1)
    assert rm.refusal("bob").kind is m.RefusalKind.SLICES_TAKEN


def test_a_lost_slice_is_replaced_by_one_that_is_reserved() -> None:
    rm = Rm(2)
    rm.ask("eve", 1)
    rm.reserve(1, user="ada", ends_in=HOUR)
    rm.end_worker("slice-0")
    assert rm.on("eve") == ["slice-1"], "a gang that runs comes before slices that lie"


def test_an_elastic_slice_is_filled_up_only_from_what_is_not_reserved() -> None:
    rm = Rm(2)
    rm.reserve(1, user="ada", ends_in=HOUR)
    rm.ask("eve", 2, elastic=1)
    assert rm.on("eve") == ["slice-0"]
    rm.after(HOUR)
    assert rm.on("eve") == ["slice-0", "slice-1"]


def test_an_owners_elastic_slice_is_filled_up_from_what_is_reserved() -> None:
    rm = Rm(3)
    rm.ask("bob", 2)
    rm.ask("eve", 2, elastic=1)
    rm.ask("ada", 2, elastic=1, queue=WAITS)
    rm.reserve(2, user="ada", ends_in=HOUR)
    rm.release("bob")
    assert len(rm.on("ada")) == 2
    assert len(rm.on("eve")) == 1


def test_nobody_preempts_for_more_than_reservations_leave() -> None:
    rm = Rm(2)
    rm.ask("low-1", 1)
    rm.ask("low-2", 1)
    rm.reserve(1, user="ada", ends_in=HOUR)
    rm.ask("vip", 2, priority=5, queue=WAITS)
    assert not [one for one in rm.core.status(rm.now).tenants if one.preempting_by]
    rm.release("vip")
    rm.ask("vip", 1, priority=5, queue=WAITS, life="2")
    assert [one.name for one in rm.core.status(rm.now).tenants if one.preempting_by] == ["low-2"]


def test_who_runs_by_a_reservation_is_not_preempted() -> None:
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


def test_the_end_of_a_reservation_lets_who_waits_for_another_type_preempt() -> None:
    rm = sheltered_of_two_types()
    rm.after(HOUR)
    assert rm.tenant("ada").preempting_by


def test_who_loses_the_slice_that_sheltered_it_is_preempted_for_another_type() -> None:
    rm = sheltered_of_two_types()
    rm.end_worker("slice-0")
    assert rm.tenant("ada").preempting_by


def test_a_gang_of_two_types_is_served_by_a_reservation_and_by_its_turn() -> None:
    rm = Rm({SMALL: 1, OTHER: 1})
    rm.reserve(1, user="ada", ends_in=HOUR)
    rm.ask("eve", (OTHER,))
    rm.ask("bob", 1, queue=WAITS)
    rm.ask("ada", (SMALL, OTHER), queue=WAITS)
    assert rm.queue == ["bob", "ada"]
    rm.release("eve")
    assert len(rm.on("ada")) == 2


def test_it_outlives_a_restart() -> None:
    rm = Rm(2)
    rm.reserve(1, user="ada", starts_in=10, ends_in=HOUR)
    rm.reserve(1, team="vision", ends_in=5)
    rm = rm.restarted()
    assert names(rm) == ["res-1", "res-0"]
    for index in range(2):
        rm.join(f"slice-{index}")
    rm.after(20)
    assert names(rm) == ["res-0"], "what is over goes"
    rm.ask("eve", 1)
    rm.ask("bob", 1)
    assert rm.refusal("bob").kind is m.RefusalKind.SLICES_TAKEN
    rm.ask("ada", 1)
    assert rm.on("ada") == ["slice-1"]


def test_one_of_a_type_that_there_is_no_more_goes_with_a_restart() -> None:
    rm = Rm({SMALL: 1, OTHER: 1})
    rm.reserve(1, user="ada", ends_in=HOUR, kind=OTHER)
    rm = rm.restarted(slices={SMALL: 1})
    assert names(rm) == []
    assert rm.reservations == {}


@pytest.mark.parametrize(
    ("fields", "field", "right"),
    [
        ({"ends": 1e9 - 1}, "ends", "after 2001-09-09T01:46:40Z"),
        ({"starts": 1e9 + 10, "ends": 1e9 + 10}, "ends", "after 2001-09-09T01:46:50Z"),
        ({"count": 0}, "count", "from 1 to 2"),
        ({"count": 3}, "count", "from 1 to 2"),
        ({"count": 2}, "count", "1 at most, or another time: there is res-0: 1 for user eve"),
        ({"instance_type": "tpuv5e:2x2"}, "instance_type", "one of tpuv6e:2x2"),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(
    fields: dict[str, Any], field: str, right: str
) -> None:
    rm = Rm(2)
    rm.reserve(1, user="eve", starts_in=100, ends_in=200)
    refusal = rm.core.refusal_of(reservation(rm, **fields), rm.now)
    assert refusal is not None
    assert refusal[0] == field
    assert right in refusal[1]
    if "starts" in fields or field != "ends":
        with pytest.raises(ValueError, match=field):
            rm.do(m.ReservationMade(reservation=reservation(rm, **fields)))


def test_one_that_is_over_before_it_is_taken_in_ends_at_once() -> None:
    rm = Rm(2)
    asked = reservation(rm, ends=rm.now + 0.001)
    assert rm.core.refusal_of(asked, rm.now) is None
    rm.now += 0.002
    rm.do(m.ReservationMade(reservation=asked))
    rm.do(m.Tick())
    assert names(rm) == []


def test_a_refusal_names_some_of_many_others() -> None:
    rm = Rm(2)
    for number in range(40):
        rm.reserve(2, user="eve", starts_in=100.0 * number, ends_in=100.0 * number + 50)
    refusal = rm.core.refusal_of(reservation(rm, ends=rm.now + 5000.0), rm.now)
    assert refusal is not None
    assert refusal[1].count("user eve") == 5
    assert refusal[1].endswith("; and 35 more")


def test_a_head_that_ran_on_more_than_there_are_bars_nobody_by_its_own_reservation() -> None:
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


def test_two_that_follow_one_another_do_not_overlap() -> None:
    rm = Rm(2)
    rm.reserve(2, user="eve", starts_in=100, ends_in=200)
    assert rm.core.refusal_of(reservation(rm, count=2, ends=rm.now + 100), rm.now) is None
    later = reservation(rm, count=2, starts=rm.now + 200, ends=rm.now + 300)
    assert rm.core.refusal_of(later, rm.now) is None
    around = reservation(rm, count=1, ends=rm.now + 300)
    assert rm.core.refusal_of(around, rm.now) is not None


def test_the_history_and_the_explanation_tell_of_it() -> None:
    rm = Rm(1)
    rm.said.clear()
    rm.reserve(1, team="vision", starts_in=10, ends_in=HOUR)
    rm.after(10)
    made = [one for said in rm.said for one in decisions_of([said])]
    kinds = [DecisionKind.RESERVED, DecisionKind.RESERVATION_STARTED]
    assert [one.kind for one in made] == kinds
    assert {(one.team, one.instance_type) for one in made} == {("vision", "tpuv6e:2x2=1")}
    rm.ask("eve", 1, queue=WAITS)
    told = explain("eve", rm.core.status(rm.now), [], {}, rm.now)
    assert told is not None
    said = "\n".join(told.sentences)
    assert "0 free" not in said
    assert "1 reserved for team vision until 2001-09-09T02:46:40Z" in said
    assert "1 x tpuv6e:2x2 are reserved for team vision from " in said
