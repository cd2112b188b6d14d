"""The active jobs of a service, with runners that a test ends: use, names, retries, restarts."""

from __future__ import annotations

import asyncio
import errno
import math
import signal
import subprocess
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import pytest

from harness.deadlines import deadline
from harness.job_records import job_record
from harness.processes import ended_process, run_async
from shared_pathways_service.api.job_requests import JobRequest
from shared_pathways_service.api.requests import Requester
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.events import Event
from shared_pathways_service.events.supervisor import JobEnded, JobRetrying
from shared_pathways_service.runtime.embedded.job_files import JobFiles, JobRecord
from shared_pathways_service.runtime.processes import Identity, identity_of
from shared_pathways_service.runtime.settings import Settings
from shared_pathways_service.servers.supervisor import job_runner_process, submitted_jobs
from shared_pathways_service.servers.supervisor.job_decisions import AttemptEnd
from shared_pathways_service.servers.supervisor.job_runner_process import JobRunnerProcess
from shared_pathways_service.servers.supervisor.occupancy import Occupancy
from shared_pathways_service.servers.supervisor.proxies import NameTaken, Proxies
from shared_pathways_service.servers.supervisor.submitted_jobs import SubmittedJobs

ADA = Requester(user="ada", host="laptop", suffix="x7k2p")


class Runner:
    """An attempt that runs until the test, or the service, ends it."""

    is_running = True

    def __init__(self) -> None:
        self.identity = Identity(pid=0, start="never")
        self.is_killed = False
        self.end: asyncio.Future[AttemptEnd] = asyncio.get_running_loop().create_future()

    def exits(self, code: int) -> None:
        self.end.set_result(AttemptEnd(exit_code=code, has_started=True))

    def cancel(self) -> None:
        self.end.set_result(AttemptEnd(exit_code=143, has_started=True, is_cancelled=True))

    def stop(self) -> None:
        self.exits(143)

    def kill(self) -> None:
        self.is_killed = True
        raise OSError(errno.EMFILE, "no free descriptor")

    async def run(self, _reports: object, on_start: Callable[[], object]) -> AttemptEnd:
        on_start()
        return await self.end


class NoProxies:
    """A service without connections."""

    def find(self, _name: str) -> None:
        return None


class Place:
    """The jobs of a service, whose runners a test controls."""

    def __init__(self) -> None:
        self.occupancy = Occupancy(60, now=0)
        self.events: list[Event] = []
        self.runners: asyncio.Queue[Runner] = asyncio.Queue()
        settings = Settings.load()
        self.files = JobFiles(settings.state_dir)
        self.jobs = SubmittedJobs(
            settings,
            types=["tpuv6e:2x2"],
            occupancy=self.occupancy,
            proxies=cast("Proxies", NoProxies()),
            report=self.events.append,
            on_change=lambda: None,
        )

    async def start(self, **_arguments: object) -> tuple[Runner, None]:
        runner = Runner()
        self.runners.put_nowait(runner)
        return runner, None

    def submit(self, name: str = "fit", **arguments: Any) -> None:
        request = {"workdir": "/", "environment": {}, "name": name, **arguments}
        self.jobs.submit(JobRequest.build(ADA, ["true"], **request))

    def is_used(self) -> bool:
        return self.occupancy.deadline() == math.inf

    def record(self) -> JobRecord:
        found = self.files.read("fit")
        assert found is not None
        return found

    async def until(self, state: str) -> JobRecord:
        async with asyncio.timeout(deadline(60.0)):
            while self.record().state != state:
                await asyncio.sleep(0.001)
        return self.record()


def at_place(
    monkeypatch: pytest.MonkeyPatch, work: Callable[[Place], Coroutine[Any, Any, None]]
) -> None:
    """Runs a test with a place, and without pauses."""

    async def run() -> None:
        place = Place()
        monkeypatch.setattr(JobRunnerProcess, "start", place.start)
        monkeypatch.setattr(submitted_jobs, "pause_before", lambda _retry: 0.001)
        await work(place)
        await place.jobs.stop()

    run_async(run())


def test_a_job_uses_its_service_until_it_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(place: Place) -> None:
        assert not place.is_used()
        place.submit(retries=1)
        assert place.is_used()
        assert place.record().state == "queued"
        (await place.runners.get()).exits(3)
        second = await place.runners.get()
        assert place.is_used()
        assert (await place.until("running")).attempt == 2
        second.exits(4)
        ended = await place.until("failed")
        assert (ended.exit_code, ended.reason) == (4, "exit code 4")
        assert not place.is_used()
        assert not place.files.request("fit").exists()
        [retry] = [event for event in place.events if isinstance(event, JobRetrying)]
        assert retry.reason == "exit code 3"
        [end] = [event for event in place.events if isinstance(event, JobEnded)]
        assert (end.tenant, end.state, end.exit_code) == ("fit", "failed", 4)
        # Its name can be used again now.
        place.submit()
        (await place.runners.get()).exits(0)
        assert (await place.until("succeeded")).attempt == 1

    at_place(monkeypatch, work)


def test_names_and_types_are_checked_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work(place: Place) -> None:
        with pytest.raises(InvalidRequestError, match="tpuv5e:2x2"):
            place.submit(expected_tpu_instances={"tpuv5e:2x2": 1})
        assert place.files.records() == []
        assert not place.is_used()
        place.submit()
        await place.until("running")
        with pytest.raises(NameTaken, match="active job fit"):
            place.submit()
        assert await place.jobs.cancel("fit")
        assert place.record().state == "cancelled"
        assert not await place.jobs.cancel("fit")
        assert not place.is_used()

    at_place(monkeypatch, work)


@pytest.mark.parametrize(
    ("retries", "had_started", "state"),
    [(0, True, "lost"), (1, True, "running"), (0, False, "running")],
)
def test_a_later_service_takes_over_what_was_active(
    monkeypatch: pytest.MonkeyPatch, retries: int, had_started: bool, state: str
) -> None:
    dead = ended_process()

    async def work(place: Place) -> None:
        record = job_record(
            retries=retries,
            runtime_dir=str(Settings.load().runtime_dir),
            supervisor=dead,
            attempt=1,
            started_at=2.0 if had_started else None,
        )
        place.files.create(record, {})
        place.jobs.recover()
        taken = await place.until(state)
        assert taken.supervisor == identity_of()
        assert place.is_used() is (state != "lost")
        if state == "lost":
            assert taken.reason == "its service ended while it was active"
        else:
            # A job whose program was never started has used no attempt.
            assert taken.attempt == (2 if had_started else 1)

    at_place(monkeypatch, work)


def test_jobs_of_another_service_and_of_a_live_one_are_left_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def work(place: Place) -> None:
        place.submit()
        mine = await place.until("running")
        other = JobRecord(
            **{**mine.__dict__, "name": "other", "runtime_dir": str(tmp_path)},
        )
        place.files.create(JobRecord(**{**other.__dict__, "supervisor": ended_process()}), {})
        there = Identity(pid=1, start="another-boot/1")
        elsewhere = {**mine.__dict__, "name": "elsewhere", "supervisor": there, "host": "far"}
        place.files.create(JobRecord(**elsewhere), {})
        before = place.files.records()
        place.jobs.recover()
        assert place.files.records() == before
        with pytest.raises(NameTaken, match="on another machine, far"):
            place.submit("elsewhere")

    at_place(monkeypatch, work)


def test_the_end_of_a_service_leaves_its_jobs_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(place: Place) -> None:
        place.submit()
        await place.until("running")
        await place.jobs.stop()
        assert not place.is_used()
        assert not place.record().is_ended
        assert place.files.request("fit").exists()

    at_place(monkeypatch, work)


def test_all_runners_are_killed_even_if_an_error_interrupts_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def work(place: Place) -> None:
        names = ("fit", "tune", "test")
        for name in names:
            place.submit(name=name)
        runners = [await place.runners.get() for _ in names]
        with pytest.raises(OSError, match="no free descriptor"):
            place.jobs.kill()
        assert [runner.is_killed for runner in runners] == [True, True, True]

    at_place(monkeypatch, work)


def test_a_runner_is_killed_even_if_its_program_cannot_be_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(_uid: str) -> int:
        raise OSError(errno.EMFILE, "no free descriptor")

    async def run() -> None:
        monkeypatch.setattr(job_runner_process, "kill_job_processes", fail)
        process = await asyncio.create_subprocess_exec("cat", stdin=subprocess.PIPE)
        unused = cast("asyncio.StreamWriter", None)
        runner = JobRunnerProcess(
            process, identity_of(process.pid), "0f", tmp_path / "output", unused
        )
        with pytest.raises(OSError, match="no free descriptor"):
            runner.kill()
        assert await process.wait() == -signal.SIGKILL

    run_async(run())
