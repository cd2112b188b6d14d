"""The short form of `stress.elastic_soak`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.deadlines import deadline
from harness.processes import REPOSITORY

pytestmark = pytest.mark.race

LIMIT_S = deadline(400.0)


def soak(out: Path, *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "stress.elastic_soak", f"--out={out}", *arguments],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        cwd=REPOSITORY,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result: dict[str, Any] = json.loads(out.read_text())["result"]
    return result


def test_five_disruptions_of_cpu_devices(tmp_path: Path) -> None:
    result = soak(
        tmp_path / "result.json",
        "--simulated",
        "--disruptions=5",
        "--kinds=double,flap,hang,recovery,proxy",
    )
    assert_survived(result)


def test_five_disruptions_of_a_service(tmp_path: Path) -> None:
    result = soak(
        tmp_path / "result.json", "--disruptions=5", "--kinds=single,double,lie,save,proxy"
    )
    assert_survived(result)


def assert_survived(result: dict[str, Any]) -> None:
    assert result["success_rate"] == 1
    assert result["run"]["error"] is None
    assert result["run"]["differences"]["wrong"] == []
    assert result["run"]["differences"]["epochs"] > 1
    told = result["disruptions"]
    assert len({one["kind"] for one in told}) == len(told) == 5
    for one in told:
        assert one["reasons"], "it was noticed"
        assert one["counts"], "training began anew"
