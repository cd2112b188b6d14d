"""Whose an error is: texts of the runtime, and what is decided once the slices were asked."""

from __future__ import annotations

import pytest

from shared_pathways_service.elastic.policy.triage import Action, Fault, Verdict, classify, decide


@pytest.mark.parametrize(
    ("text", "verdict", "slices"),
    [
        ("DATA_LOSS: virtual slice 1 (tpuv6e:2x2) was lost: its worker died", "slice", (1,)),
        ("DATA_LOSS: a shard is gone", "slice", ()),
        ("UNAVAILABLE: Connection to IFRT proxy server was terminated: Socket closed", "proxy", ()),
        ("CANCELLED: CANCELLED", "proxy", ()),
        ("INTERNAL: Mosaic failed to compile", "unclear", ()),
        ("DEADLINE_EXCEEDED: 60 s", "unclear", ()),
        ("NOT_FOUND: executable 7", "unclear", ()),
        ("INVALID_ARGUMENT: shapes; INTERNAL: beside", "user", ()),
        ("RESOURCE_EXHAUSTED: 3 GiB are needed", "user", ()),
        ("my INTERNALS are wrong", "user", ()),
        ("something else\nDATA_LOSS: in the second line", "user", ()),
        ("", "user", ()),
    ],
)
def test_the_text_of_an_error(text: str, verdict: str, slices: tuple[int, ...]) -> None:
    fault = classify(text)
    assert fault.verdict == verdict
    assert fault.slices == slices


def test_two_occurrences_of_an_error_have_one_signature() -> None:
    one = classify("INTERNAL: op 17 at 0x7f00beef failed")
    assert one.signature == classify("INTERNAL: op 18 at 0x1 failed").signature
    assert one.signature != classify("INTERNAL: another op failed").signature


@pytest.mark.parametrize(
    ("verdict", "red", "came_before", "dead", "action"),
    [
        (Verdict.USER, {1}, False, False, Action.RAISE),
        (Verdict.USER, {1}, False, True, Action.RAISE),
        (Verdict.SLICE, set(), False, False, Action.RETRY),
        (Verdict.SLICE, {1}, True, False, Action.RETRY),
        (Verdict.SLICE, {0, 1}, False, True, Action.RECONNECT),
        (Verdict.UNCLEAR, set(), False, False, Action.RAISE),
        (Verdict.UNCLEAR, {2}, False, False, Action.RETRY),
        (Verdict.UNCLEAR, {2}, True, False, Action.RETRY),
        (Verdict.UNCLEAR, set(), True, False, Action.RAISE_BOTH),
        (Verdict.PROXY, {0, 1}, False, True, Action.RECONNECT),
        (Verdict.PROXY, set(), False, False, Action.RAISE),
    ],
)
def test_what_is_done(
    verdict: Verdict, red: set[int], came_before: bool, dead: bool, action: Action
) -> None:
    fault = Fault(verdict=verdict, text="an error")
    decision = decide(fault, red, came_before=came_before, dead=dead, can_reconnect=True)
    assert decision.action is action
    assert decision.reason


def test_a_dead_proxy_without_a_way_to_a_new_one() -> None:
    """All slices silent may be the slices; what JAX says of a broken connection is not."""
    told = {
        verdict: decide(
            Fault(verdict=verdict, text="an error"),
            {0, 1},
            came_before=False,
            dead=True,
            can_reconnect=False,
        ).action
        for verdict in (Verdict.PROXY, Verdict.SLICE, Verdict.UNCLEAR)
    }
    assert told == {
        Verdict.PROXY: Action.RAISE,
        Verdict.SLICE: Action.RETRY,
        Verdict.UNCLEAR: Action.RETRY,
    }
