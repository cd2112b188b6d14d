"""The queue: its order, what those in it are told, and how a wait ends; and the time to live."""

from __future__ import annotations

import math
from typing import Any

import pytest

from shared_pathways_service.scheduling.book import messages as m
from tests.scheduling.harness import OTHER, SMALL, Rm, name


def full(**config: Any) -> Rm:
    """A service of two slices that ada holds."""
    rm = Rm(2, **config)
    rm.ask("ada", 2)
    rm.said.clear()
    return rm


def test_a_queue_update_has_position_reason_and_holders() -> None:
    rm = full()
    rm.ask("bob", 1, queue=60.0)
    rm.ask("eve", 2, queue=math.inf)
    (bob,) = rm.heard("bob", m.NotifyQueued)
    (eve,) = rm.heard("eve", m.NotifyQueued)
    assert (bob.position, eve.position) == (1, 2)
    assert bob.reason == "no tpuv6e:2x2 slice is free (1 wanted)"
    assert bob.holders == ("ada@laptop: 2 x tpuv6e:2x2",)
    assert rm.announced() == ["tenant.queued", "tenant.queued"]
    entry = rm.core.status(rm.now).queue[0]
    assert (entry.tenant, entry.position, entry.wants) == ("bob", 1, {"tpuv6e:2x2": 1})
    assert (entry.reason, entry.holders) == (bob.reason, bob.holders)


def test_a_release_places_the_next_tenant_and_notifies_the_rest() -> None:
    rm = full()
    rm.ask("bob", 2, queue=60.0)
    rm.ask("eve", 1, queue=60.0)
    rm.said.clear()
    rm.release("ada")
    assert rm.on("bob") == ["slice-0", "slice-1"]
    rm.after(2.0)
    told = rm.heard("eve", m.NotifyQueued)[-1]
    assert told.position == 1
    assert told.holders == ("bob@laptop: 2 x tpuv6e:2x2",)


def test_the_queue_is_in_order_of_priority_then_of_arrival() -> None:
    rm = full()
    for tenant, priority in (("low", -1), ("bob", 0), ("eve", 0), ("vip", 5)):
        rm.ask(tenant, 2, priority=priority, queue=math.inf)
    assert rm.queue == ["vip", "bob", "eve", "low"]
    for holder, following in (("ada", "vip"), ("vip", "bob"), ("bob", "eve"), ("eve", "low")):
        rm.release(holder)
        assert len(rm.placed(following)) == 2


def test_the_head_of_the_queue_is_not_overtaken() -> None:
    rm = Rm(3)
    rm.ask("ada", 1)
    rm.ask("max", 1)
    rm.ask("bob", 3, queue=math.inf)
    rm.ask("eve", 1, queue=math.inf)
    assert rm.queue == ["bob", "eve"], "one slice is free, and it is bob's turn"
    rm.ask("now", 1)
    assert rm.refusal("now").kind is m.RefusalKind.SLICES_TAKEN
    rm.ask("vip", 1, priority=1)
    assert rm.on("vip") == ["slice-2"], "a higher priority goes first"


def test_gangs_that_share_no_type_do_not_wait_for_each_other() -> None:
    rm = Rm({SMALL: 1, OTHER: 1})
    rm.ask("ada", (SMALL,))
    rm.ask("bob", (SMALL,), queue=math.inf)
    rm.ask("eve", (OTHER,))
    assert rm.on("eve") == ["tpuv5e-2x2-0"]


def test_a_gang_of_two_types_holds_its_place_in_both_lines() -> None:
    rm = Rm({SMALL: 1, OTHER: 1})
    rm.ask("ada", (SMALL,))
    rm.ask("bob", (SMALL, OTHER), queue=math.inf)
    rm.ask("eve", (OTHER,), queue=math.inf)
    assert rm.queue == ["bob", "eve"], "bob is first in both"
    assert rm.core.status(rm.now).queue[1].position == 2
    rm.release("ada")
    assert len(rm.placed("bob")) == 2
    rm.release("bob")
    assert rm.on("eve") == ["tpuv5e-2x2-0"]


def test_a_gang_of_two_types_does_not_overtake_in_either_queue() -> None:
    rm = Rm({SMALL: 1, OTHER: 2})
    rm.ask("ada", (OTHER,))
    rm.ask("bob", (OTHER, OTHER), queue=math.inf)
    rm.ask("eve", (SMALL, OTHER), queue=math.inf)
    assert rm.queue == ["bob", "eve"], "one of each is free, and the other one is bob's first"
    rm.release("ada")
    assert len(rm.placed("bob")) == 2
    rm.release("bob")
    assert len(rm.placed("eve")) == 2


def test_a_queue_timeout_reports_the_last_position() -> None:
    rm = full()
    rm.ask("bob", 1, queue=100.0)
    rm.ask("eve", 1, queue=60.0)
    rm.after(59.0)
    assert rm.queue == ["bob", "eve"]
    rm.after(2.0)
    refused = rm.refusal("eve")
    assert refused.kind is m.RefusalKind.SLICES_TAKEN
    assert refused.position == 2
    assert refused.holders == ("ada@laptop: 2 x tpuv6e:2x2",)
    assert "60 s" in refused.message
    assert rm.queue == ["bob"]
    assert "eve" not in rm.grants


def test_a_timeout_at_the_head_of_the_queue_places_the_next() -> None:
    rm = Rm(2)
    rm.ask("ada", 1)
    rm.ask("bob", 2, queue=10.0)
    rm.ask("eve", 1, queue=math.inf)
    rm.after(11.0)
    assert rm.refusal("bob").position == 1
    assert rm.on("eve") == ["slice-1"]


def test_an_infinite_wait_has_no_deadline() -> None:
    rm = full(starting_grace_s=0.0, hung_after_s=math.inf)
    rm.ask("bob", 1, queue=math.inf)
    rm.do(m.Tick())
    rm.after(5.0)
    due = rm.core.next_deadline()
    assert due is None or due == math.inf


def test_queue_updates_are_batched_and_reach_every_tenant() -> None:
    rm = full(retell_s=1.0)
    names = [f"t{i:02}" for i in range(30)]
    for tenant in names:
        rm.ask(tenant, 2, queue=math.inf)
    rm.after(5.0)
    rm.said.clear()
    for holder in ("ada", "t00", "t01", "t02"):
        rm.release(holder)
    at_once = sum(isinstance(one, m.NotifyQueued) for one in rm.said)
    assert at_once <= 8, "the cost of an event does not grow with the line"
    assert at_once >= 1, "the head of a quiet line hears at once"
    rm.after(2.0)
    for position, tenant in enumerate(names[4:], start=1):
        assert rm.heard(tenant, m.NotifyQueued)[-1].position == position


def test_a_single_change_is_sent_to_the_whole_queue() -> None:
    rm = full(retell_s=1.0)
    names = [f"t{i:02}" for i in range(20)]
    for tenant in names:
        rm.ask(tenant, 2, queue=math.inf)
    rm.after(5.0)
    rm.release("ada")
    rm.after(1.1)
    for position, tenant in enumerate(names[1:], start=1):
        assert rm.heard(tenant, m.NotifyQueued)[-1].position == position


def test_unchanged_queue_updates_are_not_repeated() -> None:
    rm = full()
    rm.ask("bob", 1, queue=math.inf)
    rm.said.clear()
    rm.beat()
    rm.after(20.0)
    assert not rm.heard("bob", m.NotifyQueued)


def test_of_many_holders_the_first_are_named() -> None:
    rm = Rm(12)
    for index in range(12):
        rm.ask(f"t{index}", 1)
    rm.ask("bob", 1, queue=math.inf)
    (told,) = rm.heard("bob", m.NotifyQueued)
    assert len(told.holders) == 11
    assert told.holders[-1] == "and 2 more of tpuv6e:2x2"


# ---- streams that break


def test_slices_are_a_tenants_for_the_time_to_live_after_its_stream_broke() -> None:
    rm = full(tenant_ttl_s=15.0)
    rm.ask("bob", 1, queue=math.inf)
    rm.said.clear()
    rm.cut("ada")
    assert rm.announced() == ["tenant.disconnected"]
    rm.after(14.9)
    assert rm.queue == ["bob"]
    rm.after(0.2)
    assert rm.on("bob") == ["slice-0"]
    assert "tenant.gone" in rm.announced()
    assert "ada" not in rm.grants
    rm.come_back("ada", (0, "slice-0", 1), (1, "slice-1", 2))
    assert rm.refusal("ada").kind is m.RefusalKind.LOST


def test_a_new_stream_of_the_same_proxy_stops_the_clock() -> None:
    rm = full(tenant_ttl_s=15.0)
    rm.cut("ada")
    rm.after(10.0)
    rm.said.clear()
    rm.come_back("ada", (0, "slice-0", 1), (1, "slice-1", 2))
    assert [type(one).__name__ for one in rm.said] == ["WelcomeTenant", "Announce", "NotifyRunning"]
    rm.after(100.0)
    assert rm.on("ada") == ["slice-0", "slice-1"]
    rm.cut("ada")
    rm.after(10.0)
    assert rm.on("ada") == ["slice-0", "slice-1"], "the clock starts anew"


def test_a_reconnected_proxy_receives_what_it_missed() -> None:
    rm = Rm(2)
    rm.ask("ada", 1)
    rm.cut("ada")
    rm.end_worker("slice-0")
    assert rm.on("ada") == ["slice-1"]
    rm.said.clear()
    rm.come_back("ada", (0, "slice-0", 1))
    (lost,) = rm.heard("ada", m.NotifyUnplaced)
    (placed,) = rm.heard("ada", m.NotifyPlaced)
    assert (lost.slice_id, lost.generation) == ("slice-0", 1)
    assert (placed.slice_id, placed.generation) == ("slice-1", 2)
    assert rm.said.index(lost) < rm.said.index(placed)


def test_a_proxy_without_a_stream_receives_nothing() -> None:
    rm = Rm(2)
    rm.ask("ada", 1)
    rm.cut("ada")
    rm.said.clear()
    rm.end_worker("slice-0")
    assert not rm.heard("ada", m.NotifyUnplaced)
    assert not rm.heard("ada", m.NotifyPlaced)
    assert rm.announced("slice.unplaced", "slice.placed") == ["slice.unplaced", "slice.placed"]


def test_a_place_in_the_queue_outlives_a_broken_stream_too() -> None:
    rm = full(tenant_ttl_s=15.0)
    rm.ask("bob", 1, queue=math.inf)
    rm.ask("eve", 1, queue=math.inf)
    rm.cut("bob")
    rm.after(10.0)
    rm.said.clear()
    rm.come_back("bob")
    assert rm.queue == ["bob", "eve"]
    assert rm.heard("bob", m.NotifyQueued)[0].position == 1
    rm.cut("bob")
    rm.after(16.0)
    assert rm.queue == ["eve"]
    rm.come_back("bob")
    assert rm.refusal("bob").kind is m.RefusalKind.LOST


def test_a_waiting_tenant_without_a_stream_is_placed_and_notified_on_return() -> None:
    rm = full()
    rm.ask("bob", 1, queue=math.inf)
    rm.cut("bob")
    rm.release("ada")
    rm.said.clear()
    rm.come_back("bob")
    assert [one.slice_id for one in rm.heard("bob", m.NotifyPlaced)] == ["slice-0"]
    assert len(rm.heard("bob", m.NotifyRunning)) == 1


def test_a_reconnected_proxy_receives_its_queue_timeout() -> None:
    rm = full(tenant_ttl_s=15.0)
    rm.ask("bob", 1, queue=5.0)
    rm.cut("bob")
    rm.after(6.0)
    assert not rm.heard("bob", m.RefuseTenant)
    rm.come_back("bob")
    assert rm.refusal("bob").kind is m.RefusalKind.SLICES_TAKEN


def test_the_name_of_a_live_tenant_is_reserved() -> None:
    rm = full()
    _, ended = rm.ask("ada", 1, life="2")  # (behind its place in the history)
    assert isinstance(ended, m.EndTenantStream)
    assert ended.incarnation == "ada/2"
    assert ended.reason == "ada is another proxy's, which is alive"
    assert rm.on("ada") == ["slice-0", "slice-1"]


def test_the_name_of_a_tenant_that_may_return_is_reserved() -> None:
    rm = full(tenant_ttl_s=15.0)
    rm.cut("ada")
    rm.after(5.0)
    _, ended = rm.ask("ada", 1, life="2")  # (behind its place in the history)
    assert isinstance(ended, m.EndTenantStream)
    assert ended.reason == "ada is another proxy's, which may come back for 10.0 s"


# ---- releases


@pytest.mark.parametrize("incarnation", ["", "ada/1"])
def test_a_release_frees_at_once_and_is_announced(incarnation: str) -> None:
    rm = full()
    rm.do(m.TenantReleased(tenant="ada", reason="its owner let go", incarnation=incarnation))
    refused = rm.refusal("ada")
    assert (refused.kind, refused.message) == (m.RefusalKind.RELEASED, "its owner let go")
    assert rm.tenants == []
    assert not rm.core.knows("ada")
    rm.ask("bob", 2)
    assert len(rm.placed("bob")) == 2
    rm.said.clear()
    rm.come_back("ada")
    assert rm.refusal("ada").kind is m.RefusalKind.RELEASED


def test_a_release_of_another_or_unknown_tenant_changes_nothing() -> None:
    rm = full()
    assert rm.core.knows("ada", "ada/1")
    assert not rm.core.knows("ada", "ada/2")
    rm.do(m.TenantReleased(tenant="ada", reason="x", incarnation="ada/2"))
    rm.do(m.TenantReleased(tenant="nobody", reason="x"))
    assert rm.said == []
    assert len(rm.placed("ada")) == 2


def test_who_waits_can_be_released() -> None:
    rm = full()
    rm.ask("bob", 1, queue=math.inf)
    rm.release("bob")
    assert rm.queue == []
    assert "bob" not in rm.grants


def test_slices_that_others_wait_for_too_are_not_counted_below_none() -> None:
    rm = Rm({SMALL: 2, OTHER: 2}, ready=False)
    rm.join("slice-0")
    rm.ask("ada", 1)
    rm.ask("bob", 2, queue=math.inf)
    rm.ask("eve", (SMALL, OTHER, OTHER), elastic=1)
    assert rm.heard("eve", m.RefuseTenant) == [], "two of the other type are enough, and will come"
    for index in range(2):
        rm.join(name(OTHER, index), kind=OTHER)
    assert len(rm.placed("eve")) == 2


# ---- the words


def reasons(rm: Rm) -> dict[str, str]:
    return {entry.tenant: entry.reason for entry in rm.core.status(rm.now).queue}


def two_types(**config: Any) -> Rm:
    """A service where ada waits for both types, and leaves one free slice too few for eve."""
    rm = Rm({SMALL: 2, OTHER: 2}, **config)
    rm.ask("max", (OTHER, OTHER))
    rm.ask("ada", (SMALL, SMALL, OTHER, OTHER), queue=math.inf)
    rm.ask("eve", 1, queue=60.0)
    return rm


def test_a_tenant_behind_another_reads_who_that_is_and_what_it_waits_for() -> None:
    rm = two_types()
    behind = "2 tpuv6e:2x2 slices are free (1 wanted), behind ada@laptop, which waits for "
    assert reasons(rm)["eve"] == f"{behind}2 x tpuv5e:2x2"
    assert reasons(rm)["ada"] == (
        "2 tpuv6e:2x2 slices are free (2 wanted); no tpuv5e:2x2 slice is free (2 wanted)"
    )
    rm.after(60.0)
    refused = rm.refusal("eve")
    assert refused.message == f"{behind}2 x tpuv5e:2x2; at position 2 after 60 s"
    assert not refused.waiting_is_futile


def test_a_tenant_is_told_when_the_one_before_it_waits_for_another_type() -> None:
    rm = two_types()
    rm.ask("bob", 2, queue=math.inf)
    rm.after(5.0)
    assert rm.heard("eve", m.NotifyQueued)[-1].reason.endswith("waits for 2 x tpuv5e:2x2")
    rm.said.clear()
    rm.end_worker("slice-0")
    rm.after(5.0)
    assert rm.heard("bob", m.NotifyQueued)[-1].reason == (
        "1 tpuv6e:2x2 slice is free (2 wanted; 1 of 2 is not ready); "
        "1 more slice of tpuv6e:2x2 has to become ready"
    )
    told = rm.heard("eve", m.NotifyQueued)[-1].reason
    assert told == (
        "1 tpuv6e:2x2 slice is free (1 wanted; 1 of 2 is not ready), behind ada@laptop, which "
        "waits for 2 x tpuv6e:2x2 and 2 x tpuv5e:2x2"
    )
    rm.said.clear()
    rm.release("max")  # that changes the other type only
    rm.after(5.0)
    told = rm.heard("eve", m.NotifyQueued)[-1].reason
    assert told.endswith("behind ada@laptop, which waits for 2 x tpuv6e:2x2")


def test_a_cordoned_slice_that_a_tenant_needs_is_named_with_what_to_do() -> None:
    rm = Rm(2, starting_grace_s=0.0)
    rm.cordon("slice-0")
    rm.ask("ada", 2, queue=math.inf)
    rm.ask("bob", 1)
    uncordon = "1 more slice of tpuv6e:2x2 has to be uncordoned (`sps uncordon`)"
    assert reasons(rm)["ada"] == (
        f"1 tpuv6e:2x2 slice is free (2 wanted; 1 of 2 is cordoned); {uncordon}"
    )
    refused = rm.refusal("bob")
    assert refused.message == (
        "1 tpuv6e:2x2 slice is free (1 wanted; 1 of 2 is cordoned), behind ada@laptop, which "
        "waits for 2 x tpuv6e:2x2"
    )
    assert not refused.waiting_is_futile
    rm.ask("eve", 2)
    assert rm.refusal("eve").waiting_is_futile
    assert uncordon in rm.refusal("eve").message
    rm.uncordon("slice-0")
    assert len(rm.on("ada")) == 2


def test_waiting_for_reservations_that_outlast_the_own_lifetime_does_not_help() -> None:
    rm = Rm(2, starting_grace_s=0.0)
    rm.reserve(2, user="zoe", ends_in=100.0)
    rm.ask("ada", 1, lifetime=50.0)
    rm.ask("bob", 1, lifetime=150.0)
    assert rm.refusal("ada").waiting_is_futile
    assert "max_lifetime" in rm.refusal("ada").message
    assert not rm.refusal("bob").waiting_is_futile
    assert rm.refusal("bob").free == {"tpuv6e:2x2": 0}, "both are reserved"
