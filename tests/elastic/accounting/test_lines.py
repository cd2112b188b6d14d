"""The lines that scripts look for, to the letter."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from harness.deadlines import deadline
from shared_pathways_service.elastic.accounting.console_lines import lines_of
from shared_pathways_service.events import Event
from tests.elastic.accounting.telling import Process

AWK = Path(__file__).parents[3] / "examples" / "slice_counts.awk"
STEP = {"step": 8, "duration_s": 0.159, "slice_count": 3, "down_events": 0}
COUNTS = "step=8 elastic_manager.good_slice_count=3 elastic_manager.elastic_down_event_count=0"


def lines(kind: str, **fields: Any) -> list[str]:
    return lines_of(Process().tell(0, kind, **fields))


@pytest.mark.parametrize(
    ("kind", "fields", "told"),
    [
        (
            "elastic.run.started",
            {"enabled": True},
            ["Elastic utils: Elastic training enabled.", "Elastic Retry Enabled"],
        ),
        ("elastic.run.started", {"enabled": False}, []),
        (
            "elastic.error",
            {"verdict": "slice", "decision": "retry"},
            ["Slice down event detected. Retrying."],
        ),
        ("elastic.error", {"verdict": "slice", "decision": "raise"}, []),
        ("elastic.error", {"verdict": "user", "decision": "raise"}, []),
        ("elastic.error", {"verdict": "proxy", "decision": "retry"}, []),
        ("elastic.attempt.started", {"attempt": 1, "max_attempts": 10}, []),
        ("elastic.attempt.started", {}, []),
        ("elastic.attempt.started", {"attempt": 2, "max_attempts": 10, "cause": "scale_up"}, []),
        (
            "elastic.attempt.started",
            {"attempt": 2, "max_attempts": 10},
            ["Elastic attempt 2 out of 10"],
        ),
        (
            "checkpoint.kept",
            {"path": "/runs/a/checkpoints/100"},
            ["Found commit_success file. Keeping /runs/a/checkpoints/100/."],
        ),
        (
            "checkpoint.kept",
            {"path": "gs://bucket/a/checkpoints/100/"},
            ["Found commit_success file. Keeping gs://bucket/a/checkpoints/100/."],
        ),
        (
            "checkpoint.restoring",
            {"path": "/runs/a/checkpoints/100"},
            ["Restoring checkpoint from /runs/a/checkpoints/100."],
        ),
        (
            "checkpoint.restoring",
            {"path": "/runs/a\nb/100"},
            ["Restoring checkpoint from /runs/a\\nb/100."],
        ),
        (
            "elastic.step",
            {**STEP, "loss": 220.774, "tflops_per_device": 43.43},
            [
                "completed step: 8, seconds: 0.159, TFLOP/s/device: 43.430, loss: 220.774",
                COUNTS,
            ],
        ),
        (
            "elastic.step",
            {"step": 8, "duration_s": 0.159},
            ["completed step: 8, seconds: 0.159, TFLOP/s/device: nan, loss: nan"],
        ),
        ("slice.down", {"slice": 1}, []),
    ],
)
def test_lines(kind: str, fields: dict[str, Any], told: list[str]) -> None:
    assert lines(kind, **fields) == told


@pytest.mark.parametrize("loss", [None, math.nan, "nan", "what"])
def test_what_is_not_known_is_read_as_not_a_number(loss: float | str | None) -> None:
    line = lines("elastic.step", **STEP, loss=loss)[0]
    found = re.search(r"loss: (\S+)$", line)
    assert found is not None
    assert math.isnan(float(found[1]))


def _awk_s() -> list[list[str]]:
    known = [["awk"], ["mawk"], ["gawk"], ["busybox", "awk"]]
    return [words for words in known if shutil.which(words[0])]


@pytest.mark.parametrize("awk", _awk_s(), ids=" ".join)
@pytest.mark.parametrize("prefix", ["", "[pod/worker-0/train] 2026-01-02T03:04:05Z I step=x "])
def test_awk_prints_each_change_of_the_number_of_slices(awk: list[str], prefix: str) -> None:
    counts = {4: 3, 5: 2, 6: 2, 7: 3, 8: 12}
    log: list[str] = []
    for step, count in counts.items():
        event: Event = Process().tell(
            0, "elastic.step", step=step, duration_s=0.1, slice_count=count, down_events=1
        )
        log += [*lines_of(event), "something else: step=9, slices=7"]
    done = subprocess.run(
        [*awk, "-f", str(AWK)],
        input="".join(f"{prefix}{line}\n" for line in log),
        capture_output=True,
        text=True,
        check=True,
        timeout=deadline(60.0),
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "Step: 5, Old Slice Count: 3, New Slice Count: 2",
        "Step: 7, Old Slice Count: 2, New Slice Count: 3",
        "Step: 8, Old Slice Count: 3, New Slice Count: 12",
    ]
