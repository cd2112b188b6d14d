"""Log lines of the stand-ins, and what the parser of logs, which they do not use, makes of them."""

from __future__ import annotations

import pytest

from shared_pathways_service.cluster_state.log_lines import LogKind, parse_line
from shared_pathways_service.testing.google_images.log_form import googles_form
from shared_pathways_service.testing.google_images.log_texts import GUESSED, PUBLISHED

HEAD = "I1208 20:10:04.992524       7 "


@pytest.mark.parametrize(
    ("line", "written"),
    [
        (
            "main.py:174] Pathways Proxy serving on [::]:29000",
            "proxy_server.cc:125] IFRT proxy server started with status OK",
        ),
        (
            "__main__.py:9] Pathways Server serving on 127.1.0.7:29001",
            "server_lib.cc:1473] Pathways Server serving on [::]:29001",
        ),
        (
            "__main__.py:9] *** 2/3 Pathways Slices Now Ready",
            "multi_job_allocator.cc:1063] *** 2/3 Pathways Slices Now Ready ***",
        ),
        (
            "rm_link.py:1] Transition slice 1 unplaced -> placed (placement on s-4, generation 40)",
            "pathways.cc:1] Transition slice 1 unplaced -> placed",
        ),
        (
            "rm_link.py:1] Transition slice 1 placed -> unplaced: a worker died",
            "pathways.cc:1] Transition slice 1 placed -> unplaced",
        ),
        (
            "rm_link.py:1] Waiting for placement at position 2: all are taken (held by a@b: 2 x T)",
            "pathways.cc:1] Waiting to acquire placements",
        ),
        (
            "rm_link.py:1] FAILED_PRECONDITION: the RM refuses this proxy: x",
            "pathways.cc:1] FAILED_PRECONDITION: the RM refuses this proxy: x",
        ),
        ("rm_link.py:1] Signaling to RM h:29001", "pathways.cc:1] Signaling to RM h:29001"),
        (
            "exits.py:1] Ending with exit code 2: --xla_a is unknown",
            "pathways.cc:1] --xla_a is unknown",
        ),
        (
            "rm_link.py:148] Lost the RM (UNAVAILABLE: gone); work goes on, trying again in 0.1 s",
            "pathways.cc:1] UNAVAILABLE: gone",
        ),
        ("rm_link.py:148] Lost the RM (it ended the stream); work goes on, trying again", None),
        ("session.py:126] no answer; trying again", None),
        ("exits.py:1] Ending with exit code 0: told to stop", None),
        ("rm_link.py:1] All placements done: 1 of 2 slices placed", None),
        ("rm_link.py:1] The RM is ready; protocol 2", None),
    ],
)
def test_a_line_is_googles_or_none(line: str, written: str | None) -> None:
    assert googles_form(HEAD + line) == (None if written is None else HEAD + written)


def test_warnings_keep_their_text() -> None:
    line = f"W{HEAD[1:]}session.py:126] no answer; trying again"
    assert googles_form(line) == f"W{HEAD[1:]}pathways.cc:1] no answer; trying again"


def test_what_is_no_line_of_ours_stays() -> None:
    for line in ("Fatal Python error: Segmentation fault", "  File x", "W1208 20:10:04.992524 7 x"):
        assert googles_form(line) == line


#: What the product takes of each text; None: it does not need the line, as a line.
UNDERSTOOD: dict[str, LogKind | None] = {
    "the proxy serves": LogKind.SERVING,
    "the server serves": LogKind.SERVING,
    "slices are ready": LogKind.SLICES_READY,
    "the transport begins": None,
    "the transport is ready": LogKind.TRANSPORT_READY,
    "an argument": None,
    "the proxy waits": LogKind.PLACEMENT,
    "a worker of another type": LogKind.REFUSED,
    "the bucket has no room for rules": None,
    "the bucket is missing": None,
    "a signal": None,
    "the default behavior": None,
    "the proxy requests slices": LogKind.SIGNALING,
    "a slice is placed": LogKind.PLACED,
    "a slice is lost": LogKind.UNPLACED,
    "the request is refused": LogKind.REFUSED,
    "the manager is unreachable": None,
    "memory is exhausted": None,
    "the proxy ends": None,
}
VALUES = {
    "port": 29001,
    "count": 1,
    "wanted": 2,
    "number": 2,
    "argument": "--server_port=29001",
    "job": 7,
    "pid": 1,
    "sender": 0,
    "address": "pw-head:29001",
    "index": 1,
    "reason": "it is gone",
}


@pytest.mark.parametrize("name", sorted(UNDERSTOOD))
def test_the_parser_of_logs_understands_the_text(name: str) -> None:
    event = parse_line(HEAD + {**PUBLISHED, **GUESSED}[name].line(**VALUES))
    assert (event.kind if event else None) == UNDERSTOOD[name]
    if event is not None and event.kind is LogKind.SLICES_READY:
        assert (event.count, event.wanted) == (1, 2)
    if event is not None and event.kind in (LogKind.PLACED, LogKind.UNPLACED):
        assert event.index == 1


def test_each_text_is_published_or_guessed_and_names_its_source() -> None:
    assert sorted([*PUBLISHED, *GUESSED]) == sorted(UNDERSTOOD)
    assert all(text.source for text in (*PUBLISHED.values(), *GUESSED.values()))


#: As upstream's newest client expects it (isc_pathways.py, _extract_pod_names_from_log_line()).
ON_PODS = "Transition slice {} unplaced -> placed on worker pods: [pw-worker-0-0.pw:29005, pw-w-1]"


@pytest.mark.parametrize("slice_name", ["0", "slice_0", "tpuv6e:2x2"])
def test_the_parser_understands_pods_after_a_placement(slice_name: str) -> None:
    event = parse_line(HEAD + "pathways.cc:1] " + ON_PODS.format(slice_name))
    assert event is not None
    assert event.kind is LogKind.PLACED
