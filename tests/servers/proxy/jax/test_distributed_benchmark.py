"""The benchmark of the distributed engine, in its short form."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from harness.processes import REPOSITORY


def test_it_measures(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    command = [sys.executable, "-m", "benchmarks.distributed", "--rounds=1", "--short"]
    # (Of all figures the one with the fewest processes: two executors, and one for the limit.)
    subprocess.run(
        [*command, "--only", "reshard", "--out", out], check=True, cwd=REPOSITORY, timeout=240
    )
    row = json.loads(out.read_text())["result"]["reshard"]
    ((moved, limit),) = row["rounds"]
    assert moved > 0
    assert row["ratio"] == moved / limit
