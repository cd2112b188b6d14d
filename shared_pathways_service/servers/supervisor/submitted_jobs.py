"""Runs submitted jobs: programs that outlive their submitters, each with its own connection."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import platform
import secrets
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from filelock import Timeout

from shared_pathways_service.api.job_requests import JobRequest
from shared_pathways_service.errors import CapacityError, InvalidRequestError, ServiceNotReady
from shared_pathways_service.events import Event
from shared_pathways_service.events.supervisor import (
    JobEnded,
    JobRetrying,
    JobStarted,
    JobSubmitted,
)
from shared_pathways_service.protocol import supervisor_pb2 as pb
from shared_pathways_service.runtime.embedded.job_files import (
    REWRITE_INTERVAL_S,
    JobFiles,
    JobRecord,
    Replaced,
)
from shared_pathways_service.runtime.embedded.server_environment import server_environment
from shared_pathways_service.runtime.file_failures import explained, explanation
from shared_pathways_service.runtime.glog import glog
from shared_pathways_service.runtime.processes import identity_of
from shared_pathways_service.runtime.settings import Settings
from shared_pathways_service.servers.supervisor.job_decisions import (
    NextStep,
    after_attempt,
    after_restart,
    pause_before,
)
from shared_pathways_service.servers.supervisor.job_runner_process import JobRunnerProcess
from shared_pathways_service.servers.supervisor.occupancy import Occupancy
from shared_pathways_service.servers.supervisor.proxies import NameTaken, Proxies

__all__ = ["SubmittedJobs"]

#: Each active job has three processes, and more when its program runs.
_MOST_ACTIVE = 200
#: Seconds between two looks at the size of outputs.
_HOUSEKEEPING_INTERVAL_S = 2.0


class _Job:
    """An active job."""

    def __init__(self, record: JobRecord) -> None:
        self.record = record
        self.runner: JobRunnerProcess | None = None
        self.life: asyncio.Task[None] | None = None
        #: Set when it shall end, be it cancelled or interrupted by the end of the service.
        self.end_asked = asyncio.Event()
        self.is_cancelled = False

    def ask_end(self, *, is_cancelled: bool) -> None:
        """Requests its end; a cancelled one is not started again by a later service."""
        self.is_cancelled = self.is_cancelled or is_cancelled
        self.end_asked.set()
        if self.runner is not None:
            self.runner.cancel() if is_cancelled else self.runner.stop()


class SubmittedJobs:
    """The active jobs of the service, and the files of all jobs of its user."""

    def __init__(
        self,
        settings: Settings,
        *,
        types: Collection[str],
        occupancy: Occupancy,
        proxies: Proxies,
        report: Callable[[Event], object],
        on_change: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._files = JobFiles(settings.state_dir)
        self._types = types
        self._occupancy = occupancy
        self._proxies = proxies
        self._report = report
        self._on_change = on_change
        self._active: dict[str, _Job] = {}
        #: Jobs that have ended, while their files do not say so yet, by name.
        self._unwritten: dict[str, JobRecord] = {}
        self._is_stopping = False

    def processes(self) -> list[pb.GetProcessesResponse.Process]:
        """Returns the running runners."""
        return [
            pb.GetProcessesResponse.Process(
                role="job",
                pid=job.runner.identity.pid,
                name=name,
                restarts=job.record.attempt - 1,
            )
            for name, job in self._active.items()
            if job.runner is not None and job.runner.is_running
        ]

    def submit(self, request: JobRequest) -> None:
        """Starts a job.

        Raises:
          InvalidRequestError: The service has no slices of a requested type.
          NameTaken: An active job, or a connection, has its name.
          CapacityError: There are too many active jobs.
          ServiceNotReady: The service is ending.
          PreflightError: Its files cannot be written.
        """
        with explained(self._settings.state_dir, "SPS_STATE_DIR"):
            self._submit(request)
        self._files.forget_old()
        self._report(JobSubmitted(tenant=request.name))

    def _submit(self, request: JobRequest) -> None:
        for kind in request.session.tenant.type_names:
            if kind not in self._types:
                raise InvalidRequestError(
                    "expected_tpu_instances",
                    kind,
                    f"types that the service has: {', '.join(self._types)}",
                )
        self._check_name(request.name)
        if len(self._active) >= _MOST_ACTIVE:
            raise CapacityError(
                f"the service has {len(self._active)} active jobs, the most that it takes",
                hint="wait until some have ended, or cancel some (`sps cancel`)",
            )
        record = JobRecord(
            name=request.name,
            uid=secrets.token_hex(8),
            state="queued",
            command=request.command,
            workdir=request.workdir,
            slices=request.session.tenant.type_names,
            retries=request.retries,
            runtime_dir=str(self._settings.runtime_dir),
            supervisor=identity_of(),
            host=platform.node(),
            submitted_at=time.time(),
        )
        try:
            is_begun = self._begin(record, lambda: self._files.create(record, request.to_json()))
        except Replaced:
            raise NameTaken(f"you have an active job {request.name}, of another machine") from None
        except Timeout:
            raise ServiceNotReady(
                "the services of other machines are just changing the files of your jobs",
                hint="try again in a moment",
            ) from None
        if not is_begun:
            raise ServiceNotReady("the service is ending", hint="start a new service")

    async def cancel(self, name: str) -> bool:
        """Ends a job; returns once it has ended, and whether there was an active one."""
        job = self._active.get(name)
        if job is None or job.life is None:
            return False
        job.ask_end(is_cancelled=True)
        await asyncio.wait({job.life})
        return True

    def recover(self) -> None:
        """Starts the jobs again that an earlier service of this directory left active."""
        for record in self._files.records():
            if self._is_left_to_us(record):
                self._recover(record)

    async def keep_house(self) -> None:
        """Limits the size of outputs, and shows that jobs are active, until it is cancelled."""
        loop = asyncio.get_running_loop()
        written_at = loop.time()
        while True:
            await asyncio.sleep(_HOUSEKEEPING_INTERVAL_S)
            for name in self._active:
                self._files.keep_small(name)
            self._write_ends()
            if loop.time() - written_at >= REWRITE_INTERVAL_S:
                written_at = loop.time()
                for job in list(self._active.values()):
                    self._write(job)

    async def stop(self) -> None:
        """Ends all processes; their jobs stay active in their files, for a later service."""
        self._is_stopping = True
        for job in self._active.values():
            job.ask_end(is_cancelled=False)
        lives = [job.life for job in self._active.values() if job.life is not None]
        await asyncio.gather(*lives, return_exceptions=True)
        self._write_ends()

    def kill(self) -> None:
        """Kills all processes at once; call `stop` afterwards."""
        # All of them, even if an error, as without a free file descriptor, interrupts one.
        with contextlib.ExitStack() as stack:
            for job in self._active.values():
                if job.runner is not None:
                    stack.callback(job.runner.kill)

    # ---- one job

    def _check_name(self, name: str) -> None:
        known = self._files.read(name)
        if known is not None and self._is_left_to_us(known):
            # (`recover` has not come to it.)
            self._recover(known)
            known = self._files.read(name)
        if known is not None and known.is_elsewhere:
            raise NameTaken(
                f"you have an active job {name} ({known.state}) on another machine, {known.host}"
            )
        if known is not None and not known.is_ended and not known.is_orphaned:
            raise NameTaken(f"you have an active job {name} ({known.state})")
        proxy = self._proxies.find(name)
        if proxy is not None and not proxy.is_over:
            raise NameTaken(f"{name} is the name of a connection")

    def _begin(self, record: JobRecord, write: Callable[[], None], pause_s: float = 0.0) -> bool:
        """Makes a job active once it is written; returns False if the service is ending."""
        if self._is_stopping or not self._occupancy.enter():
            return False
        with contextlib.ExitStack() as undo:
            undo.callback(self._leave)
            write()
            undo.pop_all()
        job = self._active[record.name] = _Job(record)
        job.life = asyncio.create_task(self._live(job, pause_s))
        return True

    def _leave(self) -> None:
        self._occupancy.leave(asyncio.get_running_loop().time())
        self._on_change()

    def _is_left_to_us(self, record: JobRecord) -> bool:
        """Whether an earlier service of this directory left a job active."""
        ours = record.runtime_dir == str(self._settings.runtime_dir)
        return ours and record.is_orphaned and record.name not in self._active

    def _recover(self, record: JobRecord) -> None:
        record.kill_processes()
        step = after_restart(
            had_started=record.started_at is not None,
            attempt=record.attempt,
            retries=record.retries,
        )
        known = dataclasses.replace(
            record,
            state=step.state,
            reason=step.reason,
            supervisor=identity_of(),
            host=platform.node(),
            runner=None,
        )
        if step.state == "lost":
            self._end(known, step)
            return
        # An attempt in which the program was not started does not count.
        fresh = step.state == "queued"
        known = dataclasses.replace(known, attempt=max(0, known.attempt - fresh))
        pause = 0.0 if fresh else pause_before(known.attempt)
        if self._begin(known, lambda: self._files.write(known), pause) and not fresh:
            self._report(JobRetrying(tenant=known.name, reason=step.reason, pause_s=pause))

    async def _live(self, job: _Job, pause_s: float) -> None:
        with contextlib.ExitStack() as stack:
            stack.callback(self._leave)
            stack.callback(self._active.pop, job.record.name)
            try:
                step = await self._run_attempts(job, pause_s)
            except Exception as error:  # noqa: BLE001 - a job must not be active without a life
                glog("E", f"the job {job.record.name} failed in the service: {error!r}")
                step = NextStep(state="failed", reason=f"in the service: {error!r}", exit_code=None)
            if not self._is_stopping or job.is_cancelled or step.state == "succeeded":
                self._end(job.record, step)

    async def _run_attempts(self, job: _Job, pause_s: float) -> NextStep:
        """Returns how a job ended; while the service is stopping, how its attempt did."""
        while True:
            if pause_s:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await job.end_asked.wait()
            step = await self._attempt(job)
            if step.state != "retrying" or self._is_stopping:
                return step
            pause_s = pause_before(job.record.attempt)
            self._change(job, state="retrying", reason=step.reason, exit_code=step.exit_code)
            name = job.record.name
            self._report(JobRetrying(tenant=name, reason=step.reason, pause_s=pause_s))

    async def _attempt(self, job: _Job) -> NextStep:
        if job.end_asked.is_set():
            return NextStep(state="cancelled", reason="", exit_code=job.record.exit_code)
        self._change(job, state="queued", attempt=job.record.attempt + 1, started_at=None)
        if job.end_asked.is_set():
            # Its files are another job's now.
            return NextStep(state="cancelled", reason="", exit_code=None)
        name = job.record.name
        try:
            runner, reports = await JobRunnerProcess.start(
                request=self._files.request(name),
                output=self._files.output(name),
                uid=job.record.uid,
                attempt=job.record.attempt,
                environment=self._environment(),
            )
        except OSError as error:
            reason = f"its runner could not be started: {self._words_of(error)}"
            return NextStep(state="failed", reason=reason, exit_code=None)
        job.runner = runner
        self._change(job, runner=runner.identity)
        if job.end_asked.is_set():
            job.ask_end(is_cancelled=job.is_cancelled)
        end = await runner.run(reports, lambda: self._note_start(job))
        job.runner = None
        return after_attempt(end, attempt=job.record.attempt, retries=job.record.retries)

    def _words_of(self, error: OSError) -> str:
        state_dir = self._settings.state_dir
        if error.filename is None or not Path(error.filename).is_relative_to(state_dir):
            return str(error)
        found = explanation(error, state_dir, "SPS_STATE_DIR")
        return f"{found.message}; {found.hint}"

    def _environment(self) -> Mapping[str, str]:
        """Returns the variables of a runner, which uses this service."""
        settings = self._settings
        return {
            **server_environment(os.environ),
            "SPS_RUNTIME_DIR": str(settings.runtime_dir),
            "SPS_STATE_DIR": str(settings.state_dir),
            "SPS_CACHE_DIR": str(settings.cache_dir),
        }

    def _note_start(self, job: _Job) -> None:
        self._change(job, state="running", reason="", started_at=time.time())
        self._report(JobStarted(tenant=job.record.name, attempt=job.record.attempt))

    def _change(self, job: _Job, **fields: object) -> None:
        job.record = dataclasses.replace(job.record, **fields)  # type: ignore[arg-type]
        self._write(job)
        self._on_change()

    def _write(self, job: _Job) -> None:
        try:
            self._files.write(job.record)
        except OSError as error:
            # A full disk must not end a job: its file is then older than its state.
            glog("W", f"the record of the job {job.record.name} is not up to date: {error}")
        except Replaced:
            glog(
                "E", f"the job {job.record.name} ends, as another machine has ended or replaced it"
            )
            job.ask_end(is_cancelled=True)

    def _end(self, record: JobRecord, step: NextStep) -> None:
        ended = dataclasses.replace(
            record,
            state=step.state,
            reason=step.reason,
            exit_code=step.exit_code,
            ended_at=time.time(),
        )
        self._unwritten[ended.name] = ended
        self._write_ends()
        self._report(
            JobEnded(
                tenant=ended.name, state=ended.state, reason=step.reason, exit_code=step.exit_code
            )
        )

    def _write_ends(self) -> None:
        """Writes the records of jobs that have ended; those that cannot be written are kept.

        Otherwise the next service would start them again.
        """
        for record in [*self._unwritten.values()]:
            try:
                self._files.end(record)
            except OSError as error:
                glog("W", f"the end of the job {record.name} cannot be written yet: {error}")
                continue
            except Replaced:
                pass  # others have ended it before
            del self._unwritten[record.name]
