"""Reservations: what they withhold, from when until when, and which are refused."""

from __future__ import annotations

from typing import Any

import pytest

from shared_pathways_service.events.recorded_decisions import DecisionKind
from shared_pathways_service.scheduling.book import messages as m
from shared_pathways_service.scheduling.book.reserved import Reservation
from shared_pathways_service.scheduling.event_log import decisions_of
from shared_pathways_service.scheduling.history.explanations import explain
from tests.scheduling.harness import OTHER, SMALL, Rm
from tests.scheduling.policies.scenes import HOUR, WAITS


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


def test_slices_are_reserved_for_the_owner_from_the_start() -> None:
    rm = Rm(3)
    rm.reserve(2, user="ada", ends_in=HOUR)
    rm.ask("eve", 1)
    rm.ask("bob", 1)
    assert rm.on("eve") == ["slice-0"]
    assert rm.refusal("bob").kind is m.RefusalKind.SLICES_TAKEN
    assert "2 are reserved for user ada until " in rm.refusal("bob").message
    rm.ask("ada", 2)
    assert len(rm.on("ada")) == 2
    (told,) = rm.core.status(rm.now).reservations
    assert told.held == 2


def test_a_team_shares_its_reservation_and_a_user_may_have_another() -> None:
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


def test_holders_at_the_start_stay_and_freed_slices_are_reserved() -> None:
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


def test_before_the_start_others_get_slices_if_enough_remain() -> None:
    rm = Rm(3)
    rm.reserve(2, user="ada", starts_in=HOUR, ends_in=2 * HOUR)
    rm.ask("eve", 1)
    rm.ask("bob", 1)
    assert rm.on("eve") == ["slice-0"]
    assert rm.refusal("bob").kind is m.RefusalKind.SLICES_TAKEN
    assert "2 are reserved for user ada from " in rm.refusal("bob").message


def test_after_the_end_free_slices_are_for_all_and_holders_stay() -> None:
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


def test_a_reservation_is_cancelled() -> None:
    rm = Rm(1)
    name = rm.reserve(1, user="ada", ends_in=HOUR)
    rm.ask("eve", 1, queue=WAITS)
    assert rm.on("eve") == []
    assert rm.core.knows_reservation(name)
    rm.do(m.ReservationCancelled(name=name))
    assert rm.on("eve") == ["slice-0"]
    assert not rm.core.knows_reservation(name)
    assert rm.do(m.ReservationCancelled(name=name)) == []


def test_spares_are_in_addition_to_reserved_slices() -> None:
    rm = Rm(3, spares=1)
    assert rm.core.refusal_of(reservation(rm, count=3), rm.now) == (
        "count",
        "from 1 to 2, the slices of tpuv6e:2x2 beside the spares",
    )
    rm.reserve(1, user="ada", ends_in=HOUR)
    rm.ask("eve", 1)
    rm.ask("bob", 1)
    assert rm.refusal("bob").kind is m.RefusalKind.SLICES_TAKEN


def test_a_lost_slice_is_replaced_by_a_reserved_one() -> None:
    rm = Rm(2)
    rm.ask("eve", 1)
    rm.reserve(1, user="ada", ends_in=HOUR)
    rm.end_worker("slice-0")
    assert rm.on("eve") == ["slice-1"], "a gang that runs comes before slices that lie"


def test_an_elastic_slice_does_not_use_reserved_slices() -> None:
    rm = Rm(2)
    rm.reserve(1, user="ada", ends_in=HOUR)
    rm.ask("eve", 2, elastic=1)
    assert rm.on("eve") == ["slice-0"]
    rm.after(HOUR)
    assert rm.on("eve") == ["slice-0", "slice-1"]


def test_an_owners_elastic_slice_uses_reserved_slices() -> None:
    rm = Rm(3)
    rm.ask("bob", 2)
    rm.ask("eve", 2, elastic=1)
    rm.ask("ada", 2, elastic=1, queue=WAITS)
    rm.reserve(2, user="ada", ends_in=HOUR)
    rm.release("bob")
    assert len(rm.on("ada")) == 2
    assert len(rm.on("eve")) == 1


def test_a_reservation_outlives_a_restart() -> None:
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


def test_a_reservation_of_a_removed_type_ends_with_a_restart() -> None:
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
def test_impossible_reservations_are_refused_with_alternatives(
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


def test_a_reservation_of_the_past_ends_at_once() -> None:
    rm = Rm(2)
    asked = reservation(rm, ends=rm.now + 0.001)
    assert rm.core.refusal_of(asked, rm.now) is None
    rm.now += 0.002
    rm.do(m.ReservationMade(reservation=asked))
    rm.do(m.Tick())
    assert names(rm) == []


def test_a_refusal_names_some_of_many_other_reservations() -> None:
    rm = Rm(2)
    for number in range(40):
        rm.reserve(2, user="eve", starts_in=100.0 * number, ends_in=100.0 * number + 50)
    refusal = rm.core.refusal_of(reservation(rm, ends=rm.now + 5000.0), rm.now)
    assert refusal is not None
    assert refusal[1].count("user eve") == 5
    assert refusal[1].endswith("; and 35 more")


def test_consecutive_reservations_do_not_overlap() -> None:
    rm = Rm(2)
    rm.reserve(2, user="eve", starts_in=100, ends_in=200)
    assert rm.core.refusal_of(reservation(rm, count=2, ends=rm.now + 100), rm.now) is None
    later = reservation(rm, count=2, starts=rm.now + 200, ends=rm.now + 300)
    assert rm.core.refusal_of(later, rm.now) is None
    around = reservation(rm, count=1, ends=rm.now + 300)
    assert rm.core.refusal_of(around, rm.now) is not None


def test_an_explanation_counts_as_free_what_the_tenant_could_take() -> None:
    rm = Rm(3)
    rm.reserve(2, user="ada", ends_in=HOUR)
    rm.ask("eve", 2, elastic=1)
    rm.ask("bob", 2, queue=WAITS)
    rm.ask("ada", 3, queue=WAITS)
    assert rm.on("eve") == ["slice-0"], "the others are ada's"
    free = {name: explain(name, rm.core.status(rm.now), [], {}, rm.now) for name in rm.asked}
    assert {name: told and dict(told.free) for name, told in free.items()} == {
        "eve": {str(SMALL): 0},
        "bob": {str(SMALL): 0},
        "ada": {str(SMALL): 2},
    }
    eve = free["eve"]
    assert eve is not None
    assert "Its slice 1 waits for a tpuv6e:2x2, of which 0 are free for it" in eve.sentences


def test_history_and_explanation_show_a_reservation() -> None:
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
    assert "1 is reserved for team vision until 2001-09-09T02:46:40Z" in said
    assert "1 x tpuv6e:2x2 are reserved for team vision from " in said
