"""A runtime directory that is removed or emptied below its service, as logouts and cleaners do."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness.deadlines import wait_until
from harness.embedded import KIND, embedded, shut_down
from harness.processes import DEADLINE_S, is_gone
from harness.programs import sps, sps_failing, status
from shared_pathways_service.errors import PreflightError
from shared_pathways_service.runtime.embedded.file_names import RuntimePaths
from shared_pathways_service.runtime.embedded.job_files import JobFiles, JobRecord
from shared_pathways_service.runtime.embedded.state_file import claim, read_state
from shared_pathways_service.runtime.settings import Settings

pytestmark = pytest.mark.race

#: Seconds within which the service notices what it has lost.
NOTICED_S = 10.0
#: Notes each of its starts, and ends once it is told to.
COUNTS = """
import os, pathlib, time
with open("starts", "a") as starts:
    print("attempt", os.environ["SPS_JOB_ATTEMPT"], file=starts)
while not pathlib.Path("end").exists():
    time.sleep(0.05)
"""


@pytest.fixture
def paths() -> RuntimePaths:
    return RuntimePaths(Settings.load().runtime_dir)


def record_of(name: str) -> JobRecord:
    found = JobFiles(Settings.load().state_dir).read(name)
    assert found is not None
    return found


def logs() -> list[Path]:
    return list(Settings.load().state_dir.rglob("supervisor.log"))


def says_lost(log: Path) -> bool:
    return "was removed or replaced" in log.read_text()


def submit(directory: Path, *words: str) -> None:
    command = [sys.executable, "-m", "shared_pathways_service.cli", "submit", *words]
    command += ["--", sys.executable, "-c", COUNTS]
    subprocess.run(command, check=True, cwd=directory, timeout=DEADLINE_S)


def test_a_service_without_its_directory_ends_and_has_no_second_one_beside_it(
    paths: RuntimePaths,
) -> None:
    with embedded() as service:
        # It cannot notice, and another one cannot start.
        os.kill(service.pid, signal.SIGSTOP)
        shutil.rmtree(paths.directory)
        paths.directory.mkdir(mode=0o700)
        others = paths.directory / "p1.token"
        others.touch()
        try:
            with pytest.raises(PreflightError, match="just starting or ending"), claim(paths):
                pass
        finally:
            os.kill(service.pid, signal.SIGCONT)
        wait_until("its notice", lambda: any(map(says_lost, logs())), NOTICED_S)
        assert service.wait() == 0
        [log] = Settings.load().state_dir.rglob("supervisor.log")
        assert f'"reason":"{paths.directory} was removed or replaced"' in log.read_text()
        # What is there now is not its own.
        assert others.exists()
        assert read_state(paths) is None


def test_small_files_that_a_cleaner_removed_are_written_again(paths: RuntimePaths) -> None:
    with embedded():
        for path in (paths.state, paths.token, paths.tenant_token):
            path.unlink()
        files = (paths.state, paths.token, paths.tenant_token)
        wait_until("all of them again", lambda: all(p.exists() for p in files), NOTICED_S)
        assert status()["service"]["address"]


def test_logs_that_a_cleaner_removed_go_on_in_new_files() -> None:
    with embedded():
        shutil.rmtree(Settings.load().state_dir / "logs")
        sps("run", f"--slices={KIND}=1", "--", sys.executable, "-c", "import jax; jax.devices()")
        [events] = logs()
        assert '"kind":"proxy.started"' in events.read_text()
        # The process that stands by for the next proxy was started after the removal.
        wait_until("its log", lambda: list(events.parent.glob("standby-*.log")))
        assert events.parent.stat().st_mode & 0o777 == 0o700


def test_a_job_goes_on_with_the_next_service(paths: RuntimePaths, tmp_path: Path) -> None:
    submit(tmp_path, "--name=fit", "--retries=1")
    wait_until("its start", (tmp_path / "starts").exists)
    before = record_of("fit").supervisor
    shutil.rmtree(paths.directory)
    # (This starts the next service, once the one that has lost its directory has ended.)
    sps("run", f"--slices={KIND}=1", "--", sys.executable, "-c", "pass")
    assert is_gone(before.pid)
    (tmp_path / "end").touch()
    wait_until("its end", lambda: record_of("fit").is_ended)
    assert record_of("fit").state == "succeeded"
    assert (tmp_path / "starts").read_text() == "attempt 1\nattempt 2\n"
    shut_down()


def test_a_job_that_could_not_be_cancelled_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(tmp_path, "--name=fit")
    wait_until("its start", (tmp_path / "starts").exists)
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("SPS_RUNTIME_DIR", str(tmp_path / "another"))
        code, said = sps_failing("cancel", "fit")
    assert code == 3
    assert f"the job fit still runs: its service, process {record_of('fit').supervisor.pid}" in said
    assert str(record_of("fit").runtime_dir) in said
    sps("cancel", "fit")
    assert record_of("fit").state == "cancelled"
    shut_down()
