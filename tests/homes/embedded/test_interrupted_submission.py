"""Ctrl-C while a job is being submitted to the embedded service leaves no job that runs."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Literal

import grpc
import grpc.aio
import pytest

from harness.deadlines import wait_until
from shared_pathways_service.api.job_requests import JobRequest
from shared_pathways_service.api.requests import Requester
from shared_pathways_service.homes.embedded import embedded_jobs
from shared_pathways_service.homes.embedded.embedded_jobs import EmbeddedJobs
from shared_pathways_service.protocol import supervisor_pb2 as pb
from shared_pathways_service.runtime.settings import Settings
from tests.homes.interrupts import Interrupt

ADA = Requester(user="ada", host="laptop", suffix="x7k2p")
REQUEST = JobRequest.build(ADA, ["true"], name="fit", workdir="/", environment={})

Moment = Literal["joining", "accepting", "refusing", "leaving", "accepting late"]


class Service:
    """A supervisor that interrupts its caller at a moment of the submission."""

    metadata = ()
    state = SimpleNamespace(address="unix:supervisor")

    def __init__(self, interrupt: Interrupt, moment: Moment) -> None:
        self.jobs: list[str] = []
        self.cancelled: list[str] = []
        self.supervisor = self
        self._interrupt = interrupt
        self._moment = moment

    async def joined(self, *_: object, **_keywords: object) -> Service:
        """Stands in for `find_or_start`."""
        self._caller = asyncio.current_task()
        await self._interrupt_caller("joining")
        return self

    async def found(self, _settings: Settings) -> Service:
        """Stands in for `find`."""
        return self

    async def SubmitJob(  # noqa: N802
        self, _request: pb.SubmitJobRequest, **_keywords: object
    ) -> pb.SubmitJobResponse:
        await self._interrupt_caller("accepting")
        await self._interrupt_caller("accepting late")
        if self._moment == "accepting late":
            await self._interrupt.send_again()
        await self._interrupt_caller("refusing")
        if self._moment == "refusing":
            raise grpc.aio.AioRpcError(
                grpc.StatusCode.ALREADY_EXISTS, grpc.aio.Metadata(), grpc.aio.Metadata()
            )
        self.jobs.append("fit")
        return pb.SubmitJobResponse(name="fit")

    async def CancelJob(  # noqa: N802
        self, request: pb.CancelJobRequest, **_keywords: object
    ) -> pb.CancelJobResponse:
        self.cancelled.append(request.name)
        return pb.CancelJobResponse(cancelled=True)

    async def close(self) -> None:
        await self._interrupt_caller("leaving")

    async def _interrupt_caller(self, moment: Moment) -> None:
        if moment != self._moment or self._interrupt.is_raised:
            return
        await self._interrupt.send()
        assert self._caller is not None
        if self._caller is asyncio.current_task():
            await asyncio.Event().wait()
        while not self._caller.cancelling():
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("moment", ["joining", "accepting", "refusing", "leaving"])
def test_no_job_runs_after_ctrl_c(moment: Moment, monkeypatch: pytest.MonkeyPatch) -> None:
    with Interrupt() as interrupt:
        service = Service(interrupt, moment)
        monkeypatch.setattr(embedded_jobs, "find_or_start", service.joined)
        monkeypatch.setattr(embedded_jobs, "find", service.found)
        with pytest.raises(KeyboardInterrupt):
            EmbeddedJobs(Settings.load()).submit(REQUEST)
    assert interrupt.is_raised
    assert service.jobs == (["fit"] if moment in ("accepting", "leaving") else [])
    # (If the service refused the job, the name is another job's.)
    assert service.cancelled == service.jobs


def test_no_job_runs_after_a_second_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    with Interrupt() as interrupt:
        service = Service(interrupt, "accepting late")
        monkeypatch.setattr(embedded_jobs, "find_or_start", service.joined)
        monkeypatch.setattr(embedded_jobs, "find", service.found)
        with pytest.raises(KeyboardInterrupt):
            EmbeddedJobs(Settings.load()).submit(REQUEST)
    # It has not waited for the service. (A process waits for such threads before it ends.)
    assert interrupt.is_raised_again
    wait_until("the job is cancelled", lambda: service.cancelled == ["fit"])
    assert service.jobs == ["fit"]
