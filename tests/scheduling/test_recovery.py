"""A restart of the resource manager with its state: nothing is granted until holders reported."""

from __future__ import annotations

import math

from shared_pathways_service.scheduling.book import messages as m
from tests.scheduling.harness import OTHER, SMALL, TWO_HOSTS, Rm, events_of
from tests.scheduling.recovery_scenes import all_join, busy, waits_again


def test_a_fresh_start_serves_at_once() -> None:
    assert Rm(1, ready=False).state == "serving"


def test_after_a_restart_nothing_is_granted_until_all_have_reported() -> None:
    rm = busy().restarted()
    assert rm.state == "recovering"
    rm.ask("new", 1)
    (welcome,) = rm.heard("new", m.WelcomeTenant)
    assert welcome.recovering
    assert "recovering" in rm.heard("new", m.NotifyQueued)[0].reason
    all_join(rm)
    rm.come_back("bob", (0, "slice-2", 3))
    rm.come_back("eve")
    rm.come_back("max")
    assert rm.state == "recovering"
    rm.come_back("ada", (0, "slice-0", 1), (1, "slice-1", 2))
    assert rm.state == "serving"
    assert rm.announced("rm.recovered") == ["rm.recovered"]
    assert rm.on("ada") == ["slice-0", "slice-1"]
    assert rm.on("bob") == ["slice-2"]
    for tenant in ("ada", "bob"):
        assert not rm.heard(tenant, m.NotifyUnplaced)
        assert not rm.heard(tenant, m.NotifyPlaced)
        assert len(rm.heard(tenant, m.NotifyRunning)) == 1
    assert rm.refusal("new").kind is m.RefusalKind.SLICES_TAKEN, "it sees the right free slices"


def test_the_start_of_a_recovery_is_announced() -> None:
    rm = busy()
    fresh = Rm(3, ready=False, restored=rm.restored, now=rm.now + 1)
    assert fresh.state == "recovering"
    again = fresh.restarted()
    core = type(again.core)(again.config, fresh.restored, again.now)
    assert core.next_deadline() == again.now, "there is something to say at once"
    said = core.handle(m.Tick(), again.now)
    assert "rm.recovering" in [event.kind for event in events_of(said)]


def test_the_queue_keeps_its_order_across_a_restart() -> None:
    rm = busy().restarted()
    assert rm.queue == ["max", "eve"]
    all_join(rm)
    for tenant, claims in (("eve", ()), ("max", ()), ("bob", ((0, "slice-2", 3),))):
        rm.come_back(tenant, *claims)
    rm.come_back("ada", (0, "slice-0", 1), (1, "slice-1", 2))
    rm.ask("late", 1, queue=math.inf)
    rm.release("bob")
    assert rm.on("max") == ["slice-2"]
    rm.release("max")
    assert rm.on("eve") == ["slice-2"]
    assert rm.queue == ["late"]


def test_generations_grow_across_restarts() -> None:
    rm = busy().restarted()
    all_join(rm)
    rm.come_back("ada", (0, "slice-0", 1), (1, "slice-1", 2))
    rm.after(30.0)
    rm.ask("new", 1)
    assert rm.placed("new")[0][1] > 3


def test_a_tenant_that_does_not_return_expires() -> None:
    rm = busy().restarted(tenant_ttl_s=15.0, recovering_s=20.0)
    all_join(rm)
    rm.come_back("ada", (0, "slice-0", 1), (1, "slice-1", 2))
    rm.come_back("eve")
    rm.after(16.0)
    assert rm.tenants == ["ada", "eve"]
    assert rm.on("eve") == ["slice-2"], "all who are known have reported"


def test_slices_that_do_not_report_in_time_are_lost() -> None:
    rm = busy().restarted(recovering_s=20.0)
    for tenant in ("eve", "max"):
        rm.come_back(tenant)
    rm.come_back("ada", (0, "slice-0", 1), (1, "slice-1", 2))
    rm.come_back("bob", (0, "slice-2", 3))
    rm.join("slice-0")
    rm.join("slice-2")
    rm.after(19.0)
    assert rm.state == "recovering"
    assert rm.on("ada") == ["slice-0", "slice-1"]
    rm.after(2.0)
    assert rm.state == "serving"
    (lost,) = rm.heard("ada", m.NotifyUnplaced)
    assert (lost.slice_id, lost.generation) == ("slice-1", 2)
    assert "did not report" in lost.reason
    rm.join("slice-1", life="2")
    assert rm.placed("ada")[1] == ("slice-1", 4)


def test_a_replaced_worker_has_lost_its_slice() -> None:
    rm = busy().restarted()
    rm.come_back("ada", (0, "slice-0", 1), (1, "slice-1", 2))
    rm.join("slice-0", life="2")
    (lost,) = rm.heard("ada", m.NotifyUnplaced)
    assert lost.slice_id == "slice-0"
    assert "while the resource manager was away" in lost.reason
    assert rm.on("ada") == ["slice-1"], "nothing is granted while it recovers"


def test_the_death_of_a_worker_counts_at_once_during_recovery() -> None:
    rm = busy().restarted()
    rm.come_back("ada", (0, "slice-0", 1), (1, "slice-1", 2))
    rm.join("slice-0")
    rm.end_worker("slice-0")
    assert [one.slice_id for one in rm.heard("ada", m.NotifyUnplaced)] == ["slice-0"]


def test_stale_claims_are_answered_with_the_current_state() -> None:
    rm = busy().restarted()
    rm.come_back("ada", (0, "slice-1", 1), (1, "slice-1", 1))
    assert {(one.virtual_index, one.slice_id) for one in rm.heard("ada", m.NotifyUnplaced)} == {
        (0, "slice-1"),
        (1, "slice-1"),
    }
    assert {(one.virtual_index, one.slice_id) for one in rm.heard("ada", m.NotifyPlaced)} == {
        (0, "slice-0"),
        (1, "slice-1"),
    }


def test_a_tenant_missing_from_the_state_has_lost_its_slices() -> None:
    rm = busy()
    rm.release("bob")
    fresh = rm.restarted()
    fresh.come_back("bob", (0, "slice-2", 3))
    assert fresh.refusal("bob").kind is m.RefusalKind.LOST


def test_a_tenant_of_a_removed_type_is_forgotten() -> None:
    rm = Rm({SMALL: 1, OTHER: 1})
    rm.ask("ada", (OTHER,))
    fresh = rm.restarted(slices={SMALL: 1})
    assert fresh.tenants == []
    assert fresh.grants == {}
    fresh.come_back("ada", (0, "tpuv5e-2x2-0", 1))
    assert fresh.refusal("ada").kind is m.RefusalKind.UNKNOWN_TYPE


def test_lost_slices_may_take_spares_after_a_restart_and_missing_ones_not() -> None:
    rm = Rm(3, spares=1)
    rm.ask("ada", 3, elastic=1)
    rm.end_worker("slice-0")
    assert rm.on("ada") == ["slice-2", "slice-1"]
    rm.end_worker("slice-1")
    fresh = rm.restarted()
    fresh.join("slice-2")
    fresh.join("slice-0", life="2")
    fresh.come_back("ada", (0, "slice-2", 3))
    assert fresh.on("ada") == ["slice-2", "slice-0"]
    fresh.join("slice-1", life="2")
    assert len(fresh.placed("ada")) == 2, "the elastic one does not take the spare"


def test_a_queue_timeout_outlives_a_restart() -> None:
    rm = busy()
    rm.ask("zoe", 1, queue=10.0)
    fresh = rm.restarted()
    fresh.come_back("zoe")
    fresh.after(10.0)
    assert fresh.refusal("zoe").kind is m.RefusalKind.SLICES_TAKEN


def test_a_restart_during_recovery_without_state_accepts_claims_again() -> None:
    rm = busy().restarted(state_lost=True)
    again = rm.restarted(state_lost=False)
    assert again.state == "recovering"
    again.come_back("ada", (0, "slice-0", 1), (1, "slice-1", 2))
    assert again.on("ada") == ["slice-0", "slice-1"]
    all_join(again)
    again.after(21.0)
    assert again.state == "serving"
    settled = again.restarted(state_lost=False)
    settled.come_back("bob", (0, "slice-2", 3))
    assert settled.refusal("bob").kind is m.RefusalKind.LOST, "the disk is complete again"


def test_a_service_with_only_new_workers_is_new() -> None:
    rm = Rm({SMALL: 1, TWO_HOSTS: 1}, ready=False, state_lost=True)
    rm.ask("ada", 1)
    rm.join("slice-0")
    rm.join("s", 0, kind=TWO_HOSTS)
    assert rm.state == "recovering"
    assert not rm.heard("ada", m.RefuseTenant)
    rm.join("s", 1, kind=TWO_HOSTS)
    assert rm.state == "serving"
    assert rm.on("ada") == ["slice-0"]


def test_a_service_with_one_older_worker_is_not_new() -> None:
    rm = busy().restarted(state_lost=True)
    rm.join("slice-0", life="2")
    rm.join("slice-1", life="2")
    rm.join("slice-2")
    assert rm.state == "recovering"
    rm.come_back("bob", (0, "slice-2", 3))
    assert rm.on("bob") == ["slice-2"]


def test_tenants_are_placed_again_when_state_and_workers_were_replaced() -> None:
    rm = busy().restarted(state_lost=True)
    for index in range(3):
        rm.join(f"slice-{index}", life="2")
    assert rm.state == "serving", "nobody holds anything any more"
    rm.come_back("ada", (0, "slice-0", 1), (1, "slice-1", 2))
    assert len(rm.heard("ada", m.NotifyUnplaced)) == 2
    assert rm.on("ada") == ["slice-0", "slice-1"]
    assert min(generation for _, generation in rm.placed("ada").values()) > 3


def test_a_tenant_larger_than_the_service_does_not_block_others() -> None:
    rm = Rm(3)
    rm.ask("ada", 1)
    rm.ask("big", 3, queue=math.inf)
    where = rm.placed("ada")[0]
    fresh = rm.restarted(slices={SMALL: 2})
    fresh.join("slice-0")
    fresh.join("slice-1")
    fresh.come_back("ada", (0, *where))
    assert fresh.tenants == ["ada"]
    fresh.ask("small", 1, queue=math.inf)
    assert fresh.on("small") == ["slice-1"]
    fresh.come_back("big")
    assert fresh.refusal("big").kind is m.RefusalKind.TOO_MANY
    assert "the service has only 2 x " in fresh.refusal("big").message


def test_a_service_with_a_tenant_of_before_is_not_new() -> None:
    rm = Rm(1, ready=False, state_lost=True)
    waits_again(rm, "low")
    rm.join("slice-0")
    assert rm.state == "recovering"
    rm.after(21.0)
    assert rm.on("low") == ["slice-0"]
