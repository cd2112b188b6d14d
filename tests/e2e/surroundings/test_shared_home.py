"""Two machines with one home: what runs on one, the other shows, and leaves alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.deadlines import wait_until
from harness.embedded import KIND, journal
from harness.machines import Machine, is_possible, machine
from harness.processes import DEADLINE_S, REPOSITORY
from harness.programs import program
from shared_pathways_service.agent.journal import SILENT_AGE_S
from shared_pathways_service.runtime.embedded.job_files import JobFiles, JobRecord
from shared_pathways_service.runtime.embedded.log_directory import STARTS_KEPT
from shared_pathways_service.runtime.settings import Settings

pytestmark = pytest.mark.skipif(not is_possible(), reason="this user may not make namespaces")

HOLDS = f"""
import json, sys
def say(word, **more): print(json.dumps({{"say": word, **more}}), flush=True)
from shared_pathways_service import isc_pathways
with isc_pathways.connect(expected_tpu_instances={{"{KIND}": 1}}) as connection:
    import jax.numpy as jnp
    say("runs", name=connection.proxy_job_name)
    sys.stdin.readline()
    say("computed", value=float(jnp.arange(4.0).sum()))
"""
#: Notes each of its starts, and ends once it is told to.
COUNTS = """
import os, pathlib, platform, time
with open("starts", "a") as starts:
    print(platform.node(), file=starts)
while not pathlib.Path("end").exists():
    time.sleep(0.05)
"""


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Machine]:
    with machine("here", tmp_path) as running:
        yield running


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Machine]:
    with machine("there", tmp_path) as running:
        yield running


def run_on(
    place: Machine, words: Sequence[str], directory: Path = REPOSITORY
) -> subprocess.CompletedProcess[str]:
    """Runs `sps` on a machine."""
    return subprocess.run(
        [*place.prefix(directory), sys.executable, "-m", "shared_pathways_service.cli", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )


def sps_on(place: Machine, *words: str) -> str:
    done = run_on(place, words)
    assert done.returncode == 0, done
    return done.stdout


def listed_on(place: Machine, name: str) -> dict[str, Any]:
    [found] = [item for item in json.loads(sps_on(place, "list", "--json")) if item["name"] == name]
    assert isinstance(found, dict)
    return found


def make_silent(path: Path) -> None:
    long_ago = path.stat().st_mtime - SILENT_AGE_S - 1.0
    os.utime(path, (long_ago, long_ago))


def test_a_session_of_another_machine_is_shown_and_not_swept(here: Machine, there: Machine) -> None:
    with program(HOLDS, prefix=here.prefix()) as holding:
        name = holding.expect("runs")["name"]
        item = listed_on(there, name)
        assert (item["host"], item["state"]) == ("here", "serve")
        # Each connection sweeps, also one that needs the service of its own machine.
        sps_on(there, "run", f"--slices={KIND}=1", "--", sys.executable, "-c", "pass")
        assert sps_on(there, "reap").startswith(f"kept: {name} (here was active ")
        for words in (("delete", name), ("delete", "--yes", name), ("delete", "--forget", name)):
            refused = run_on(there, words)
            assert refused.returncode != 0
            assert "here" in refused.stderr
        assert [entry.name for entry in journal()] == [name]
        holding.tell("go on")
        assert holding.expect("computed")["value"] == 6.0
        assert holding.wait() == 0
    assert journal() == []


def test_what_a_machine_left_that_is_gone_for_good_is_reaped_once_it_was_silent(
    here: Machine, there: Machine
) -> None:
    with program(HOLDS, prefix=here.prefix()) as holding:
        name = holding.expect("runs")["name"]
        here.fail()
        assert listed_on(there, name)["host"] == "here"
        assert sps_on(there, "reap").startswith("kept")
        [path] = (Settings.load().state_dir / "journal").glob("*.json")
        make_silent(path)
        assert sps_on(there, "reap", "--dry-run").startswith(f"would be deleted: {name}")
        assert sps_on(there, "reap").startswith(f"deleted: {name} (here has been silent for")
    assert journal() == []


def record_of(name: str) -> JobRecord:
    found = JobFiles(Settings.load().state_dir).read(name)
    assert found is not None
    return found


def test_a_job_of_another_machine_is_neither_started_again_nor_touched(
    here: Machine, there: Machine, tmp_path: Path
) -> None:
    words = ("submit", "--name=fit", "--retries=3", "--", sys.executable, "-c", COUNTS)
    submitted = run_on(here, words, tmp_path)
    assert submitted.returncode == 0, submitted
    wait_until("its start", (tmp_path / "starts").exists)
    # The service that this starts looks for jobs of earlier services.
    sps_on(there, "run", f"--slices={KIND}=1", "--", sys.executable, "-c", "pass")
    job = listed_on(there, "fit")["job"]
    assert (job["host"], job["state"]) == ("here", "running")
    again = run_on(there, words, tmp_path)
    assert again.returncode != 0
    assert "on another machine, here" in again.stderr
    refused = run_on(there, ("cancel", "fit"))
    assert refused.returncode == 3
    assert "run `sps cancel fit` on here" in refused.stderr
    (tmp_path / "end").touch()
    wait_until("its end", lambda: record_of("fit").is_ended)
    assert record_of("fit").state == "succeeded"
    assert (tmp_path / "starts").read_text() == "here\n"


def test_a_job_of_a_machine_that_is_gone_is_cancelled_once_it_was_silent(
    here: Machine, there: Machine, tmp_path: Path
) -> None:
    words = ("submit", "--name=fit", "--", sys.executable, "-c", COUNTS)
    submitted = run_on(here, words, tmp_path)
    assert submitted.returncode == 0, submitted
    wait_until("its start", (tmp_path / "starts").exists)
    here.fail()
    assert run_on(there, ("cancel", "fit")).returncode == 3
    make_silent(Settings.load().state_dir / "jobs" / "fit" / "job.json")
    sps_on(there, "cancel", "fit")
    assert record_of("fit").state == "cancelled"
    assert "here had shown nothing of it" in record_of("fit").reason
    again = run_on(there, words, tmp_path)
    assert again.returncode == 0, again
    (tmp_path / "end").touch()
    wait_until("its end", lambda: record_of("fit").is_ended)
    assert (tmp_path / "starts").read_text() == "here\nthere\n"


SAVES = """
import os
import jax
jax.config.update("jax_platforms", "cpu")
from shared_pathways_service.elastic import Checkpoints, CheckpointsBusy
try:
    with Checkpoints(os.environ["TEST_DIRECTORY"]):
        say("saves", pid=os.getpid())
        wait_for("end")
except CheckpointsBusy as error:
    say("refused", message=error.message, pid=error.pid, host=error.host)
"""


def test_who_saves_checkpoints_is_named_with_its_machine(
    here: Machine, there: Machine, tmp_path: Path
) -> None:
    place = {"TEST_DIRECTORY": str(tmp_path / "checkpoints")}
    with (
        program(SAVES, env=place, prefix=here.prefix()) as one,
        program(SAVES, env=place, prefix=there.prefix()) as other,
    ):
        # (Either may be the first.)
        wait_until("an answer of both", lambda: one.has_said and other.has_said)
        first, second, host = (one, other, "here")
        if not (tmp_path / "checkpoints" / ".lock").read_text().endswith(" here\n"):
            first, second, host = (other, one, "there")
        pid = first.expect("saves")["pid"]
        refused = second.expect("refused")
        assert (refused["pid"], refused["host"]) == (pid, host)
        assert refused["message"] == (
            f"process {pid} on {host} saves checkpoints into {tmp_path / 'checkpoints'}"
        )
        first.tell("end")
        assert (first.wait(), second.wait()) == (0, 0)


#: Each is a start of a service that ends at once.
STARTS = """
import sys
from pathlib import Path
from shared_pathways_service.runtime.embedded.log_directory import ServiceLogs
ServiceLogs(Path(sys.argv[1])).create()
"""


def test_starts_on_one_machine_remove_no_logs_of_a_service_that_runs_on_another(
    here: Machine, there: Machine
) -> None:
    logs = Settings.load().state_dir / "logs"
    with program(HOLDS, prefix=here.prefix()) as holding:
        holding.expect("runs")
        [of_here] = logs.glob("service-*")
        assert "-here-" in of_here.name
        for _ in range(STARTS_KEPT + 2):
            subprocess.run(
                [*there.prefix(), sys.executable, "-c", STARTS, str(logs.parent)], check=True
            )
        of_there = list(logs.glob("service-*-there-*"))
        assert len(of_there) == STARTS_KEPT
        assert len(list(logs.glob("service-*"))) == STARTS_KEPT + 1
        assert "ready" in (of_here / "rm.log").read_text()
        holding.tell("go on")
        assert holding.expect("computed")["value"] == 6.0
