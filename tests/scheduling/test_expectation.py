"""What a waiting tenant may expect, told from past holdings alone; and why it waits."""

from __future__ import annotations

import math

import pytest

from shared_pathways_service.events.recorded_decisions import KINDS, DecisionKind
from shared_pathways_service.scheduling.book import messages as m
from shared_pathways_service.scheduling.book.decisions import Decision, sentence, span
from shared_pathways_service.scheduling.history.expectation import HoldingTimes, expect
from shared_pathways_service.scheduling.history.explanations import explain
from shared_pathways_service.scheduling.history.usage import Usage, UsageBy
from tests.scheduling.harness import OTHER, SMALL, Rm


def past(*lasted: float, kind: str = str(SMALL)) -> HoldingTimes:
    times = HoldingTimes()
    for seconds in lasted:
        times.add(
            Decision(
                time=1000.0 + seconds, kind=DecisionKind.FREED, instance_type=kind, began=1000.0
            )
        )
    return times


def waits(rm: Rm, times: HoldingTimes) -> dict[str, float | None]:
    found = expect(rm.core.status(rm.now), times, rm.now)
    return {name: one.wait_s for name, one in found.items()}


def test_nothing_is_expected_from_nothing() -> None:
    rm = Rm(1)
    rm.ask("ada")
    rm.ask("bob", queue=600.0)
    found = expect(rm.core.status(rm.now), past(), rm.now)
    assert found["bob"].wait_s is None
    assert found["bob"].basis == "no holding of tpuv6e:2x2 has ended yet"
    assert expect(Rm(1).core.status(0.0), past(10.0), 0.0) == {}


def test_each_waits_for_those_before_it() -> None:
    rm = Rm(1)
    rm.ask("ada")
    rm.ask("bob", queue=600.0)
    rm.ask("carol", queue=600.0)
    rm.after(10.0)
    times = past(100.0, 100.0)
    assert waits(rm, times) == {"bob": pytest.approx(90.0), "carol": pytest.approx(190.0)}


def test_who_held_long_already_is_like_those_that_held_longer() -> None:
    rm = Rm(1)
    rm.ask("ada")
    rm.ask("bob", queue=600.0)
    rm.after(50.0)
    assert waits(rm, past(10.0, 10.0, 80.0)) == {"bob": pytest.approx(30.0)}
    found = expect(rm.core.status(rm.now), past(10.0, 20.0), rm.now)
    assert found["bob"].wait_s is None
    assert found["bob"].basis == (
        "2 past holdings of tpuv6e:2x2, 15 s on average; "
        "who holds slices now has held them longer than any of these"
    )


def test_a_gang_waits_for_the_last_of_its_slices_and_spares_do_not_count() -> None:
    rm = Rm({SMALL: 3, OTHER: 1}, spares=0)
    rm.ask("ada", (SMALL,))
    rm.after(40.0)
    rm.ask("eve", (SMALL,))
    rm.ask("bob", (SMALL, SMALL, SMALL), queue=600.0)
    times = past(100.0)
    assert waits(rm, times) == {"bob": pytest.approx(100.0)}
    kept = Rm(3, spares=1)
    kept.ask("ada", 2)
    kept.ask("bob", 1, queue=600.0)
    kept.end_worker("slice-2")
    # (The spare is gone: of the two that are ready, one is kept back.)
    assert waits(kept, times) == {"bob": pytest.approx(100.0)}


def test_what_ended_by_a_loss_does_not_count() -> None:
    times = HoldingTimes()
    lost = Decision(
        time=9.0, kind=DecisionKind.UNPLACED, instance_type=str(SMALL), slice="s", began=1.0
    )
    times.add(lost)
    assert not times.of(str(SMALL)).is_known
    assert times.of(str(SMALL)).remaining(0.0) == math.inf


def test_a_tenant_is_explained_by_the_present_state() -> None:
    rm = Rm({SMALL: 1, OTHER: 1})
    rm.ask("ada", (SMALL,))
    rm.ask("bob", (SMALL, OTHER), queue=600.0)
    rm.ask("carol", (OTHER,), queue=600.0)
    rm.after(30.0)
    report = rm.core.status(rm.now)
    told = explain("carol", report, (), expect(report, past(60.0), rm.now), rm.now)
    assert told is not None
    assert (told.ahead, told.holders, dict(told.free)) == (("bob",), (), {str(OTHER): 1})
    assert told.sentences[0].startswith(
        "carol waits for 1 x tpuv5e:2x2 for 30 s, at position 2 with priority 0: "
    )
    ada = explain("ada", report, (), {}, rm.now)
    assert ada is not None
    assert ada.sentences == ("ada is running with 1 of 1 slices", "It holds slice-0 for 30 s")
    assert explain("nobody", report, (), {}, rm.now) is None
    ended = Decision(time=rm.now - 60, kind=DecisionKind.RELEASED, tenant="old", reason="done")
    old = explain("old", report, (ended,), {}, rm.now)
    assert old is not None
    assert old.sentences == ("old is gone for 60 s: old was released: done",)


def test_a_preemption_is_explained_before_and_after() -> None:
    rm = Rm({SMALL: 1}, preemption_grace_s=30.0)
    rm.ask("low", (SMALL,), queue=600.0)
    rm.ask("high", (SMALL,), queue=600.0, priority=1)
    rm.after(10.0)
    told = explain("low", rm.core.status(rm.now), (), {}, rm.now)
    assert told is not None
    assert told.state == "running"
    assert "It is about to be preempted, in 20 s, by high@laptop of priority 1" in told.sentences
    rm.after(20.0)
    preempted = Decision(
        time=rm.now, kind=DecisionKind.PREEMPTED, tenant="low", reason="preempted by high"
    )
    told = explain("low", rm.core.status(rm.now), (preempted,), {}, rm.now)
    assert told is not None
    assert (told.state, told.position) == ("preempted", 1)
    said = "Last, low was preempted, and waits for slices again: preempted by high"
    assert told.sentences[-1] == said


def test_usage_knows_the_windows_edges() -> None:
    usage = {by: Usage(by, 100.0, 200.0) for by in UsageBy}
    held = Decision(
        time=150.0, kind=DecisionKind.FREED, tenant="ada", user="a", team="t", slice="s",
        instance_type="x", began=50.0,
    )  # fmt: skip
    waited = Decision(
        time=300.0, kind=DecisionKind.RUNNING, tenant="bob", instance_type="x=2,y=1", began=180.0
    )
    before = Decision(time=90.0, kind=DecisionKind.FREED, tenant="old", slice="s", began=10.0)
    for one in (held, waited, before):
        for counted in usage.values():
            counted.add(one)
    rows = {by: [(r.name, r.slice_s, r.waiting_s) for r in usage[by].rows()] for by in UsageBy}
    assert rows[UsageBy.TENANT] == [("ada", 50.0, 0.0), ("bob", 0.0, 20.0)]
    assert rows[UsageBy.USER] == [("a", 50.0, 0.0), ("", 0.0, 20.0)]
    assert rows[UsageBy.TEAM] == [("t", 50.0, 0.0), ("", 0.0, 20.0)]
    assert rows[UsageBy.TYPE] == [("x", 50.0, 20.0), ("y", 0.0, 20.0)]


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_each_kind_has_a_sentence(kind: str) -> None:
    decision = Decision(time=9.0, kind=kind, tenant="ada", slice="slice-0", began=3.0, reason="so")
    said = sentence(decision)
    assert kind not in said
    assert "{" not in said
    assert said.endswith(": so")


def test_an_unknown_kind_is_shown_by_its_name() -> None:
    assert sentence(Decision(time=1.0, kind="tenant.praised")) == "tenant.praised"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 s"), (1.234, "1.23 s"), (119.0, "119 s"), (600.0, "10 min"), (9000.0, "2.5 h"),
     (864_000.0, "10 d")],
)  # fmt: skip
def test_spans(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_what_is_kept_for_another_is_not_free() -> None:
    rm = Rm(2)
    rm.ask("low")
    rm.ask("vip", 2, priority=1, queue=math.inf)
    rm.ask("bob", queue=math.inf)
    assert rm.slice("slice-1").kept_for == "vip"
    rm.after(10.0)
    report, times = rm.core.status(rm.now), past(100.0)
    found = explain("bob", report, [], expect(report, times, rm.now), rm.now)
    assert found is not None
    assert found.free == {str(SMALL): 0}
    assert waits(rm, times) == {"vip": pytest.approx(90.0), "bob": pytest.approx(190.0)}


def test_what_a_drained_slices_holder_moves_to_is_as_if_it_held_it() -> None:
    rm = Rm(2)
    rm.ask("ada")
    rm.do(m.SliceDrained(slice_id="slice-0"))
    rm.ask("bob", queue=math.inf)
    rm.after(10.0)
    assert waits(rm, past(100.0)) == {"bob": pytest.approx(90.0)}
