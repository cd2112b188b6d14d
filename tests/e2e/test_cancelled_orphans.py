"""`sps cancel` for jobs whose service was killed: nothing of them runs afterwards."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

import shared_pathways_service
from harness.deadlines import wait_until
from harness.embedded import embedded
from harness.processes import is_alive
from harness.programs import sps
from shared_pathways_service.runtime.embedded.job_files import JobFiles
from shared_pathways_service.runtime.settings import Settings

#: Ignores the signal with which its runner ends it.
_STUBBORN = """
import os, pathlib, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path("pid.new").write_text(str(os.getpid()))
os.rename("pid.new", "pid")
while True:
    time.sleep(60)
"""


def kill_supervisor(name: str) -> None:
    found = JobFiles(Settings.load().state_dir).read(name)
    assert found is not None
    os.kill(found.supervisor.pid, signal.SIGKILL)
    wait_until("its end", found.supervisor.has_ended)


def program_of(directory: Path) -> psutil.Process:
    wait_until("the program", (directory / "pid").exists)
    return psutil.Process(int((directory / "pid").read_text()))


@pytest.mark.race
def test_the_program_has_ended_when_the_cancellation_returns(tmp_path: Path) -> None:
    with embedded(1):
        job = shared_pathways_service.submit(
            [sys.executable, "-c", _STUBBORN], workdir=tmp_path, retries=1
        )
        program = program_of(tmp_path)
        kill_supervisor(job.name)
        assert job.cancel().state == "cancelled"
        assert not is_alive(program)
    with embedded(1):
        assert job.status().state == "cancelled"


@pytest.mark.race
def test_a_job_of_a_killed_service_is_cancelled_beside_another_service(
    tmp_path: Path, own_directories: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with embedded(1):
        job = shared_pathways_service.submit([sys.executable, "-c", _STUBBORN], workdir=tmp_path)
        program = program_of(tmp_path)
        kill_supervisor(job.name)
    monkeypatch.setenv("SPS_RUNTIME_DIR", str(own_directories / "other"))
    with embedded(1):
        assert "cancelled" in sps("cancel", job.name).stdout
    assert not is_alive(program)
