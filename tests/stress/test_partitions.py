"""Partitions between real servers, each on a host of its own: a few schedules."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.deadlines import wait_until
from harness.network.namespaces import is_possible
from harness.network.resets import resets_for
from harness.processes import REPOSITORY

pytestmark = [
    pytest.mark.race,
    pytest.mark.skipif(not is_possible(), reason="needs root and network namespaces"),
]
_COMMAND = (sys.executable, "-m", "stress.partitions")


def test_three_schedules_keep_every_promise(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    ended = subprocess.run(
        [*_COMMAND, "--schedules", "3", "--seed", "5", "--out", str(out)],
        cwd=REPOSITORY,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    result = json.loads(out.read_text())["result"]
    assert result["schedules"] == 3
    assert result["violations"] == []
    # There were faults, and tenants to suffer from them.
    assert sum(result["faults"].values()) >= 3
    assert result["decisions"]["slice.placed"] >= 3


def test_all_ends_with_a_killed_owner() -> None:
    mark = f"SPS_PARTITIONS_MARK={os.getpid()}-{time.monotonic_ns()}"
    name, _, value = mark.partition("=")
    with subprocess.Popen(
        [*_COMMAND, "--schedules", "1000"],
        cwd=REPOSITORY,
        env={**os.environ, name: value},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as owner:
        wait_until("a worker", lambda: any("servers.worker" in line for line in _marked(mark)))
        owner.send_signal(signal.SIGKILL)
    wait_until("the end of all processes", lambda: not _marked(mark))


def _marked(mark: str) -> list[str]:
    """Returns the command lines of the processes with this in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_bytes().decode())
        except OSError:
            continue
    return [line for line in found if line]


def test_a_reset_is_for_exactly_the_next_byte() -> None:
    one, other = socket.inet_aton("10.77.0.1"), socket.inet_aton("10.77.0.2")
    tcp = bytes.fromhex("1f90 0050 00000064 000003e8 5018 ffff 0000 0000") + b"hello"
    packet = bytes.fromhex("4500002d 00000000 4006 0000") + one + other + tcp
    back, on = resets_for(packet)
    assert on is not None
    assert (back[12:16], back[16:20], on[12:16], on[16:20]) == (other, one, one, other)
    assert int.from_bytes(back[24:28], "big") == 1000
    assert int.from_bytes(on[24:28], "big") == 100
    assert back[33] & on[33] & 0x04
    # A reset is not answered by resets.
    assert resets_for(back) == (b"", None)
