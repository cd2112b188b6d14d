"""`sps testbed up`: it says how to use what it brought up, and takes all of it down again."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness.deadlines import deadline
from harness.processes import REPOSITORY
from harness.testbed.programs import CACHE_DIR
from shared_pathways_service.manifests.service_jobset import service_address
from shared_pathways_service.testing.testbed import Testbed, TestbedError
from shared_pathways_service.testing.testbed.build import Programs
from tests.testing.testbed.leftovers import processes_of, still_there

SPS = [sys.executable, "-m", "shared_pathways_service.cli"]


@pytest.mark.parametrize(
    ("number", "code"),
    [
        pytest.param(signal.SIGINT, 130, id="SIGINT", marks=pytest.mark.thorough),
        pytest.param(signal.SIGTERM, 143, id="SIGTERM"),
    ],
)
def test_up_until_a_signal(testbed_programs: Programs, number: signal.Signals, code: int) -> None:
    del testbed_programs  # they are there
    with subprocess.Popen(
        [*SPS, "testbed", "up", "--pools=tpuv6e:2x2=1"],
        cwd=REPOSITORY,
        env={**os.environ, "SPS_CACHE_DIR": str(CACHE_DIR)},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        said = ""
        while "Ctrl-C" not in said and (line := process.stdout.readline()):
            said += line
        configs = [Path(path) for path in re.findall(r"export KUBECONFIG=(\S+)", said)]
        assert len(configs) == 2
        assert all(path.stat().st_mode & 0o077 == 0 for path in configs)
        assert f'pathways_service="{service_address("pathways")}"' in said
        running = Testbed.attach(configs[0].parent)
        processes = processes_of(running.directory)
        assert len(processes) >= 7
        names = [node["metadata"]["name"] for node in running.api.items("/api/v1/nodes")]
        assert names == ["cpu-0", "cpu-1", "tpuv6e-2x2-0-0"]
        process.send_signal(number)
        assert process.wait() == code
    assert not running.directory.exists()
    assert running.wait_for_end(0)
    assert still_there(processes) == []
    with pytest.raises(TestbedError, match="no testbed runs"):
        Testbed.attach(running.directory)


def test_invalid_pools_are_refused_before_the_start() -> None:
    done = subprocess.run(
        [*SPS, "testbed", "up", "--pools=nosuch:2x2=1"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=deadline(60.0),
        check=False,
    )
    assert done.returncode == 2
    assert "--pools" in done.stderr
    assert "nosuch" in done.stderr


def test_pools_may_be_omitted(tmp_path: Path) -> None:
    # Without any other program it ends as soon as it has accepted its options.
    done = subprocess.run(
        [*SPS, "testbed", "up"],
        cwd=REPOSITORY,
        env={**os.environ, "SPS_CACHE_DIR": str(tmp_path), "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=deadline(60.0),
        check=False,
    )
    assert done.returncode == 1
    assert "the testbed needs" in done.stderr
