"""The short form of stress/saturation.py: cores and pipes full, no slice declared lost."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.deadlines import deadline
from harness.processes import REPOSITORY


@pytest.mark.heavy
@pytest.mark.race
def test_no_slice_is_lost_under_load(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "stress.saturation",
            "--seconds=8",
            "--megabytes=100",
            f"--out={out}",
        ],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=deadline(240.0),
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    result = json.loads(out.read_text())["result"]
    assert result["slices_lost"] == 0
    assert result["round_trips"] > 0
    assert result["wrong"] == 0
