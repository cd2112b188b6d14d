"""What the supervisor decides about submitted jobs, and what it keeps of them on disk."""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from pathlib import Path

import pytest

from harness.processes import DEADLINE_S, ended_process
from shared_pathways_service.runtime.embedded import job_files, log_directory
from shared_pathways_service.runtime.embedded.job_files import JobFiles, JobRecord, Replaced
from shared_pathways_service.runtime.processes import Identity, identity_of
from shared_pathways_service.servers.supervisor.job_decisions import (
    AttemptEnd,
    NextStep,
    after_attempt,
    after_restart,
    pause_before,
)


class TestAfterAttempt:
    @pytest.mark.parametrize(
        ("end", "state", "reason"),
        [
            ({"exit_code": 0}, "succeeded", ""),
            ({"exit_code": 0, "lost": "killed by SIGKILL"}, "succeeded", ""),
            ({"exit_code": 3}, "retrying", "exit code 3"),
            ({"exit_code": 137}, "retrying", "killed by SIGKILL"),
            ({"exit_code": -9}, "retrying", "its runner was killed by SIGKILL"),
            ({"exit_code": 1, "lost": "bye"}, "retrying", "its connection was lost (bye); exit"),
            ({"exit_code": 125, "last_error": "no service"}, "retrying", "no service"),
            ({"exit_code": 125, "is_refused": True, "last_error": "taken"}, "failed", "taken"),
            ({"exit_code": 127}, "failed", "exit code 127"),
            ({"exit_code": 143, "is_cancelled": True}, "cancelled", ""),
            ({"exit_code": 0, "is_cancelled": True}, "cancelled", ""),
        ],
    )
    def test_with_a_retry_left(self, end: dict[str, object], state: str, reason: str) -> None:
        step = after_attempt(AttemptEnd(has_started=True, **end), attempt=1, retries=1)  # type: ignore[arg-type]
        assert step.state == state
        assert step.reason.startswith(reason)

    def test_without_one(self) -> None:
        end = AttemptEnd(exit_code=3, has_started=True)
        failed = NextStep(state="failed", reason="exit code 3", exit_code=3)
        assert after_attempt(end, attempt=2, retries=1) == failed
        assert after_attempt(end, attempt=1, retries=0) == failed

    def test_pauses_grow_to_a_limit(self) -> None:
        assert [pause_before(n) for n in (1, 2, 3, 100_000)] == [1, 2, 4, 300]


def test_after_a_restart_only_what_never_started_costs_no_retry() -> None:
    assert after_restart(had_started=False, attempt=1, retries=0).state == "queued"
    assert after_restart(had_started=True, attempt=1, retries=1).state == "retrying"
    assert after_restart(had_started=True, attempt=2, retries=1).state == "lost"


# ---- files


def record(name: str = "fit", **fields: object) -> JobRecord:
    known = JobRecord(
        name=name,
        uid="0f",
        state="running",
        command=("python", "fit.py"),
        workdir="/",
        slices=("tpuv6e:2x2",),
        retries=1,
        runtime_dir="/run/sps",
        supervisor=identity_of(),
        submitted_at=time.time(),
        runner=identity_of(),
        attempt=1,
    )
    return dataclasses.replace(known, **fields)  # type: ignore[arg-type]


def test_a_record_is_read_as_written_and_private(tmp_path: Path) -> None:
    files = JobFiles(tmp_path)
    assert files.records() == []
    files.create(record(), {"environment": {"SECRET": "hunter2"}})
    assert files.read("fit") == record(submitted_at=files.records()[0].submitted_at)
    kept = [tmp_path / "jobs", *(tmp_path / "jobs").rglob("*")]
    assert all(path.stat().st_mode & 0o077 == 0 for path in kept)
    files.end(record(state="failed", ended_at=time.time()))
    assert not any("hunter2" in path.read_text() for path in kept if path.is_file())
    files.remove("fit")
    assert files.read("fit") is None
    assert [path.name for path in (tmp_path / "jobs").iterdir()] == [".lock"]


def test_a_record_of_version_1_and_one_of_a_newer_version_are_read(tmp_path: Path) -> None:
    (tmp_path / "jobs" / "fit").mkdir(parents=True)
    path = tmp_path / "jobs" / "fit" / "job.json"
    first = {
        "version": 1,
        "name": "fit",
        "uid": "0f",
        "state": "queued",
        "command": ["x", "y"],
        "workdir": "/",
        "slices": [],
        "retries": 0,
        "runtime_dir": "/r",
        "runner": None,
        "supervisor": {"pid": 1, "start": "b/1"},
        "submitted_at": 5.0,
        "attempt": 0,
        "started_at": None,
        "ended_at": None,
        "exit_code": None,
        "reason": "",
    }
    for data in (first, {**first, "version": 2, "color": "red"}):
        path.write_text(json.dumps(data))
        known = JobFiles(tmp_path).read("fit")
        assert known is not None
        assert (known.command, known.supervisor) == (("x", "y"), Identity(pid=1, start="b/1"))
    for damaged in ("", "[]", '{"name": "fit"}'):
        path.write_text(damaged)
        assert JobFiles(tmp_path).records() == []


def test_a_job_is_orphaned_when_its_service_has_ended(tmp_path: Path) -> None:
    assert not record().is_orphaned
    dead = ended_process()
    assert record(supervisor=dead).is_orphaned
    assert not record(supervisor=dead, ended_at=1.0).is_orphaned
    there = Identity(pid=1, start="another-boot/1")
    assert not record(supervisor=there).is_orphaned
    assert record(supervisor=there).is_elsewhere
    assert not record(supervisor=there, ended_at=1.0).is_elsewhere
    assert not record(supervisor=dead).is_elsewhere


def test_a_record_of_another_job_of_the_name_is_not_overwritten(tmp_path: Path) -> None:
    files = JobFiles(tmp_path)
    files.create(record("fit", uid="0a"), {})
    for write in (files.write, files.end):
        with pytest.raises(Replaced):
            write(record("fit", uid="0b", ended_at=1.0))
    assert [known.uid for known in files.records()] == ["0a"]
    assert files.request("fit").exists()
    with pytest.raises(Replaced):
        files.create(record("fit", uid="0b"), {})
    files.end(record("fit", uid="0a", ended_at=1.0))
    files.create(record("fit", uid="0b"), {})
    assert [known.uid for known in files.records()] == ["0b"]


def test_a_record_that_others_removed_is_written_again(tmp_path: Path) -> None:
    files = JobFiles(tmp_path)
    known = record("fit")
    files.create(known, {})
    shutil.rmtree(tmp_path / "jobs")
    files.write(known)
    assert files.records() == [known]
    assert files.silent_s("fit") < DEADLINE_S


def test_old_jobs_and_long_outputs_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_files, "ENDED_KEPT", 2)
    monkeypatch.setattr(log_directory, "FILE_LIMIT", 10)
    monkeypatch.setattr(job_files, "OLDER_KEPT", 6)
    files = JobFiles(tmp_path)
    now = time.time()
    ends = {"old": now - 30 * 86400, "a": now - 3, "b": now - 2, "c": now - 1, "active": None}
    for name, ended_at in ends.items():
        files.create(record(name, ended_at=ended_at), {})
    files.forget_old()
    assert {known.name for known in files.records()} == {"b", "c", "active"}
    output = files.output("active")
    output.write_text("0123456789\n")
    files.keep_small("active")
    files.keep_small("c")
    assert output.read_text() == ""
    older = output.with_suffix(".log.1")
    assert older.read_text() == "56789\n"
    assert older.stat().st_mode & 0o077 == 0
