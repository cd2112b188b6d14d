"""Idleness: when a tenant is warned, and when its slices are released."""

from __future__ import annotations

import pytest

from shared_pathways_service.events.recorded_decisions import DecisionKind
from shared_pathways_service.scheduling.book import messages as m
from shared_pathways_service.scheduling.book.config import RmConfig
from shared_pathways_service.scheduling.book.decisions import Decision
from shared_pathways_service.scheduling.book.states import TenantState
from shared_pathways_service.scheduling.event_log import decisions_of
from shared_pathways_service.scheduling.history.explanations import explain
from tests.scheduling.harness import SMALL, Rm
from tests.scheduling.policies.idle_scenes import RELEASE_S, WARNING_S, running, service, warned
from tests.scheduling.policies.scenes import GRACE_S, noticed


def test_an_idle_tenant_is_warned_and_loses_its_slices() -> None:
    rm = running()
    rm.after(RELEASE_S - WARNING_S - 1)
    assert rm.heard("ada", m.NotifyIdle) == []
    rm.after(1)
    (told,) = rm.heard("ada", m.NotifyIdle)
    assert (told.idle_s, told.release_s) == (RELEASE_S - WARNING_S, WARNING_S)
    assert (told.withdrawn, told.released) == (False, False)
    assert rm.announced("tenant.idling") == ["tenant.idling"]
    assert rm.tenant("ada").idle_release_s == WARNING_S
    rm.tell("ada", 1, told.idle_s)
    rm.said.clear()

    rm.after(WARNING_S - 1)
    assert rm.on("ada") == ["slice-0"], "it was told of more time"
    rm.after(1)
    (lost,) = rm.heard("ada", m.NotifyUnplaced)
    assert lost.reason == "released: idle for 600 s"
    (told,) = rm.heard("ada", m.NotifyIdle)
    assert (told.idle_s, told.released) == (RELEASE_S, True)
    assert rm.announced("tenant.idled") == ["tenant.idled"]
    assert rm.tenant("ada").state is TenantState.IDLE
    assert rm.queue == [], "it keeps nobody from anything"
    rm.ask("eve", 1)
    assert rm.on("eve") == ["slice-0"]


def test_work_withdraws_the_warning_and_restarts_the_time() -> None:
    rm = warned()
    rm.after(WARNING_S - 1)
    rm.said.clear()
    rm.tell("ada", 2)
    assert [one.withdrawn for one in rm.heard("ada", m.NotifyIdle)] == [True]
    assert rm.announced() == ["tenant.idling_withdrawn"]
    rm.said.clear()
    rm.after(RELEASE_S - WARNING_S - 1)
    assert rm.heard("ada", m.NotifyIdle) == []
    rm.after(1)
    assert len(rm.heard("ada", m.NotifyIdle)) == 1


def test_work_withdraws_it_also_after_the_warning_was_answered() -> None:
    rm = warned()
    rm.tell("ada", 1, RELEASE_S - WARNING_S)
    rm.after(WARNING_S - 1)
    rm.tell("ada", 2)
    rm.after(RELEASE_S - WARNING_S - 1)
    assert rm.on("ada") == ["slice-0"]


def test_silence_alone_releases_no_slices() -> None:
    rm = warned()
    rm.after(10 * RELEASE_S)
    assert rm.on("ada") == ["slice-0"], "the warning was not answered"
    rm.tell("ada", 1, 11 * RELEASE_S)
    rm.after(0)
    assert rm.tenant("ada").state is TenantState.IDLE


def test_a_proxy_that_never_reports_keeps_its_slices() -> None:
    rm = service()
    rm.ask("old", 1)
    rm.after(100 * RELEASE_S)
    assert rm.on("old") == ["slice-0"]
    assert rm.tenant("old").idle_s is None


def test_without_the_policy_reports_change_nothing() -> None:
    rm = Rm(1)
    rm.ask("ada", 1)
    rm.tell("ada", 1, 1e6)
    rm.after(1e5)
    assert rm.on("ada") == ["slice-0"]


def test_a_tenant_that_never_worked_is_idle_since_its_placement() -> None:
    rm = service()
    rm.ask("ada", 1)
    rm.tell("ada", 0, 1e6)  # its process is old
    assert rm.tenant("ada").idle_s == 0
    rm.after(RELEASE_S - WARNING_S)
    assert len(rm.heard("ada", m.NotifyIdle)) == 1


def test_an_undeliverable_warning_is_sent_later() -> None:
    rm = running(tenant_ttl_s=1e4)
    rm.cut("ada")
    rm.after(RELEASE_S)
    assert rm.heard("ada", m.NotifyIdle) == []
    rm.come_back("ada", (0, *rm.placed("ada")[0]))
    rm.tell("ada", 1, RELEASE_S)
    rm.after(0)
    assert [one.release_s for one in rm.heard("ada", m.NotifyIdle)] == [WARNING_S]


def test_a_disconnected_tenant_keeps_its_slices() -> None:
    rm = warned(tenant_ttl_s=1e4)
    rm.tell("ada", 1, RELEASE_S - WARNING_S)
    rm.cut("ada")
    rm.after(WARNING_S)
    assert rm.on("ada") == ["slice-0"]


def test_a_warning_is_repeated_to_a_reconnecting_proxy() -> None:
    rm = warned()
    rm.cut("ada")
    rm.said.clear()
    rm.after(10)
    rm.come_back("ada", (0, *rm.placed("ada")[0]))
    assert [one.release_s for one in rm.heard("ada", m.NotifyIdle)] == [WARNING_S - 10]


def test_slices_of_an_idle_victim_go_to_its_preemptor() -> None:
    rm = warned(preemption_grace_s=1e4)
    rm.tell("ada", 1, RELEASE_S - WARNING_S)
    rm.ask("vip", 1, priority=5)
    assert rm.tenant("ada").preempting_by
    rm.after(WARNING_S)
    assert rm.on("vip") == ["slice-0"]
    assert rm.tenant("ada").state is TenantState.IDLE
    rm.tell("ada", 2)
    assert rm.tenant("ada").state is TenantState.WAITING


def test_preemption_ends_a_warning() -> None:
    rm = warned(preemption_grace_s=1.0)
    rm.tell("ada", 1, RELEASE_S - WARNING_S)
    rm.ask("vip", 1, priority=5)
    rm.after(1)
    assert rm.tenant("ada").state is TenantState.PREEMPTED
    rm.after(1e4)
    assert rm.queue == ["ada"]


def test_an_unplaced_elastic_slice_is_no_longer_wanted() -> None:
    rm = service(2)
    rm.ask("eve", 1)
    rm.ask("ada", 2, elastic=1)
    rm.tell("ada", 1)
    rm.after(RELEASE_S - WARNING_S)
    rm.tell("ada", 1, RELEASE_S - WARNING_S)
    rm.after(WARNING_S)
    assert rm.tenant("ada").state is TenantState.IDLE
    rm.release("eve")
    assert rm.on("ada") == []
    rm.tell("ada", 2)
    assert sorted(rm.on("ada")) == ["slice-0", "slice-1"]


def test_history_and_explanation_state_idleness() -> None:
    rm = warned()
    decisions: list[Decision] = []

    def told() -> str:
        found = explain("ada", rm.core.status(rm.now), decisions, {}, rm.now)
        assert found is not None
        return "\n".join(found.sentences)

    assert "It is idle for 9 min; its slices are taken back in 60 s if it stays so" in told()
    rm.tell("ada", 1, RELEASE_S - WARNING_S)
    rm.said.clear()
    rm.after(WARNING_S)
    for one in rm.said:
        decisions += decisions_of([one])
    assert [one.kind for one in decisions] == [DecisionKind.UNPLACED, DecisionKind.IDLED]
    assert {one.reason for one in decisions} == {"released: idle for 600 s"}
    assert told().startswith("ada is idle and holds nothing for 0 s\nIt asks for its slices again")
    assert "Last, ada was idle, and its slices were taken back: released: idle for 600 s" in told()
    rm.ask("eve", 1)
    rm.tell("ada", 2)
    assert "Last, ada was idle" in told(), "why it waits"


@pytest.mark.parametrize(
    ("times", "named"),
    [
        ({"idle_release_s": 10.0, "idle_warning_s": 10.0}, "idle_warning_s=10.0"),
        ({"idle_release_s": 10.0, "idle_warning_s": -1.0}, "idle_warning_s=-1.0"),
        ({"idle_release_s": -1.0}, "idle_release_s=-1.0"),
    ],
)
def test_impossible_times_are_refused(times: dict[str, float], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        RmConfig(slices={SMALL: 1}, **times)  # type: ignore[arg-type]


def test_a_tenant_that_was_idle_waits_on_when_its_promise_ends() -> None:
    rm = service(preemption_grace_s=GRACE_S)
    rm.ask("ada", 1, priority=1)  # without a queue_timeout
    rm.tell("ada", 1)
    rm.after(RELEASE_S - WARNING_S)
    rm.tell("ada", 1, RELEASE_S - WARNING_S)
    rm.after(WARNING_S)
    rm.ask("low", 1)
    assert rm.on("low") == ["slice-0"]
    rm.tell("ada", 2)
    assert list(noticed(rm)) == ["low"]
    # Without the victim's slice there is nothing to promise.
    rm.end_worker("slice-0")
    assert noticed(rm) == {}
    rm.after(1.0)
    assert rm.heard("ada", m.RefuseTenant) == []
    assert rm.queue == ["ada"]
    rm.join("slice-0", life="2")
    rm.after(GRACE_S)
    assert rm.on("ada") == ["slice-0"]
