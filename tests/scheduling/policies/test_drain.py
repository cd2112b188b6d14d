"""Drain: the notice to a slice's holder, its move to another slice, and withdrawn moves."""

from __future__ import annotations

import math

from shared_pathways_service.scheduling.book import messages as m
from shared_pathways_service.scheduling.book.persisted import Persist
from shared_pathways_service.scheduling.book.states import SliceState
from tests.scheduling.harness import Rm
from tests.scheduling.policies.scenes import GRACE_S


def test_a_drained_slice_without_a_holder_is_cordoned() -> None:
    rm = Rm(1)
    rm.drain("slice-0")
    assert rm.slice("slice-0").state is SliceState.CORDONED


def test_the_holder_of_a_drained_slice_moves_after_a_notice() -> None:
    rm = Rm(2)
    rm.ask("ada", 1)
    before = rm.placed("ada")[0][1]
    rm.said.clear()
    rm.drain("slice-0")
    about = rm.slice("slice-0")
    assert (about.state, about.onto, about.moves_in_s) == ("draining", "slice-1", GRACE_S)
    assert rm.slice("slice-1").kept_for == "slice-0"
    (told,) = rm.heard("ada", m.NotifyPreempting)
    assert (told.grace_s, told.by, told.indices) == (GRACE_S, "a drain of slice-0", (0,))
    rm.ask("now", 1)
    assert rm.refusal("now").kind is m.RefusalKind.SLICES_TAKEN, "slice-1 is promised"
    rm.after(GRACE_S)
    (lost,) = rm.heard("ada", m.NotifyUnplaced)
    assert lost.reason == "slice-0 is drained by an operator"
    assert rm.on("ada") == ["slice-1"]
    assert rm.placed("ada")[0][1] > before
    assert rm.slice("slice-0").state is SliceState.CORDONED


def test_without_a_grace_the_holder_moves_at_once() -> None:
    rm = Rm(2, preemption_grace_s=0.0)
    rm.ask("ada", 1)
    rm.drain("slice-0")
    rm.after(0.0)
    assert rm.on("ada") == ["slice-1"]


def test_a_tenant_that_ends_in_the_tick_of_its_move_gets_no_placement() -> None:
    rm = Rm(2, preemption_grace_s=GRACE_S)
    rm.ask("ada", 1, lifetime=GRACE_S + 1.0)
    rm.drain("slice-0")
    rm.said.clear()
    rm.now += GRACE_S + 2.0
    rm.beat()
    rm.do(m.Tick())
    assert "slice.placed" in rm.announced(), "it was moved before its end"
    assert rm.tenants == []
    assert rm.heard("ada", m.NotifyPlaced) == []
    assert rm.refusal("ada").kind is m.RefusalKind.RELEASED


def test_a_spare_may_be_used_for_a_drain() -> None:
    rm = Rm(2, spares=1)
    rm.ask("ada", 1)
    rm.drain("slice-0")
    rm.after(GRACE_S)
    assert rm.on("ada") == ["slice-1"]


def test_without_another_slice_the_drain_waits_for_the_release() -> None:
    rm = Rm(1)
    rm.ask("ada", 1)
    rm.drain("slice-0")
    assert rm.slice("slice-0").state is SliceState.DRAINING
    rm.after(100.0)
    assert rm.on("ada") == ["slice-0"]
    rm.release("ada")
    assert rm.slice("slice-0").state is SliceState.CORDONED


def test_the_move_takes_a_freed_slice_before_the_queue() -> None:
    rm = Rm(2)
    rm.ask("ada", 1)
    rm.ask("bob", 1)
    rm.ask("eve", 1, queue=math.inf)
    rm.drain("slice-0")
    rm.release("bob")
    assert rm.slice("slice-1").kept_for == "slice-0"
    rm.after(GRACE_S)
    assert rm.on("ada") == ["slice-1"]
    assert rm.queue == ["eve"]


def test_an_uncordon_during_the_grace_withdraws_the_move() -> None:
    rm = Rm(2)
    rm.ask("ada", 1)
    rm.drain("slice-0")
    rm.said.clear()
    rm.uncordon("slice-0")
    (told,) = rm.heard("ada", m.NotifyPreempting)
    assert (told.withdrawn, told.indices) == (True, (0,))
    rm.after(2 * GRACE_S)
    assert rm.on("ada") == ["slice-0"]
    assert rm.slice("slice-0").state is SliceState.READY
    rm.ask("bob", 1)
    assert rm.on("bob") == ["slice-1"]


def test_a_cordon_during_the_grace_withdraws_the_move() -> None:
    rm = Rm(2)
    rm.ask("ada", 1)
    rm.drain("slice-0")
    rm.cordon("slice-0")
    rm.after(2 * GRACE_S)
    assert rm.on("ada") == ["slice-0"]
    assert rm.slice("slice-0").state is SliceState.CORDONED


def test_a_lost_target_of_a_move_is_replaced() -> None:
    rm = Rm(3)
    rm.ask("ada", 1)
    rm.drain("slice-0")
    rm.after(10.0)
    rm.end_worker("slice-1")
    assert rm.slice("slice-0").onto == "slice-2"
    rm.after(GRACE_S - 10.0)
    assert rm.on("ada") == ["slice-2"], "no later than it was told"


def test_a_cordoned_target_of_a_move_is_replaced() -> None:
    rm = Rm(2)
    rm.ask("ada", 1)
    rm.drain("slice-0")
    rm.said.clear()
    rm.cordon("slice-1")
    assert rm.heard("ada", m.NotifyPreempting)[0].withdrawn
    rm.after(2 * GRACE_S)
    assert rm.on("ada") == ["slice-0"]
    rm.uncordon("slice-1")
    rm.after(2 * GRACE_S)
    assert rm.on("ada") == ["slice-1"]


def test_a_drained_slice_that_is_lost_is_an_ordinary_loss() -> None:
    rm = Rm(2)
    rm.ask("ada", 1)
    rm.drain("slice-0")
    rm.end_worker("slice-0")
    assert rm.on("ada") == ["slice-1"]
    rm.join("slice-0", life="2")
    assert rm.slice("slice-0").state is SliceState.CORDONED


def test_the_holder_of_a_drained_slice_may_end_during_the_grace() -> None:
    rm = Rm(2)
    rm.ask("ada", 1)
    rm.ask("bob", 2, queue=math.inf)
    rm.drain("slice-0")
    rm.release("ada")
    assert rm.slice("slice-0").state is SliceState.CORDONED
    assert rm.slice("slice-1").kept_for == ""
    rm.uncordon("slice-0")
    assert len(rm.placed("bob")) == 2


def test_a_preemption_does_not_count_a_drained_slice() -> None:
    rm = Rm(1)
    rm.ask("low", 1)
    rm.drain("slice-0")
    rm.ask("vip", 1, priority=1, queue=math.inf)
    assert not rm.tenant("low").preempting_by


def told(rm: Rm, tenant: str) -> list[tuple[bool, float]]:
    """Returns what a tenant heard of notices: whether one was withdrawn, and the grace."""
    return [(one.withdrawn, one.grace_s) for one in rm.heard(tenant, m.NotifyPreempting)]


def test_a_repeated_move_has_its_own_grace() -> None:
    rm = Rm(2)
    rm.ask("ada", 1)
    rm.drain("slice-0")
    rm.after(1.0)
    rm.cordon("slice-1")
    assert told(rm, "ada") == [(False, GRACE_S), (True, 0.0)]
    rm.after(3600.0)
    rm.uncordon("slice-1")
    assert told(rm, "ada")[2:] == [(False, GRACE_S)]
    rm.after(GRACE_S - 1.0)
    assert rm.on("ada") == ["slice-0"]
    rm.after(1.0)
    assert rm.on("ada") == ["slice-1"]


def test_the_loss_of_the_only_target_withdraws_the_notice() -> None:
    rm = Rm(2)
    rm.ask("ada", 1)
    rm.drain("slice-0")
    rm.end_worker("slice-1")
    assert told(rm, "ada") == [(False, GRACE_S), (True, 0.0)]
    assert rm.announced("slice.moving_withdrawn") == ["slice.moving_withdrawn"]
    rm.after(3600.0)
    rm.join("slice-1", life="2")
    assert told(rm, "ada")[2:] == [(False, GRACE_S)]
    rm.after(GRACE_S)
    assert rm.on("ada") == ["slice-1"]


def test_a_withdrawn_notice_has_no_grace() -> None:
    rm = Rm(2)
    rm.ask("ada", 1)
    rm.drain("slice-0")
    rm.after(1.0)
    rm.uncordon("slice-0")
    assert told(rm, "ada") == [(False, GRACE_S), (True, 0.0)]


def test_a_reconnecting_tenant_receives_the_withdrawal_of_its_move() -> None:
    rm = Rm(2)
    rm.ask("ada", 1)
    rm.drain("slice-0")
    rm.cut("ada")
    rm.uncordon("slice-0")
    rm.come_back("ada", (0, *rm.placed("ada")[0]))
    assert told(rm, "ada") == [(False, GRACE_S), (True, 0.0)]


def test_a_move_that_may_be_unknown_to_its_tenant_leaves_some_time() -> None:
    rm = Rm(2, tenant_ttl_s=60.0)
    rm.ask("ada", 1)
    rm.drain("slice-0")
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


def test_the_history_shows_a_drain_as_a_move() -> None:
    rm = Rm(2)
    rm.ask("ada", 1)
    rm.said.clear()
    rm.drain("slice-0")
    rm.after(GRACE_S)
    decided = [one for said in rm.said if isinstance(said, Persist) for one in said.decisions]
    kinds = [one.kind for one in decided if one.tenant]
    assert kinds == ["slice.unplaced", "slice.replaced"]
