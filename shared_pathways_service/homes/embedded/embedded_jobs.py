"""The submitted jobs of the embedded service: calls to its supervisor, and its files."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import platform
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import cast

import grpc
import grpc.aio
from filelock import Timeout

from shared_pathways_service.api.job_requests import JobRequest, JobState, JobStatus
from shared_pathways_service.api.validation import DNS_LABEL_LIMIT, check_dns_label
from shared_pathways_service.errors import (
    InvalidRequestError,
    ServiceNotFound,
    ServiceNotReady,
    VersionSkew,
)
from shared_pathways_service.events import rfc3339
from shared_pathways_service.homes.embedded.discovery import ServiceLink, find, find_or_start
from shared_pathways_service.homes.job_home import OnStatus, Tell
from shared_pathways_service.homes.own_loop import run_in_own_loop
from shared_pathways_service.patience import timeouts
from shared_pathways_service.protocol import supervisor_pb2 as pb
from shared_pathways_service.protocol.grpc_errors import error_of
from shared_pathways_service.runtime.embedded.file_names import RuntimePaths
from shared_pathways_service.runtime.embedded.job_files import (
    SILENT_AGE_S,
    JobFiles,
    JobRecord,
    Replaced,
)
from shared_pathways_service.runtime.embedded.log_directory import tail_of
from shared_pathways_service.runtime.embedded.log_reading import LogFile, read_logs
from shared_pathways_service.runtime.embedded.service_lock import ServiceLock
from shared_pathways_service.runtime.settings import Settings, private_directory

__all__ = ["EmbeddedJobs"]

#: Seconds between two looks at a job that is waited for.
_LOOK_S = 0.1


class EmbeddedJobs:
    """The submitted jobs of this user's embedded service, as a `JobHome`."""

    name = "embedded"

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._files = JobFiles(settings.state_dir)

    def submit(self, request: JobRequest, tell: Tell = lambda _step: None) -> None:
        """Starts a job; starts the service first, if none runs."""
        tell("waiting for the service")
        private_directory(self._settings.state_dir, "SPS_STATE_DIR")
        accepted = threading.Event()
        try:
            run_in_own_loop(self._submit(request, accepted))
        except BaseException:
            # Of an interrupted submission nothing runs.
            if accepted.is_set():
                run_in_own_loop(self._cancel(request.name))
                self._cancel_orphan(request.name)
            raise

    def jobs(self) -> list[JobStatus]:
        """Returns all jobs whose files exist."""
        return [_status_of(record) for record in self._files.records()]

    def job(self, name: str) -> JobStatus:
        """Returns a job."""
        return _status_of(self._record(name))

    def cancel(self, name: str) -> JobStatus:
        """Ends a job; one that waits for its next service is not started again."""
        record = self._record(name)
        if record.is_elsewhere:
            self._cancel_elsewhere(record)
        elif not record.is_ended:
            run_in_own_loop(self._cancel(name))
            self._cancel_orphan(name)
        status = self.job(name)
        if status.is_active and not record.is_ended:
            raise ServiceNotReady(
                f"the job {name} still runs: its service, process {record.supervisor.pid}, is not "
                f"in {self._settings.runtime_dir}",
                hint=f"run `sps cancel {name}` with the SPS_RUNTIME_DIR of that service "
                f"({record.runtime_dir}), or end it: `kill {record.supervisor.pid}`",
            )
        return status

    def delete(self, name: str) -> None:
        """Removes the files of a job."""
        if self.job(name).is_active:
            raise InvalidRequestError(
                "NAME", name, "a job that has ended", hint=f"`sps cancel {name}` ends it"
            )
        self._files.remove(name)

    def output(self, name: str, lines: int) -> list[str]:
        """Returns the last lines of its output, also from before the last rotation."""
        self._record(name)
        path = self._files.output(name)
        found = tail_of(path, lines)
        if len(found) < lines:
            found = [*tail_of(path.with_suffix(".log.1"), lines - len(found)), *found]
        return found

    def follow(
        self, name: str, lines: int, show: Callable[[str], object], on_status: OnStatus
    ) -> JobStatus:
        """Shows the output of a job until the job has ended."""
        writer = _Follower(self, self._record(name), on_status)
        log = LogFile(path=self._files.output(name), writer=writer)
        read_logs([log], lines, lambda _source, line: show(line), follow=True)
        return writer.status

    def wait(self, name: str, timeout_s: float) -> JobStatus:
        """Returns a job once it has ended, or after the timeout."""
        deadline = time.monotonic() + timeout_s
        follower = _Follower(self, self._record(name), lambda _status: None)
        while follower.is_alive() and time.monotonic() < deadline:
            time.sleep(min(_LOOK_S, max(0.0, deadline - time.monotonic())))
        return follower.status

    def latest(self, record: JobRecord) -> JobRecord | None:
        """Returns the present record of a job; None if it was deleted or replaced."""
        found = self._files.read(record.name)
        return found if found is not None and found.uid == record.uid else None

    # ---- internals

    def _record(self, name: str) -> JobRecord:
        check_dns_label("NAME", name, limit=DNS_LABEL_LIMIT)
        record = self._files.read(name)
        if record is None:
            names = [known.name for known in self._files.records()]
            raise ServiceNotFound(
                f"you have no job {name} on this machine",
                candidates=names,
                hint=f"your jobs are {', '.join(names)}" if names else "`sps submit` starts one",
            )
        return record

    async def _submit(self, request: JobRequest, accepted: threading.Event) -> None:
        wanted = Counter(request.session.tenant.type_names)
        link = await find_or_start(
            self._settings, wanted or None, who=f"submitter of {request.name}"
        )
        try:
            async with contextlib.AsyncExitStack() as stack:
                stack.push_async_callback(link.close)
                sending = asyncio.create_task(_send(link, request, accepted))
                try:
                    await asyncio.shield(sending)
                finally:
                    # (After an interrupt only the answer says whether the job exists.)
                    await asyncio.wait({sending})
        except asyncio.CancelledError:
            # Here, as a second interrupt ends the caller's wait, but not this coroutine.
            if accepted.is_set():
                await self._cancel(request.name)
                self._cancel_orphan(request.name)
                accepted.clear()
            raise

    async def _cancel(self, name: str) -> None:
        link = await find(self._settings)
        if link is None:
            return
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(link.close)
            request = pb.CancelJobRequest(name=name)
            try:
                await link.supervisor.CancelJob(
                    request, metadata=link.metadata, timeout=timeouts.JOB_CALL.s
                )
            except grpc.aio.AioRpcError as error:
                if link.state.supervisor.is_alive():
                    raise _translated(error, link) from error

    def _cancel_orphan(self, name: str) -> None:
        """Ends a job whose service has ended, so that no later service starts it again."""
        record = self._files.read(name)
        if record is None or not record.is_orphaned:
            return
        with contextlib.ExitStack() as stack:
            try:
                # (With its directory, its service's successor is gone as well.)
                if (directory := Path(record.runtime_dir)).is_dir():
                    private_directory(directory, "SPS_RUNTIME_DIR")
                    lock = ServiceLock(RuntimePaths(directory))
                    lock.acquire(timeouts.SERVICE_LOCK.s)
                    stack.callback(lock.release)
                # Its program may not have noticed yet that the service has ended.
                record.kill_processes()
                now = time.time()
                ended = dataclasses.replace(record, state="cancelled", ended_at=now)
                self._files.end(ended, instead_of=record)
            except (Timeout, Replaced):
                raise ServiceNotReady(
                    "the service is just starting or ending", hint="try again in a moment"
                ) from None

    def _cancel_elsewhere(self, record: JobRecord) -> None:
        """Ends a job whose service was on another machine, which has been silent for long."""
        name, silent_s = record.name, self._files.silent_s(record.name)
        where = record.host or "another machine"
        if silent_s < SILENT_AGE_S:
            raise ServiceNotReady(
                f"the job {name} belongs to the service of {where}, which showed that it runs "
                f"{silent_s:.0f} s ago",
                hint=f"run `sps cancel {name}` on {where}",
            )
        reason = f"{where} had shown nothing of it for {silent_s / 60:.0f} minutes"
        ended = dataclasses.replace(record, state="cancelled", reason=reason, ended_at=time.time())
        try:
            self._files.end(ended, instead_of=record)
        except Replaced:
            known = self._files.read(name)
            # (Another process may have cancelled it as well.)
            if known is not None and not known.is_ended:
                raise ServiceNotReady(
                    f"the job {name} has changed just now", hint="try again in a moment"
                ) from None


class _Follower:
    """Looks at a job until it has ended, as a `Writer` of its output.

    Attributes:
      status: The job's last known state.
    """

    def __init__(self, home: EmbeddedJobs, record: JobRecord, on_status: OnStatus) -> None:
        self.status = _status_of(record)
        self._home = home
        self._record = record
        self._on_status = on_status
        self._orphaned_since: float | None = None

    def is_alive(self) -> bool:
        """Whether the job has not ended; one without a service may still be taken over."""
        record = self._home.latest(self._record)
        if record is None:
            self.status = dataclasses.replace(
                self.status, state="lost", reason="it was deleted", ended=rfc3339(time.time())
            )
            return False
        if record.is_orphaned:
            now = time.monotonic()
            self._orphaned_since = self._orphaned_since or now
            if now - self._orphaned_since < timeouts.JOB_TAKE_OVER.s:
                return True
        else:
            self._orphaned_since = None
        status = _status_of(record)
        if (status.state, status.attempt) != (self.status.state, self.status.attempt):
            self._on_status(status)
        self.status = status
        return status.is_active


def _status_of(record: JobRecord) -> JobStatus:
    state, reason = record.state, record.reason
    if record.is_orphaned:
        state, reason = "lost", "its service ended while it was active"
        if record.started_at is None or record.attempt <= record.retries:
            reason += "; the next service starts it again"
    return JobStatus(
        name=record.name,
        home=EmbeddedJobs.name,
        state=cast("JobState", state),
        command=record.command,
        workdir=record.workdir,
        slices=dict(Counter(record.slices)),
        attempt=record.attempt,
        retries=record.retries,
        submitted=rfc3339(record.submitted_at),
        started=None if record.started_at is None else rfc3339(record.started_at),
        ended=None if record.ended_at is None else rfc3339(record.ended_at),
        exit_code=record.exit_code,
        reason=reason,
        host=record.host or ("" if record.is_elsewhere else platform.node()),
    )


async def _send(link: ServiceLink, request: JobRequest, accepted: threading.Event) -> None:
    message = pb.SubmitJobRequest(job=json.dumps(request.to_json()))
    try:
        await link.supervisor.SubmitJob(
            message, metadata=link.metadata, timeout=timeouts.JOB_CALL.s
        )
    except grpc.aio.AioRpcError as error:
        raise _translated(error, link) from error
    accepted.set()


def _translated(error: grpc.aio.AioRpcError, link: ServiceLink) -> Exception:
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return VersionSkew(
            f"the embedded service, of release {link.state.version}, runs no submitted jobs",
            service=link.state.version,
            hint="end it, so that one of this release is started",
        )
    return error_of(error, service="the embedded service", address=link.state.address)
