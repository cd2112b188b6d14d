"""examples/elastic_train.py, as a user runs it: 3 → 2 → 3, 150 → 101, and on after a kill -9."""

from __future__ import annotations

import contextlib
import re
import subprocess
from pathlib import Path

import pytest

from harness.deadlines import wait_until
from harness.embedded import embedded
from harness.processes import REPOSITORY
from harness.programs import status
from shared_pathways_service.elastic.checkpoints.files import list_checkpoints
from shared_pathways_service.elastic.run_ledger import read_ledger
from shared_pathways_service.testing.faults import EmbeddedSlices
from tests.elastic.example_runs import train

pytestmark = pytest.mark.race


def steps_of(lines: list[str]) -> list[int]:
    return [int(found[1]) for line in lines if (found := re.match(r"completed step: (\d+),", line))]


def awk(lines: list[str]) -> list[str]:
    done = subprocess.run(
        ["awk", "-f", "examples/slice_counts.awk"],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        check=True,
        cwd=REPOSITORY,
    )
    return done.stdout.splitlines()


def test_a_slice_that_is_killed_and_back(tmp_path: Path) -> None:
    world: list[EmbeddedSlices] = []

    def revive_once_missed(line: str) -> bool:
        if line.startswith("completed step: 1,"):
            [tenant] = status()["tenants"]
            world.append(undo.enter_context(EmbeddedSlices(tenant["name"])))
        if " elastic_manager.good_slice_count=2 " in line and world:
            world.pop().revive(1)
            wait_until("the slice to be back", has_returned)
        return False

    def has_returned() -> bool:
        return any(event.kind == "slice.returning" for event in read_ledger(tmp_path))

    with embedded(slices=3), contextlib.ExitStack() as undo:
        code, lines = train(
            tmp_path, *("--steps", "400"), *("--snapshot-period", "5"), *("--kill-at", "12"),
            *("--down-for", "3000"), until=revive_once_missed,
        )  # fmt: skip
    assert code == 0, "\n".join(lines)
    counts = [re.sub(r"Step: \d+, ", "", line) for line in awk(lines)]
    assert counts == [
        "Old Slice Count: 3, New Slice Count: 2",
        "Old Slice Count: 2, New Slice Count: 3",
    ]
    assert "Slice down event detected. Retrying." in lines
    assert "Elastic attempt 2 out of 10" in lines
    assert float(lines[-1].removeprefix("held-out accuracy: ")) > 0.9
    origins = [e.data["origin"] for e in read_ledger(tmp_path) if e.kind == "elastic.restored"]
    assert origins == ["initial", "snapshot", "live"]


@pytest.mark.thorough
def test_a_rewind_to_a_checkpoint_and_a_run_that_is_killed(tmp_path: Path) -> None:
    def committed() -> list[int]:
        return [
            c.step for c in list_checkpoints(tmp_path / "checkpoints") if c.state == "committed"
        ]

    with embedded(slices=3, spares=1):
        code, lines = train(
            tmp_path, *("--steps", "1000"), *("--slices", "3"), *("--kill-at", "150"),
            until=lambda line: (
                re.match(r"completed step: \d{3,},", line) is not None
                and max(committed(), default=0) >= 200
            ),
        )  # fmt: skip
        assert code < 0
        steps = steps_of(lines)
        rewind = next(i for i, step in enumerate(steps) if i and step <= steps[i - 1])
        assert steps[rewind - 1] >= 150
        assert steps[rewind] == 101
        assert any(re.match(r"Restoring checkpoint from .*/checkpoints/100\.", x) for x in lines)
        newest = max(committed())
        end = newest + 20
        code, lines = train(tmp_path, *("--steps", str(end)), *("--slices", "3"))
    assert code == 0, "\n".join(lines)
    kept = rf"Found commit_success file\. Keeping .*/{newest}/\."
    assert any(re.match(kept, x) for x in lines)
    assert steps_of(lines) == list(range(newest + 1, end + 1))
