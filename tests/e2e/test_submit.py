"""`sps submit` on a real service: work that outlives its submitter, and whatever is killed."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from filelock import FileLock

import shared_pathways_service
from harness.embedded import DEADLINE_S, embedded, eventually, nothing_left
from harness.patience import patience
from harness.processes import REPOSITORY
from harness.programs import pids, sps, status
from shared_pathways_service.errors import InvalidRequestError, ServiceNotFound
from shared_pathways_service.runtime.embedded.job_files import JobFiles, JobRecord
from shared_pathways_service.runtime.settings import Settings
from shared_pathways_service.submission import Job

SUM = "import jax.numpy as jnp; print('sum', jnp.arange(4.0).sum(), flush=True)"
#: Says that it runs, leaves a process behind in a session of its own, and does not end.
ENDLESS = """
import os, pathlib, subprocess, sys, time
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
pathlib.Path("pids").write_text(f"{os.getpid()} {child.pid}")
print("runs, attempt", os.environ["SPS_JOB_ATTEMPT"], flush=True)
time.sleep(600)
"""
#: Uses its slices until it is started again.
UNTIL_RETRIED = """
import os, jax.numpy as jnp
jnp.arange(4.0).sum().block_until_ready()
print("computes", flush=True)
while os.environ["SPS_JOB_ATTEMPT"] == "1":
    jnp.arange(4.0).sum().block_until_ready()
"""
#: Fails at first, then succeeds.
SECOND_TIME = "import os, sys; sys.exit(0 if os.environ['SPS_JOB_ATTEMPT'] == '2' else 7)"


@pytest.fixture(autouse=True)
def collects(leaves_nothing_behind: None) -> Iterator[None]:
    """Lets gRPC's poller thread end, which it does with the last of gRPC's objects."""
    yield
    gc.collect()


def submit(source: str, **arguments: Any) -> Job:
    return shared_pathways_service.submit([sys.executable, "-c", source], **arguments)


def record(name: str) -> JobRecord:
    found = JobFiles(Settings.load().state_dir).read(name)
    assert found is not None
    return found


def listed(name: str) -> dict[str, Any]:
    [found] = [item for item in json.loads(sps("list", "--json").stdout) if item["name"] == name]
    assert isinstance(found, dict)
    return found


def job_events() -> list[dict[str, Any]]:
    """The events of jobs that the service has logged; its last line may not be whole yet."""
    [log] = Path(os.environ["SPS_STATE_DIR"]).rglob("supervisor.log")
    lines, _, _ = log.read_text().rpartition("\n")
    events = [json.loads(line) for line in lines.splitlines()]
    return [event for event in events if event["kind"].startswith("job.")]


def kinds_of(events: list[dict[str, Any]]) -> list[str]:
    return [event["kind"] for event in events]


def is_queued(job: Job) -> bool:
    return job.name in [entry["tenant"] for entry in status()["queue"]]


def pids_of(directory: Path) -> list[int]:
    """The processes of ENDLESS once it runs; the file is removed."""
    path = directory / "pids"
    eventually(lambda: path.exists() and len(path.read_text().split()) == 2, "the program")
    found = [int(word) for word in path.read_text().split()]
    path.unlink()
    return found


def have_ended(pids: list[int]) -> bool:
    def has_ended(pid: int) -> bool:
        try:
            return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    return all(map(has_ended, pids))


@pytest.mark.race
def test_a_job_from_its_submission_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_SECRET", "hunter2")
    with embedded(2):
        program = f"import os; assert os.environ['MY_SECRET'][::-1] == '2retnuh'; {SUM}"
        name = sps(
            *("submit", "--slices=tpuv6e:2x2=2", "--env=MY_SECRET", f"--workdir={tmp_path}"),
            *("--", sys.executable, "-c", program),
        ).stdout.strip()
        assert name.startswith("python-")
        done = sps("wait", name)
        assert done.stderr == ""
        assert "sum 6.0" in sps("logs", name, "-f").stdout
        assert listed(name)["job"]["state"] == "succeeded"
        assert nothing_left()

        # Its exit code, and the same name again.
        code = sps("submit", "--name=seven", "--", "sh", "-c", "exit 7")
        assert code.stdout == "seven\n"
        waited = sps("wait", "seven", check=False)
        assert (waited.returncode, waited.stderr) == (7, "sps: seven: failed: exit code 7\n")
        assert "job failed: exit code 7" in sps("list").stdout
        retried = submit(SECOND_TIME, name="seven", retries=3).wait(DEADLINE_S)
        assert (retried.state, retried.attempt, retried.exit_code) == ("succeeded", 2, 0)

        failing = submit("raise SystemExit(1)", retries=9)
        eventually(lambda: failing.status().state == "retrying", "the first failure")
        assert failing.cancel().state == "cancelled"

        # Two jobs, one after the other: the second waits for the first one's slices.
        both = {"tpuv6e:2x2": 2}
        first = submit(ENDLESS, expected_tpu_instances=both, workdir=tmp_path)
        left = pids_of(tmp_path)
        second = submit(SUM, expected_tpu_instances=both)
        eventually(lambda: is_queued(second), "the queue")
        assert second.status().state == "queued"
        with pytest.raises(TimeoutError):
            second.wait(0.1)
        third = submit(SUM, expected_tpu_instances=both)
        eventually(lambda: is_queued(third), "the queue")
        cancelled = third.cancel()
        assert (cancelled.state, cancelled.exit_code) == ("cancelled", None)
        assert not is_queued(third)
        with pytest.raises(InvalidRequestError, match="active job") as taken:
            submit(SUM, name=first.name)
        assert taken.value.field == "name"
        attached = subprocess.Popen(
            [sys.executable, "-m", "shared_pathways_service.cli", "attach", first.name],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
        )
        assert attached.stdout
        while attached.stdout.readline() != "runs, attempt 1\n":
            assert attached.poll() is None
        attached.send_signal(signal.SIGINT)
        _, err = attached.communicate(timeout=DEADLINE_S)
        assert attached.returncode == 0, err
        assert f"detached; {first.name} goes on" in err
        assert first.status().state == "running"
        assert sps("delete", first.name, check=False).returncode == 2
        assert sps("cancel", first.name).stdout == f"{first.name}: cancelled\n"
        assert have_ended(left)
        assert sps("wait", first.name, check=False).returncode == 143
        assert second.wait(DEADLINE_S).state == "succeeded"
        assert any("sum 6.0" in line for line in second.logs())
        assert sps("attach", second.name).stdout.endswith("sum 6.0\n")
        sps("delete", second.name)
        with pytest.raises(ServiceNotFound):
            second.status()
        assert nothing_left()

        kept = [path for path in Path(os.environ["SPS_STATE_DIR"]).rglob("*") if path.is_file()]
        assert not [path for path in kept if "hunter2" in path.read_text(errors="replace")]


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--", "no-such-program"),
        ("--retries=-1", "true"),
        ("--name=A_b", "true"),
        ("--workdir=/nowhere", "true"),
        ("--env=NOT_IN_THIS_SHELL", "true"),
        ("--slices=tpuv6e:2x2=0", "true"),
        ("--queue-timeout=-1", "true"),
        ("--context=somewhere", "true"),
    ],
)
def test_bad_input_starts_nothing(words: tuple[str, ...]) -> None:
    done = sps("submit", *words, check=False)
    assert done.returncode == 2, done.stderr
    assert not Path(os.environ["SPS_RUNTIME_DIR"]).exists()


# ---- kills


def kill_supervisor(job: Job) -> None:
    os.kill(record(job.name).supervisor.pid, signal.SIGKILL)


def kill_runner(job: Job) -> None:
    runner = record(job.name).runner
    assert runner is not None
    os.kill(runner.pid, signal.SIGKILL)


@pytest.mark.race
def test_a_killed_runner_or_program_leaves_nothing(tmp_path: Path) -> None:
    with embedded(1):
        job = submit(ENDLESS, workdir=tmp_path, retries=2)
        left = pids_of(tmp_path)
        kill_runner(job)
        again = pids_of(tmp_path)
        assert have_ended(left)
        os.kill(again[0], signal.SIGKILL)
        last = pids_of(tmp_path)
        assert have_ended(again)
        assert job.status().attempt == 3
        kill_runner(job)
        ended = job.wait(DEADLINE_S)
        assert (ended.state, ended.reason) == ("failed", "its runner was killed by SIGKILL")
        assert have_ended(last)
        eventually(nothing_left, "the end of the connection")


@pytest.mark.race
def test_a_killed_service_loses_no_job_silently(tmp_path: Path) -> None:
    with embedded(1):
        once = submit(ENDLESS, workdir=tmp_path)
        left = pids_of(tmp_path)
        waiting = submit(SUM)
        eventually(lambda: is_queued(waiting), "the queue")
        kill_supervisor(once)
        # Both wait for a service that takes the job over, in vain.
        with patience(1):
            assert once.wait(DEADLINE_S).state == "lost"
            assert sps("wait", once.name, check=False).returncode == 125
        eventually(lambda: have_ended(left), "the end of the program")
    with embedded(1):
        # The job that waited is started; the one that ran stays lost.
        assert waiting.wait(DEADLINE_S).state == "succeeded"
        assert once.status().state == "lost"
        again = submit(ENDLESS, workdir=tmp_path, retries=1)
        left = pids_of(tmp_path)
    # The service was ended in order.
    assert have_ended(left)
    assert "the next service starts it again" in again.status().reason
    with embedded(1):
        left = pids_of(tmp_path)
        assert again.status().attempt == 2
        assert again.cancel().state == "cancelled"
        assert have_ended(left)
        assert nothing_left()


@pytest.mark.race
def test_a_program_starts_only_when_its_record_says_so() -> None:
    # Of a service that is killed before, the next one would start the program a second time.
    directory = Settings.load().state_dir / "jobs"
    source = "import json, sys; print('it is', json.load(open(sys.argv[1]))['state'])"
    with embedded(1):
        path = str(directory / "fit" / "job.json")
        job = shared_pathways_service.submit([sys.executable, "-c", source, path], name="fit")
        # (So that each record is late.)
        with FileLock(directory / ".lock"):
            assert job.wait(DEADLINE_S).state == "succeeded"
        assert "it is running" in job.logs()


@pytest.mark.race
def test_a_lost_connection_is_a_reason_to_retry() -> None:
    with embedded(1):
        job = submit(UNTIL_RETRIED, retries=1)
        eventually(lambda: "computes" in job.logs(), "the program")
        [proxy] = pids("proxy")
        os.kill(proxy, signal.SIGKILL)
        ended = job.wait(DEADLINE_S)
        assert (ended.state, ended.attempt) == ("succeeded", 2)
        # (The last event is reported after the job's record is written.)
        eventually(lambda: "job.ended" in kinds_of(job_events()), "the last event")
        events = job_events()
        changes = ("submitted", "started", "retrying", "started", "ended")
        assert kinds_of(events) == [f"job.{change}" for change in changes]
        [retry] = [event for event in events if event["kind"] == "job.retrying"]
        assert retry["reason"].startswith("its connection was lost (killed by SIGKILL")


@pytest.mark.race
def test_a_job_survives_its_shell(tmp_path: Path) -> None:
    source = f"""
import shared_pathways_service, sys, time
command = [sys.executable, "-c", {ENDLESS!r}]
print(shared_pathways_service.submit(command, workdir={str(tmp_path)!r}).name, flush=True)
time.sleep(600)
"""
    with embedded(1):
        shell = subprocess.Popen(
            [sys.executable, "-c", source],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            cwd=REPOSITORY,
        )
        with shell:
            assert shell.stdout
            job = Job(shell.stdout.readline().strip())
            left = pids_of(tmp_path)
            os.killpg(shell.pid, signal.SIGKILL)
        # (The service records the start beside the program.)
        eventually(lambda: job.status().state == "running", "the record of the start")
        assert not have_ended(left)
        assert job.cancel().state == "cancelled"
        assert have_ended(left)
