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
    losses = [float(text) for text in re.findall(r"epoch +\d+: loss ([\d.]+)", done.stdout)]
    assert len(losses) == 15, done.stdout
    assert losses[-1] < 0.1 * losses[0]
    accuracy = re.search(r"held-out accuracy:? ([0-9.]+)", done.stdout)
    assert accuracy, done.stdout
    assert float(accuracy[1]) >= 0.95
    devices = re.findall(r"slice_index=([01]) coords=\((\d), (\d), 0\)", done.stdout)
    chips = [(x, y) for y in "01" for x in "01"]
    assert devices == [(s, x, y) for s in "01" for x, y in chips], done.stdout
    _, _, after = done.stdout.partition("the slices are free again")
    # (With the spare.)
    slices = re.findall(r"^ *slice-\d +tpuv6e:2x2 +ready +(\S+)", after, re.MULTILINE)
    assert slices == ["free"] * 3, after
