"""The README's first command, as a new user runs it, in the environment that the tests have."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from harness.deadlines import deadline

ROOT = Path(__file__).parents[2]


def test_demo_trains_on_two_slices_and_leaves_nothing() -> None:
    done = subprocess.run(
        [str(ROOT / "scripts" / "demo")],
        env={**os.environ, "SPS_ENVIRONMENT": sys.prefix},
        capture_output=True,
        text=True,
        timeout=deadline(240.0),
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    accuracy = re.search(r"held-out accuracy:? ([0-9.]+)", done.stdout)
    assert accuracy, done.stdout
    assert float(accuracy[1]) >= 0.95
    devices = re.findall(r"slice_index=([01]) coords=\((\d), (\d), 0\)", done.stdout)
    chips = [(x, y) for y in "01" for x in "01"]
    assert devices == [(s, x, y) for s in "01" for x, y in chips], done.stdout
