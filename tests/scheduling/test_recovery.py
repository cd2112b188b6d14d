"""The resource manager is killed, with and without its disk, and everybody's work goes on."""

from __future__ import annotations

import dataclasses
import math

import pytest

from shared_pathways_service.scheduling.book import messages as m
from shared_pathways_service.scheduling.book.states import TenantState
from tests.scheduling.harness import OTHER, SMALL, TWO_HOSTS, Rm, events_of


def busy() -> Rm:
    """Three slices: ada has two, bob one; eve and max wait."""
    rm = Rm(3)
    rm.ask("ada", 2)
    rm.ask("bob", 1)
    rm.ask("eve", 1, queue=math.inf)
    rm.ask("max", 1, priority=1, queue=math.inf)
    return rm


def all_join(rm: Rm) -> None:
    for index in range(3):
        rm.join(f"slice-{index}")


def test_a_fresh_start_serves_at_once() -> None:
    assert Rm(1, ready=False).state == "serving"


def test_after_a_restart_nothing_is_granted_until_all_have_reported() -> None:
    rm = busy().restarted()
    assert rm.state == "recovering"
    rm.ask("new", 1)
    (welcome,) = rm.heard("new", m.WelcomeTenant)
    assert welcome.recovering
    assert "recovering" in rm.heard("new", m.TellQueued)[0].reason
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
        assert not rm.heard(tenant, m.TellUnplaced)
        assert not rm.heard(tenant, m.TellPlaced)
        assert len(rm.heard(tenant, m.TellRunning)) == 1
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


def test_whoever_does_not_come_back_runs_into_its_time_to_live() -> None:
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
    (lost,) = rm.heard("ada", m.TellUnplaced)
    assert (lost.slice_id, lost.generation) == ("slice-1", 2)
    assert "did not report" in lost.reason
    rm.join("slice-1", life="2")
    assert rm.placed("ada")[1] == ("slice-1", 4)


def test_a_worker_that_was_replaced_meanwhile_has_lost_its_slice() -> None:
    rm = busy().restarted()
    rm.come_back("ada", (0, "slice-0", 1), (1, "slice-1", 2))
    rm.join("slice-0", life="2")
    (lost,) = rm.heard("ada", m.TellUnplaced)
    assert lost.slice_id == "slice-0"
    assert "while the resource manager was away" in lost.reason
    assert rm.on("ada") == ["slice-1"], "nothing is granted while it recovers"


def test_a_worker_that_dies_while_it_recovers_is_dead_at_once() -> None:
    rm = busy().restarted()
    rm.come_back("ada", (0, "slice-0", 1), (1, "slice-1", 2))
    rm.join("slice-0")
    rm.end_worker("slice-0")
    assert [one.slice_id for one in rm.heard("ada", m.TellUnplaced)] == ["slice-0"]


def test_stale_claims_are_answered_with_what_is_so() -> None:
    rm = busy().restarted()
    rm.come_back("ada", (0, "slice-1", 1), (1, "slice-1", 1))
    assert {(one.virtual_index, one.slice_id) for one in rm.heard("ada", m.TellUnplaced)} == {
        (0, "slice-1"),
        (1, "slice-1"),
    }
    assert {(one.virtual_index, one.slice_id) for one in rm.heard("ada", m.TellPlaced)} == {
        (0, "slice-0"),
        (1, "slice-1"),
    }


def test_a_tenant_that_the_disk_does_not_know_has_lost_its_slices() -> None:
    rm = busy()
    rm.release("bob")
    fresh = rm.restarted()
    fresh.come_back("bob", (0, "slice-2", 3))
    assert fresh.refusal("bob").kind is m.RefusalKind.LOST


def test_a_tenant_of_a_type_that_the_service_no_longer_has_is_forgotten() -> None:
    rm = Rm({SMALL: 1, OTHER: 1})
    rm.ask("ada", (OTHER,))
    fresh = rm.restarted(slices={SMALL: 1})
    assert fresh.tenants == []
    assert fresh.grants == {}
    fresh.come_back("ada", (0, "tpuv5e-2x2-0", 1))
    assert fresh.refusal("ada").kind is m.RefusalKind.UNKNOWN_TYPE


def test_what_was_lost_may_take_a_spare_after_a_restart_and_what_was_missing_may_not() -> None:
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


def test_an_end_of_the_wait_falls_due_across_a_restart() -> None:
    rm = busy()
    rm.ask("zoe", 1, queue=10.0)
    fresh = rm.restarted()
    fresh.come_back("zoe")
    fresh.after(10.0)
    assert fresh.refusal("zoe").kind is m.RefusalKind.SLICES_TAKEN


# ---- without the disk


def test_without_the_disk_claims_are_believed() -> None:
    rm = busy().restarted(state_lost=True)
    assert rm.state == "recovering"
    rm.come_back("ada", (0, "slice-0", 1), (1, "slice-1", 2))
    all_join(rm)
    rm.come_back("bob", (0, "slice-2", 3))
    assert rm.state == "recovering", "nobody knows who else there is"
    rm.after(21.0)
    assert rm.state == "serving"
    assert rm.placed("ada") == {0: ("slice-0", 1), 1: ("slice-1", 2)}
    assert rm.placed("bob") == {0: ("slice-2", 3)}
    assert not rm.heard("ada", m.TellUnplaced)
    rm.release("bob")
    rm.ask("new", 1)
    assert rm.placed("new")[0][1] > 3


def test_without_the_disk_the_later_of_two_claims_wins() -> None:
    rm = Rm(2)
    rm.ask("ada", 1)
    rm.ask("bob", 1)
    fresh = rm.restarted(state_lost=True)
    fresh.come_back("ada", (0, "slice-0", 1))
    fresh.come_back("bob", (0, "slice-0", 2))
    (lost,) = fresh.heard("ada", m.TellUnplaced)
    assert (lost.slice_id, lost.generation) == ("slice-0", 1)
    assert fresh.placed("bob") == {0: ("slice-0", 2)}
    fresh.asked["eve"] = dataclasses.replace(fresh.asked["ada"], tenant="eve", incarnation="eve/1")
    fresh.come_back("eve", (0, "slice-0", 1))
    assert fresh.refusal("eve").kind is m.RefusalKind.LOST


def test_without_the_disk_impossible_claims_are_not_believed() -> None:
    rm = Rm({SMALL: 1, OTHER: 1}).restarted(state_lost=True)
    rm.join("slice-0")
    rm.join("tpuv5e-2x2-0", kind=OTHER)
    for index, claim in enumerate(
        (
            (0, "slice-0", 0),
            (0, "slice-0", 2**63),
            (7, "slice-0", 1),
            (0, "tpuv5e-2x2-0", 1),
        )
    ):
        tenant = f"t{index}"
        rm.asked[tenant] = m.TenantAsked(tenant=tenant, incarnation=tenant, virtual_slices=(SMALL,))
        rm.come_back(tenant, claim)
        assert rm.refusal(tenant).kind is m.RefusalKind.LOST, claim


def test_without_the_disk_a_gang_that_lost_one_goes_on_with_the_rest() -> None:
    rm = Rm(3)
    rm.ask("ada", 3)
    fresh = rm.restarted(state_lost=True)
    all_join(fresh)
    fresh.end_worker("slice-1")
    fresh.come_back("ada", (0, "slice-0", 1), (1, "slice-1", 2), (2, "slice-2", 3))
    assert [one.slice_id for one in fresh.heard("ada", m.TellUnplaced)] == ["slice-1"]
    assert fresh.on("ada") == ["slice-0", "slice-2"]
    assert not fresh.heard("ada", m.TellRunning), "it is not whole"
    fresh.after(21.0)
    fresh.join("slice-1", life="2")
    assert len(fresh.placed("ada")) == 3
    assert len(fresh.heard("ada", m.TellRunning)) == 1


def test_without_the_disk_what_was_never_placed_does_not_take_a_spare() -> None:
    rm = Rm(3, spares=1)
    rm.ask("ada", 3, elastic=1)
    fresh = rm.restarted(state_lost=True)
    all_join(fresh)
    fresh.come_back("ada", (0, "slice-0", 1), (1, "slice-1", 2))
    fresh.after(21.0)
    assert fresh.on("ada") == ["slice-0", "slice-1"]
    fresh.end_worker("slice-0")
    assert fresh.on("ada") == ["slice-2", "slice-1"]


def test_a_restart_amid_the_recovery_from_a_lost_disk_believes_claims_again() -> None:
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


def test_without_the_disk_two_claims_of_one_slice_are_one() -> None:
    rm = Rm(3)
    rm.ask("ada", 2)
    fresh = rm.restarted(state_lost=True)
    all_join(fresh)
    fresh.come_back("ada", (0, "slice-0", 1), (1, "slice-0", 2))
    assert fresh.placed("ada") == {1: ("slice-0", 2)}
    (lost,) = fresh.heard("ada", m.TellUnplaced)
    assert (lost.virtual_index, lost.generation) == (0, 1)
    fresh.after(21.0)
    assert fresh.on("ada") == ["slice-1", "slice-0"]
    fresh.release("ada")
    fresh.ask("bob", 3)
    assert len(fresh.placed("bob")) == 3


def test_without_the_disk_a_slice_that_broke_before_its_claim_came_is_lost() -> None:
    rm = busy().restarted(state_lost=True)
    all_join(rm)
    rm.end_worker("slice-0")
    rm.join("slice-0", life="2")
    rm.come_back("ada", (0, "slice-0", 1), (1, "slice-1", 2))
    assert [one.slice_id for one in rm.heard("ada", m.TellUnplaced)] == ["slice-0"]
    assert rm.on("ada") == ["slice-1"]
    rm.after(21.0)
    assert rm.placed("ada")[0][1] > 3, "it is placed again"


def test_without_the_disk_a_worker_that_is_new_has_lost_its_slice() -> None:
    for claim_first in (False, True):
        rm = busy().restarted(state_lost=True)
        if not claim_first:
            rm.join("slice-0", life="2")
        rm.come_back("ada", (0, "slice-0", 1), (1, "slice-1", 2))
        if claim_first:
            rm.join("slice-0", life="2")
        assert [one.slice_id for one in rm.heard("ada", m.TellUnplaced)] == ["slice-0"]
        assert rm.on("ada") == ["slice-1"]


def test_without_the_disk_a_worker_younger_than_the_placement_has_lost_its_slice() -> None:
    for claim_first in (False, True):
        between = busy().restarted()
        between.join("slice-0", life="2")
        rm = between.restarted(state_lost=True)
        if not claim_first:
            rm.join("slice-0", life="2")
        rm.come_back("ada", (0, "slice-0", 1), (1, "slice-1", 2))
        if claim_first:
            rm.join("slice-0", life="2")
        assert [one.slice_id for one in rm.heard("ada", m.TellUnplaced)] == ["slice-0"]
        assert rm.on("ada") == ["slice-1"]


def test_without_the_disk_a_tenant_whose_slices_are_all_lost_is_placed_again() -> None:
    rm = busy().restarted(state_lost=True)
    rm.join("slice-2", life="2")
    rm.come_back("bob", (0, "slice-2", 3))
    assert rm.placed("bob") == {}
    assert rm.tenant("bob").state is TenantState.RUNNING
    rm.after(21.0)
    assert rm.on("bob") == ["slice-2"]
    assert rm.placed("bob")[0][1] > 3


def test_without_the_disk_a_tenant_that_had_no_slice_left_still_runs() -> None:
    rm = Rm(1)
    rm.ask("ada", 1)
    rm.end_worker("slice-0")
    fresh = rm.restarted(state_lost=True)
    fresh.ask("new", 1, queue=math.inf)
    fresh.asked["ada"] = dataclasses.replace(fresh.asked["ada"], running=True)
    fresh.come_back("ada")
    fresh.join("slice-0", life="2")
    fresh.after(21.0)
    assert fresh.on("ada") == ["slice-0"], "it goes before those that never ran"
    assert fresh.queue == ["new"]


def test_without_the_disk_who_comes_late_has_its_slices_unless_they_were_given_away() -> None:
    rm = Rm(2)
    rm.ask("ada", 1)
    rm.ask("bob", 1)
    fresh = rm.restarted(state_lost=True)
    for index in range(2):
        fresh.join(f"slice-{index}")
    fresh.after(21.0)
    fresh.ask("new", 1)
    assert fresh.on("new") == ["slice-0"]
    fresh.come_back("ada", (0, "slice-0", 1))
    assert fresh.refusal("ada").kind is m.RefusalKind.LOST
    fresh.come_back("bob", (0, "slice-1", 2))
    assert fresh.placed("bob") == {0: ("slice-1", 2)}
    fresh.release("bob")
    fresh.said.clear()
    fresh.do(dataclasses.replace(fresh.asked["bob"], incarnation="bob/2"))
    assert fresh.placed("bob")[0][1] > 3


def test_a_service_whose_workers_are_all_new_is_new() -> None:
    rm = Rm({SMALL: 1, TWO_HOSTS: 1}, ready=False, state_lost=True)
    rm.ask("ada", 1)
    rm.join("slice-0")
    rm.join("s", 0, kind=TWO_HOSTS)
    assert rm.state == "recovering"
    assert not rm.heard("ada", m.RefuseTenant)
    rm.join("s", 1, kind=TWO_HOSTS)
    assert rm.state == "serving"
    assert rm.on("ada") == ["slice-0"]


def test_a_service_with_one_worker_of_before_is_not_new() -> None:
    rm = busy().restarted(state_lost=True)
    rm.join("slice-0", life="2")
    rm.join("slice-1", life="2")
    rm.join("slice-2")
    assert rm.state == "recovering"
    rm.come_back("bob", (0, "slice-2", 3))
    assert rm.on("bob") == ["slice-2"]


def test_when_all_workers_were_replaced_with_the_disk_tenants_are_placed_again() -> None:
    rm = busy().restarted(state_lost=True)
    for index in range(3):
        rm.join(f"slice-{index}", life="2")
    assert rm.state == "serving", "nobody holds anything any more"
    rm.come_back("ada", (0, "slice-0", 1), (1, "slice-1", 2))
    assert len(rm.heard("ada", m.TellUnplaced)) == 2
    assert rm.on("ada") == ["slice-0", "slice-1"]
    assert min(generation for _, generation in rm.placed("ada").values()) > 3


def test_who_wants_more_than_a_smaller_service_has_blocks_nobody() -> None:
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


def test_without_the_disk_a_proxy_is_told_no_generation_below_one_that_it_knows() -> None:
    rm = Rm(1, ready=False, state_lost=True)
    ahead = int((rm.now + 3600.0) * 1000)  # of a manager whose clock was an hour ahead
    for tenant, knows in (("ada", ahead), ("liar", 2**63)):
        rm.asked[tenant] = m.TenantAsked(
            tenant=tenant,
            incarnation=tenant,
            virtual_slices=(SMALL,),
            running=True,
            last_generation=knows,
        )
        rm.come_back(tenant)
    rm.join("slice-0")
    rm.after(21.0)
    assert rm.placed("ada") == {0: ("slice-0", ahead + 1)}


def waits_again(rm: Rm, tenant: str, *, queue: float | None = None) -> None:
    """The proxy of a tenant that was preempted before the state was lost comes back."""
    rm.asked[tenant] = m.TenantAsked(
        tenant=tenant,
        incarnation=f"{tenant}/1",
        virtual_slices=(SMALL,),
        queue_timeout_s=queue,
        last_generation=1,
    )
    rm.come_back(tenant)


@pytest.mark.parametrize("queue", [None, 5.0])
@pytest.mark.parametrize("late", [False, True])
def test_without_the_disk_who_was_preempted_waits_for_as_long_as_it_takes(
    queue: float | None, late: bool
) -> None:
    rm = Rm(1)
    rm.ask("low", 1)
    rm.ask("vip", 1, priority=1, queue=math.inf)
    rm.after(30.0)
    where = rm.placed("vip")[0]
    fresh = rm.restarted(state_lost=True)
    fresh.join("slice-0")
    fresh.come_back("vip", (0, *where))
    if late:
        fresh.after(21.0)
        assert fresh.state == "serving"
    waits_again(fresh, "low", queue=queue)
    fresh.after(60.0)
    assert fresh.queue == ["low"]
    again = fresh.restarted(state_lost=False)
    again.join("slice-0")
    again.come_back("vip", (0, *where))
    again.come_back("low")
    again.after(60.0)
    assert again.queue == ["low"]
    again.release("vip")
    assert again.on("low") == ["slice-0"]


def test_without_the_disk_who_comes_too_late_to_be_believed_waits_as_anybody() -> None:
    rm = Rm(1, ready=False, state_lost=True, recovering_s=20.0)
    rm.welcomed["slice-0/0/1"] = 1
    rm.join("slice-0")
    rm.after(21.0 + rm.config.tenant_ttl_s)
    rm.ask("new", 1)
    waits_again(rm, "low")
    assert rm.refusal("low").kind is m.RefusalKind.SLICES_TAKEN


def test_a_service_that_a_tenant_had_slices_of_is_not_new() -> None:
    rm = Rm(1, ready=False, state_lost=True)
    waits_again(rm, "low")
    rm.join("slice-0")
    assert rm.state == "recovering"
    rm.after(21.0)
    assert rm.on("low") == ["slice-0"]
