"""The short form of `stress.host_partitions`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.network.namespaces import is_possible
from harness.processes import REPOSITORY


@pytest.mark.race
@pytest.mark.skipif(not is_possible(), reason="needs root and network namespaces")
def test_a_cut_between_hosts_loses_nobody_and_one_to_the_proxy_a_slice(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    command = (sys.executable, "-m", "stress.host_partitions", "--rounds", "2", "--out", str(out))
    # (It checks what each round must be.)
    ended = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, encoding="utf-8", check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    seconds = json.loads(out.read_text())["result"]["seconds"]
    assert [
        len(seconds[kind].get(name, ()))
        for kind, name in (("hosts", "failed_s"), ("proxy", "back_s"))
    ] == [1, 1]
