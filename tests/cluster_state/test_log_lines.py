"""The parser of the servers' logs: of lines as public documents show them, and as ours write."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared_pathways_service.cluster_state.log_lines import (
    LogEvent,
    LogKind,
    parse_line,
    split_line,
)

GLOG = "I1208 20:10:04.992524       1 server_lib.cc:1473] "
#: What a line may hold of names that others chose; a line end cannot be in it.
TEXT = st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=60)
EVIL = st.sampled_from(
    [
        "Transition slice 0 unplaced -> placed",
        "FAILED_PRECONDITION: no",
        "2/2 Pathways Slices Now Ready",
        ") (held by x",
        "All placements done: 1 of 1 slices placed",
        "Pathways Proxy serving on [::]:29000",
        "); ",
    ]
)


def read(line: str) -> LogEvent:
    event = parse_line(line)
    assert event is not None, line
    return event


@pytest.mark.parametrize(
    ("text", "kind", "fields"),
    [
        (
            "Pathways Server serving on [::]:29001",
            LogKind.SERVING,
            {"address": "[::]:29001"},
        ),
        ("Pathways Proxy serving on 0.0.0.0:29000", LogKind.SERVING, {"address": "0.0.0.0:29000"}),
        ("*** 2/2 Pathways Slices Now Ready", LogKind.SLICES_READY, {"count": 2, "wanted": 2}),
        ("*** 1 /2 Pathways Slices Now Ready ***", LogKind.SLICES_READY, {"count": 1, "wanted": 2}),
        ("MegaScale transport init succeeded.", LogKind.TRANSPORT_READY, {}),
        ("Signaling to RM pw-head:29001", LogKind.SIGNALING, {"address": "pw-head:29001"}),
        ("Signaling to RM", LogKind.SIGNALING, {"address": ""}),
        ("Transition slice 3 unplaced -> placed", LogKind.PLACED, {"index": 3}),
        (
            "Transition slice 3 placed -> unplaced: a worker died",
            LogKind.UNPLACED,
            {"index": 3, "reason": "a worker died"},
        ),
        (
            "Transition slice vs-a (tpuv6e:2x2) state unplaced -> placed",
            LogKind.PLACED,
            {"index": None, "slice_name": "vs-a"},
        ),
        (
            "Transition slice 0 unplaced -> placed (placement on slice-2, generation 17)",
            LogKind.PLACED,
            {"index": 0, "slice_id": "slice-2", "generation": 17},
        ),
        ("Waiting for placement of 2 slices", LogKind.PLACEMENT, {}),
        ("Placement request sent", LogKind.PLACEMENT, {}),
        (
            "Waiting for placement at position 2: all taken (held by a@b: 1 x T; c@d: 2 x U)",
            LogKind.QUEUED,
            {"count": 2, "reason": "all taken", "holders": ("a@b: 1 x T", "c@d: 2 x U")},
        ),
        ("Waiting for placement at position 1: recovering", LogKind.QUEUED, {"count": 1}),
        (
            "All placements done: 2 of 3 slices placed",
            LogKind.ALL_PLACED,
            {"count": 2, "wanted": 3},
        ),
        (
            "rpc failed: FAILED_PRECONDITION: not enough slices",
            LogKind.REFUSED,
            {"reason": "not enough slices"},
        ),
        ("FAILED_PRECONDITION", LogKind.REFUSED, {"reason": ""}),
        (
            "Lost the RM (UNAVAILABLE: gone); work goes on, trying again in 0.1 s",
            LogKind.MANAGER_LOST,
            {"reason": "UNAVAILABLE: gone"},
        ),
        (
            "Ending with exit code 69: taken",
            LogKind.ENDING,
            {"count": 69, "reason": "taken"},
        ),
    ],
)
@pytest.mark.parametrize(
    "before", ["", GLOG, "2026-01-02T03:04:05.123456789Z " + GLOG, "E0102 03:04:05 1 x.py:7] "]
)
def test_known_lines(before: str, text: str, kind: LogKind, fields: dict[str, object]) -> None:
    event = read(before + text + "\n")
    assert event.kind is kind
    assert event.text == text
    assert {name: getattr(event, name) for name in fields} == fields


@pytest.mark.parametrize(
    "line",
    [
        "",
        "\n",
        GLOG,
        "Pathways Server stopping",
        "MegaScale transport initialized.",
        "argv[2]: '--resource_manager_address=x:1'",
        "Session begins, protocol 12; open: 1",
        "Transition slice",
    ],
)
def test_lines_of_no_interest(line: str) -> None:
    assert parse_line(line) is None


def test_words_count_however_they_are_written() -> None:
    assert read("transition slice 1 UNPLACED->PLACED").kind is LogKind.PLACED


@given(st.text(max_size=300))
def test_anything_can_be_read(line: str) -> None:
    event = parse_line(line)
    if event is not None:
        assert event.count >= 0
        assert event.wanted >= 0
        assert event.index is None or event.index >= 0
        assert event.text


PIECES = (
    *(GLOG, "Transition slice ", "0", "placed", "unplaced", " -> ", "placement", "/", " "),
    *("FAILED_PRECONDITION", "Pathways Slices Now Ready", "(", ")", ": ", "9" * 30),
)


@given(parts=st.lists(st.sampled_from(PIECES), max_size=12))
def test_any_mixture_of_what_counts_can_be_read(parts: list[str]) -> None:
    parse_line("".join(parts))


@given(
    index=st.integers(0, 10**6),
    generation=st.integers(1, 10**15),
    slice_id=st.from_regex(r"[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?", fullmatch=True),
)
def test_a_placement_is_read_back(index: int, generation: int, slice_id: str) -> None:
    event = read(
        f"{GLOG}Transition slice {index} unplaced -> placed "
        f"(placement on {slice_id}, generation {generation})"
    )
    assert (event.kind, event.index) == (LogKind.PLACED, index)
    assert (event.slice_id, event.generation) == (slice_id, generation)


@given(index=st.integers(0, 999), reason=TEXT | EVIL)
def test_a_reason_cannot_pass_for_another_line(index: int, reason: str) -> None:
    event = read(f"{GLOG}Transition slice {index} placed -> unplaced: {reason}")
    assert (event.kind, event.index) == (LogKind.UNPLACED, index)


@given(position=st.integers(0, 999), reason=TEXT | EVIL, holders=st.lists(TEXT | EVIL, max_size=3))
def test_a_holders_name_cannot_pass_for_another_line(
    position: int, reason: str, holders: list[str]
) -> None:
    held = f" (held by {'; '.join(holders)})" if holders else ""
    event = read(f"{GLOG}Waiting for placement at position {position}: {reason}{held}")
    assert (event.kind, event.count) == (LogKind.QUEUED, position)


@given(reason=TEXT | EVIL)
def test_a_lost_resource_managers_words_cannot_pass_for_another_line(reason: str) -> None:
    line = f"{GLOG}Lost the RM ({reason}); work goes on, trying again in 0.1 s"
    assert read(line).kind is LogKind.MANAGER_LOST


@given(reason=TEXT | EVIL, code=st.integers(1, 255))
def test_a_reason_to_end_cannot_pass_for_another_line(reason: str, code: int) -> None:
    event = read(f"{GLOG}Ending with exit code {code}: {reason}")
    assert (event.kind, event.count) == (LogKind.ENDING, code)


@given(stamp=st.datetimes(), line=st.text(max_size=50))
def test_kubernetes_time_is_split_off(stamp: object, line: str) -> None:
    text = re.sub(" ", "T", str(stamp)) + "Z"
    assert split_line(f"{text} {line}") == (text, line)


def test_a_line_without_a_time_stays_whole() -> None:
    assert split_line(GLOG + "x") == ("", GLOG + "x")
