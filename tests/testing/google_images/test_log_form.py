from __future__ import annotations

import pytest

from shared_pathways_service.testing.google_images.log_form import googles_form

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
            "pathways.cc:1] Waiting for placement",
        ),
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
