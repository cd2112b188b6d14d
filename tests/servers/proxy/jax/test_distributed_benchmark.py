"""The benchmark of the distributed engine, in its short form."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.processes import REPOSITORY


@pytest.mark.thorough
def test_it_measures(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    command = [sys.executable, "-m", "benchmarks.distributed", "--rounds=1", "--short"]
    # (Of all figures against a limit the one with the fewest processes: two executors.)
    subprocess.run(
        [*command, "--only", "reshard", "scale", "--out", out],
        check=True,
        cwd=REPOSITORY,
        timeout=240,
    )
    result = json.loads(out.read_text())["result"]
    row = result["reshard"]
    ((moved, limit),) = row["rounds"]
    assert moved > 0
    assert row["ratio"] == moved / limit
    scale = result["scale"]
    assert scale["message_bytes"]["commands of an execute"] > 0
    for executors in ("null 1", "null 2"):
        (figures,) = scale[executors]["rounds"]
        assert figures["executes_per_s"] > 0
