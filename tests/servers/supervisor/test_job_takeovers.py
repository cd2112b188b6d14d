"""Jobs that another service or machine ends or takes over, and ends that cannot be written."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.deadlines import deadline, wait_until
from harness.job_records import job_record
from shared_pathways_service.runtime.embedded import job_files
from shared_pathways_service.runtime.embedded.job_files import JobFiles, JobRecord, Replaced
from shared_pathways_service.runtime.embedded.job_processes import job_variables
from shared_pathways_service.runtime.processes import identity_of
from shared_pathways_service.runtime.settings import Settings
from shared_pathways_service.servers.supervisor import submitted_jobs
from shared_pathways_service.servers.supervisor.proxies import NameTaken
from tests.servers.supervisor.test_submitted_jobs import Place, at_place


def orphan(**fields: object) -> JobRecord:
    """The record of a job whose program ran when its service was killed."""
    known = {
        "uid": f"test-{os.getpid()}-{time.monotonic_ns()}",
        "retries": 1,
        "runtime_dir": str(Settings.load().runtime_dir),
        "attempt": 1,
        "started_at": 2.0,
    }
    return job_record(**{**known, **fields})


def elsewhere_cancelled(record: JobRecord) -> JobRecord:
    return dataclasses.replace(record, state="cancelled", reason="silent", ended_at=time.time())


async def end_of_use(place: Place) -> None:
    async with asyncio.timeout(deadline(60.0)):
        while place.is_used():
            await asyncio.sleep(0.001)


@pytest.fixture
def program() -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A job's program, which ignores SIGTERM, and its uid."""
    uid = orphan().uid
    source = "import signal; signal.signal(15, signal.SIG_IGN); print(flush=True); signal.pause()"
    with subprocess.Popen(
        [sys.executable, "-c", source],
        env={**os.environ, **job_variables("fit", uid, 1)},
        stdout=subprocess.PIPE,
    ) as running:
        assert running.stdout is not None
        running.stdout.readline()
        try:
            yield uid, running
        finally:
            running.kill()


def test_a_record_that_says_that_its_job_has_ended_stays(tmp_path: Path) -> None:
    files, active = JobFiles(tmp_path), orphan(supervisor=identity_of())
    files.create(active, {})
    ended = elsewhere_cancelled(active)
    files.end(ended)
    for write in (files.write, files.end):
        with pytest.raises(Replaced):
            write(active)
    with pytest.raises(Replaced):
        files.end(dataclasses.replace(ended, state="failed"))
    assert files.records() == [ended]
    # One whose request could not be removed is written again.
    files.request("fit").write_text("{}")
    files.end(ended)
    assert not files.request("fit").exists()


def test_a_record_that_has_changed_since_it_was_judged_is_not_ended(tmp_path: Path) -> None:
    files, judged = JobFiles(tmp_path), orphan(supervisor=identity_of())
    files.create(judged, {})
    files.write(dataclasses.replace(judged, attempt=2))
    with pytest.raises(Replaced):
        files.end(elsewhere_cancelled(judged), instead_of=judged)
    assert files.request("fit").exists()
    files.end(elsewhere_cancelled(judged), instead_of=dataclasses.replace(judged, attempt=2))
    assert [known.state for known in files.records()] == ["cancelled"]


def test_a_job_that_another_machine_has_cancelled_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submitted_jobs, "_HOUSEKEEPING_INTERVAL_S", 0.001)
    monkeypatch.setattr(submitted_jobs, "REWRITE_INTERVAL_S", 0.001)

    async def work(place: Place) -> None:
        place.submit(retries=1)
        runner = await place.runners.get()
        ended = elsewhere_cancelled(await place.until("running"))
        place.files.end(ended)
        house = asyncio.create_task(place.jobs.keep_house())
        async with asyncio.timeout(deadline(60.0)):
            assert (await runner.end).is_cancelled
        await end_of_use(place)
        house.cancel()
        assert place.record() == ended
        # Not while it waits for its next attempt, either.
        place.submit(retries=1)
        first = await place.runners.get()
        ended = elsewhere_cancelled(await place.until("running"))
        place.files.end(ended)
        first.exits(3)
        await end_of_use(place)
        assert place.record() == ended
        assert place.runners.empty()

    at_place(monkeypatch, work)


def test_an_end_that_cannot_be_written_is_written_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submitted_jobs, "_HOUSEKEEPING_INTERVAL_S", 0.001)

    def full(_path: Path, _data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async def work(place: Place) -> None:
        place.submit()
        runner = await place.runners.get()
        await place.until("running")
        with monkeypatch.context() as disk:
            disk.setattr(job_files, "write_private", full)
            runner.exits(0)
            await end_of_use(place)
            assert place.record().state == "running"
            with pytest.raises(NameTaken):
                place.submit()
        house = asyncio.create_task(place.jobs.keep_house())
        assert (await place.until("succeeded")).exit_code == 0
        house.cancel()
        # Also by a service that ends.
        place.submit()
        runner = await place.runners.get()
        await place.until("running")
        with monkeypatch.context() as disk:
            disk.setattr(job_files, "write_private", full)
            runner.exits(3)
            await end_of_use(place)
        await place.jobs.stop()
        assert place.record().state == "failed"

    at_place(monkeypatch, work)


def test_a_submission_before_the_takeover_finds_the_name_in_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work(place: Place) -> None:
        place.files.create(orphan(), {})
        with pytest.raises(NameTaken, match="active job fit"):
            place.submit()
        assert (await place.until("running")).attempt == 2
        # Once is enough.
        place.jobs.recover()
        assert place.runners.qsize() == 1

    at_place(monkeypatch, work)


@pytest.mark.race
def test_what_is_left_of_an_attempt_has_ended_before_the_next_begins(
    monkeypatch: pytest.MonkeyPatch, program: tuple[str, subprocess.Popen[bytes]]
) -> None:
    uid, running = program

    async def work(place: Place) -> None:
        # (Its runner may have been started a moment before the kill, and not be in the record.)
        place.files.create(orphan(uid=uid, runner=None), {})
        place.jobs.recover()
        assert wait_until("its end", lambda: running.poll() is not None, seconds=1.0)
        assert (await place.until("running")).attempt == 2

    at_place(monkeypatch, work)
