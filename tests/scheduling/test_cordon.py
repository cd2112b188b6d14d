"""Cordon, drain, uncordon: what an operator says of a slice, and what its holder gets to feel."""

from __future__ import annotations

import math

import pytest

from shared_pathways_service.scheduling.book import messages as m
from shared_pathways_service.scheduling.book.persisted import Persist
from shared_pathways_service.scheduling.book.states import SliceState
from tests.scheduling.harness import Rm

GRACE_S = 30.0


def cordon(rm: Rm, slice_id: str) -> None:
    rm.do(m.SliceCordoned(slice_id=slice_id))


def drain(rm: Rm, slice_id: str) -> None:
    rm.do(m.SliceDrained(slice_id=slice_id))


def uncordon(rm: Rm, slice_id: str) -> None:
    rm.do(m.SliceUncordoned(slice_id=slice_id))


def test_a_slice_that_is_not_known_is_refused() -> None:
    rm = Rm(1)
    with pytest.raises(ValueError, match="slice-9"):
        cordon(rm, "slice-9")


def test_nobody_new_comes_to_a_cordoned_slice() -> None:
    rm = Rm(2)
    cordon(rm, "slice-0")
    assert rm.slice("slice-0").state is SliceState.CORDONED
    rm.ask("ada", 1)
    assert rm.on("ada") == ["slice-1"]
    rm.ask("bob", 1, queue=math.inf)
    assert rm.queue == ["bob"]
    uncordon(rm, "slice-0")
    assert rm.on("bob") == ["slice-0"]
    assert rm.slice("slice-0").state is SliceState.READY


def test_who_holds_a_cordoned_slice_keeps_it() -> None:
    rm = Rm(1)
    rm.ask("ada", 1)
    cordon(rm, "slice-0")
    rm.after(100.0)
    assert rm.on("ada") == ["slice-0"]
    rm.ask("bob", 1, queue=math.inf)
    rm.release("ada")
    assert rm.on("bob") == []
    assert rm.slice("slice-0").state is SliceState.CORDONED


def test_a_cordoned_slice_whose_worker_comes_back_is_still_cordoned() -> None:
    rm = Rm(1)
    cordon(rm, "slice-0")
    rm.end_worker("slice-0")
    assert rm.slice("slice-0").state is SliceState.LOST
    rm.join("slice-0", life="2")
    assert rm.slice("slice-0").state is SliceState.CORDONED
    uncordon(rm, "slice-0")
    rm.ask("ada", 1)
    assert rm.on("ada") == ["slice-0"]


def test_a_drained_slice_without_a_holder_is_cordoned() -> None:
    rm = Rm(1)
    drain(rm, "slice-0")
    assert rm.slice("slice-0").state is SliceState.CORDONED


def test_the_holder_of_a_drained_slice_moves_after_a_notice() -> None:
    rm = Rm(2)
    rm.ask("ada", 1)
    before = rm.placed("ada")[0][1]
    rm.said.clear()
    drain(rm, "slice-0")
    about = rm.slice("slice-0")
    assert (about.state, about.onto, about.moves_in_s) == ("draining", "slice-1", GRACE_S)
    assert rm.slice("slice-1").kept_for == "slice-0"
    (told,) = rm.heard("ada", m.TellPreempting)
    assert (told.grace_s, told.by, told.indices) == (GRACE_S, "a drain of slice-0", (0,))
    rm.ask("now", 1)
    assert rm.refusal("now").kind is m.RefusalKind.SLICES_TAKEN, "slice-1 is promised"
    rm.after(GRACE_S)
    (lost,) = rm.heard("ada", m.TellUnplaced)
    assert lost.reason == "slice-0 is drained by an operator"
    assert rm.on("ada") == ["slice-1"]
    assert rm.placed("ada")[0][1] > before
    assert rm.slice("slice-0").state is SliceState.CORDONED


def test_with_no_grace_it_moves_at_once() -> None:
    rm = Rm(2, preemption_grace_s=0.0)
    rm.ask("ada", 1)
    drain(rm, "slice-0")
    rm.after(0.0)
    assert rm.on("ada") == ["slice-1"]


def test_a_tenant_that_ends_in_the_tick_of_its_move_is_not_sent_the_new_placement() -> None:
    rm = Rm(2, preemption_grace_s=GRACE_S)
    rm.ask("ada", 1, lifetime=GRACE_S + 1.0)
    drain(rm, "slice-0")
    rm.said.clear()
    rm.now += GRACE_S + 2.0
    rm.beat()
    rm.do(m.Tick())
    assert "slice.placed" in rm.announced(), "it was moved before its end"
    assert rm.tenants == []
    assert rm.heard("ada", m.TellPlaced) == []
    assert rm.refusal("ada").kind is m.RefusalKind.RELEASED


def test_a_spare_may_be_used_for_a_drain() -> None:
    rm = Rm(2, spares=1)
    rm.ask("ada", 1)
    drain(rm, "slice-0")
    rm.after(GRACE_S)
    assert rm.on("ada") == ["slice-1"]


def test_where_there_is_no_other_slice_it_waits_until_it_is_let_go() -> None:
    rm = Rm(1)
    rm.ask("ada", 1)
    drain(rm, "slice-0")
    assert rm.slice("slice-0").state is SliceState.DRAINING
    rm.after(100.0)
    assert rm.on("ada") == ["slice-0"]
    rm.release("ada")
    assert rm.slice("slice-0").state is SliceState.CORDONED


def test_it_moves_once_another_slice_comes_free_before_those_who_wait() -> None:
    rm = Rm(2)
    rm.ask("ada", 1)
    rm.ask("bob", 1)
    rm.ask("eve", 1, queue=math.inf)
    drain(rm, "slice-0")
    rm.release("bob")
    assert rm.slice("slice-1").kept_for == "slice-0"
    rm.after(GRACE_S)
    assert rm.on("ada") == ["slice-1"]
    assert rm.queue == ["eve"]


def test_uncordoned_in_the_grace_it_stays_and_is_told_so() -> None:
    rm = Rm(2)
    rm.ask("ada", 1)
    drain(rm, "slice-0")
    rm.said.clear()
    uncordon(rm, "slice-0")
    (told,) = rm.heard("ada", m.TellPreempting)
    assert (told.withdrawn, told.indices) == (True, (0,))
    rm.after(2 * GRACE_S)
    assert rm.on("ada") == ["slice-0"]
    assert rm.slice("slice-0").state is SliceState.READY
    rm.ask("bob", 1)
    assert rm.on("bob") == ["slice-1"]


def test_cordoned_in_the_grace_it_stays_too() -> None:
    rm = Rm(2)
    rm.ask("ada", 1)
    drain(rm, "slice-0")
    cordon(rm, "slice-0")
    rm.after(2 * GRACE_S)
    assert rm.on("ada") == ["slice-0"]
    assert rm.slice("slice-0").state is SliceState.CORDONED


def test_the_slice_that_it_would_move_to_is_lost_and_another_is_found() -> None:
    rm = Rm(3)
    rm.ask("ada", 1)
    drain(rm, "slice-0")
    rm.after(10.0)
    rm.end_worker("slice-1")
    assert rm.slice("slice-0").onto == "slice-2"
    rm.after(GRACE_S - 10.0)
    assert rm.on("ada") == ["slice-2"], "no later than it was told"


def test_the_slice_that_it_would_move_to_is_cordoned_itself() -> None:
    rm = Rm(2)
    rm.ask("ada", 1)
    drain(rm, "slice-0")
    rm.said.clear()
    cordon(rm, "slice-1")
    assert rm.heard("ada", m.TellPreempting)[0].withdrawn
    rm.after(2 * GRACE_S)
    assert rm.on("ada") == ["slice-0"]
    uncordon(rm, "slice-1")
    rm.after(2 * GRACE_S)
    assert rm.on("ada") == ["slice-1"]


def test_a_drained_slice_that_is_lost_is_an_ordinary_loss() -> None:
    rm = Rm(2)
    rm.ask("ada", 1)
    drain(rm, "slice-0")
    rm.end_worker("slice-0")
    assert rm.on("ada") == ["slice-1"]
    rm.join("slice-0", life="2")
    assert rm.slice("slice-0").state is SliceState.CORDONED


def test_the_holder_of_a_drained_slice_goes_in_the_grace() -> None:
    rm = Rm(2)
    rm.ask("ada", 1)
    rm.ask("bob", 2, queue=math.inf)
    drain(rm, "slice-0")
    rm.release("ada")
    assert rm.slice("slice-0").state is SliceState.CORDONED
    assert rm.slice("slice-1").kept_for == ""
    uncordon(rm, "slice-0")
    assert len(rm.placed("bob")) == 2


def test_a_drained_slice_is_nothing_that_a_preemption_gains() -> None:
    rm = Rm(1)
    rm.ask("low", 1)
    drain(rm, "slice-0")
    rm.ask("vip", 1, priority=1, queue=math.inf)
    assert not rm.tenant("low").preempting_by


def test_who_was_promised_a_slice_that_is_cordoned_gets_another() -> None:
    rm = Rm(3)
    rm.ask("low-1", 1)
    rm.ask("low-2", 1)
    rm.ask("vip", 2, priority=1, queue=math.inf)
    assert rm.slice("slice-2").kept_for == "vip"
    cordon(rm, "slice-2")
    rm.after(GRACE_S)
    assert sorted(rm.on("vip")) == ["slice-0", "slice-1"]


@pytest.mark.parametrize("mark", ["cordoned", "draining"])
def test_what_an_operator_said_outlives_a_restart(mark: str) -> None:
    rm = Rm(2, tenant_ttl_s=60.0)
    rm.ask("ada", 1)
    (cordon if mark == "cordoned" else drain)(rm, "slice-0")
    rm.after(10.0)
    where = rm.placed("ada")[0]
    rm = rm.restarted()
    rm.join("slice-0")
    rm.join("slice-1")
    rm.come_back("ada", (0, *where))
    assert rm.slice("slice-0").state == mark
    rm.after(GRACE_S - 10.0 - 1.0)
    assert rm.on("ada") == (["slice-0"] if mark == "cordoned" else ["slice-1"])
    assert rm.slice("slice-0").state is SliceState.CORDONED
    rm = rm.restarted()
    rm.join("slice-0")
    assert rm.slice("slice-0").state is SliceState.CORDONED
    uncordon(rm, "slice-0")
    rm = rm.restarted()
    rm.join("slice-0")
    assert rm.slice("slice-0").state is SliceState.READY


def told(rm: Rm, tenant: str) -> list[tuple[bool, float]]:
    """Returns what a tenant heard of notices: whether one was withdrawn, and the grace."""
    return [(one.withdrawn, one.grace_s) for one in rm.heard(tenant, m.TellPreempting)]


def test_a_move_that_was_withdrawn_has_a_grace_of_its_own_when_it_comes_again() -> None:
    rm = Rm(2)
    rm.ask("ada", 1)
    drain(rm, "slice-0")
    rm.after(1.0)
    cordon(rm, "slice-1")
    assert told(rm, "ada") == [(False, GRACE_S), (True, 0.0)]
    rm.after(3600.0)
    uncordon(rm, "slice-1")
    assert told(rm, "ada")[2:] == [(False, GRACE_S)]
    rm.after(GRACE_S - 1.0)
    assert rm.on("ada") == ["slice-0"]
    rm.after(1.0)
    assert rm.on("ada") == ["slice-1"]


def test_when_the_slice_that_it_would_move_to_is_lost_the_notice_is_withdrawn() -> None:
    rm = Rm(2)
    rm.ask("ada", 1)
    drain(rm, "slice-0")
    rm.end_worker("slice-1")
    assert told(rm, "ada") == [(False, GRACE_S), (True, 0.0)]
    assert rm.announced("slice.moving_withdrawn") == ["slice.moving_withdrawn"]
    rm.after(3600.0)
    rm.join("slice-1", life="2")
    assert told(rm, "ada")[2:] == [(False, GRACE_S)]
    rm.after(GRACE_S)
    assert rm.on("ada") == ["slice-1"]


def test_a_move_that_is_withdrawn_says_no_grace() -> None:
    rm = Rm(2)
    rm.ask("ada", 1)
    drain(rm, "slice-0")
    rm.after(1.0)
    uncordon(rm, "slice-0")
    assert told(rm, "ada") == [(False, GRACE_S), (True, 0.0)]


def test_who_was_away_when_a_move_was_withdrawn_hears_of_it_when_it_is_back() -> None:
    rm = Rm(2)
    rm.ask("ada", 1)
    drain(rm, "slice-0")
    rm.cut("ada")
    uncordon(rm, "slice-0")
    rm.come_back("ada", (0, *rm.placed("ada")[0]))
    assert told(rm, "ada") == [(False, GRACE_S), (True, 0.0)]


def test_a_move_that_may_not_have_been_heard_of_leaves_some_time() -> None:
    rm = Rm(2, tenant_ttl_s=60.0)
    rm.ask("ada", 1)
    drain(rm, "slice-0")
    where = rm.placed("ada")[0]
    rm.now += 2 * GRACE_S  # the manager is away
    rm = rm.restarted()
    rm.join("slice-0")
    rm.join("slice-1")
    rm.come_back("ada", (0, *where))
    assert told(rm, "ada") == [(False, 5.0)]
    rm.after(4.0)
    assert rm.on("ada") == ["slice-0"]
    rm.after(1.0)
    assert rm.on("ada") == ["slice-1"]


def test_a_drain_is_told_as_a_move_in_the_history() -> None:
    rm = Rm(2)
    rm.ask("ada", 1)
    rm.said.clear()
    drain(rm, "slice-0")
    rm.after(GRACE_S)
    decided = [one for said in rm.said if isinstance(said, Persist) for one in said.decisions]
    kinds = [one.kind for one in decided if one.tenant]
    assert kinds == ["slice.unplaced", "slice.replaced"]


def test_a_cordoned_slice_without_a_holder_counts_as_the_spare() -> None:
    rm = Rm(3, spares=1)
    cordon(rm, "slice-0")
    rm.ask("ada", 2)
    assert rm.on("ada") == ["slice-1", "slice-2"]


def test_a_gang_that_waits_starts_when_a_slice_is_cordoned_that_it_could_not_have() -> None:
    rm = Rm(3, spares=1)
    rm.ask("ada", 1)
    rm.end_worker("slice-1")
    rm.ask("bob", 1, queue=math.inf)
    assert rm.on("bob") == [], "slice-2 is the spare"
    cordon(rm, "slice-1")
    assert rm.on("bob") == ["slice-2"]


def test_a_cordoned_slice_whose_worker_is_away_still_counts_as_the_spare() -> None:
    rm = Rm(3, spares=1)
    cordon(rm, "slice-0")
    rm.end_worker("slice-0")
    rm.ask("ada", 2)
    assert rm.on("ada") == ["slice-1", "slice-2"]


def test_a_cordoned_slice_that_is_held_is_no_spare_until_it_is_let_go() -> None:
    rm = Rm(3, spares=1)
    rm.ask("ada", 1)
    cordon(rm, "slice-0")
    rm.ask("bob", 2, queue=math.inf)
    assert rm.on("bob") == []
    assert rm.heard("bob", m.TellQueued)[-1].reason == (
        "1 tpuv6e:2x2 slice is free (2 wanted; 1 more is reserved as a spare; 2 of 3 ready)"
    )
    rm.release("ada")
    assert rm.on("bob") == ["slice-1", "slice-2"]


def test_an_uncordoned_slice_is_not_granted_beyond_the_spare() -> None:
    rm = Rm(3, spares=1)
    cordon(rm, "slice-0")
    rm.ask("ada", 2)
    uncordon(rm, "slice-0")
    rm.ask("bob", 1)
    assert rm.refusal("bob").kind is m.RefusalKind.SLICES_TAKEN
    rm.end_worker("slice-1")
    assert sorted(rm.on("ada")) == ["slice-0", "slice-2"], "slice-0 is the spare again"


def test_a_cordoned_slice_counts_as_the_spare_as_soon_as_it_is_known_after_a_restart() -> None:
    rm = Rm(2, spares=1)
    cordon(rm, "slice-1")
    fresh = rm.restarted()
    fresh.join("slice-0")
    fresh.ask("ada", queue=math.inf)
    fresh.after(fresh.config.recovering_s)
    assert fresh.on("ada") == [], "slice-0 is the spare, as slice-1 is not known yet"
    fresh.join("slice-1")
    assert fresh.on("ada") == ["slice-0"]
