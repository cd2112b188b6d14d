"""Waiting for a submitted job in a cluster, and showing its output."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Sequence
from typing import Any

import pytest

from shared_pathways_service.api.job_requests import JobRequest, JobStatus
from shared_pathways_service.api.requests import Requester
from shared_pathways_service.api.service_choice import ServiceChoice
from shared_pathways_service.cluster_state.job_reading import job_status
from shared_pathways_service.homes.kubernetes import cluster_jobs
from shared_pathways_service.homes.kubernetes.job_output import JobOutput
from shared_pathways_service.homes.own_loop import run_in_own_loop
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.errors import ApiUnreachable
from shared_pathways_service.kube.paths import item
from shared_pathways_service.manifests import names
from tests.kube.nowhere import NowhereApi

JOB = {
    "metadata": {"name": "train", "uid": "u", "labels": {names.LABEL_KIND: names.KIND_JOB}},
    "status": {},
}
POD = {"metadata": {"name": "train-0", "uid": "p"}, "status": {"phase": "Running"}}
ROUNDS = 50


class LeavingApi(NowhereApi):
    """Knows a job, and is away after some answers."""

    def __init__(self, answers: int) -> None:
        super().__init__()
        self._answers = answers
        self.patches: list[str] = []
        self.deleted: list[tuple[str, str]] = []

    async def find(self, path: str, **_: Any) -> dict[str, Any]:
        self._answer()
        return JOB

    async def get(self, path: str, **_: Any) -> dict[str, Any]:
        self._answer()
        return {"items": []}

    async def patch(self, path: str, *_: Any, **__: Any) -> dict[str, Any]:
        self.patches.append(path)
        return JOB

    async def delete(self, path: str, *, uid: str, **_: Any) -> bool:
        self.deleted.append((path, uid))
        return True

    async def stream_lines(self, *_: Any, **__: Any) -> AsyncGenerator[str, None]:
        yield "2026-01-01T00:00:00Z hello"
        await asyncio.Event().wait()

    def _answer(self) -> None:
        if self._answers == 0:
            raise ApiUnreachable("the API server does not answer")
        self._answers -= 1


def jobs_with(api: KubeApi, monkeypatch: pytest.MonkeyPatch) -> cluster_jobs.ClusterJobs:
    async def resolve(_: object) -> None:
        pass

    service = ServiceChoice.check((None, None, None), "testbed", "n", None)
    monkeypatch.setattr(cluster_jobs, "resolve", resolve)
    monkeypatch.setattr(cluster_jobs, "KubeApi", lambda _: api)
    return cluster_jobs.ClusterJobs(service, "ada")


# Away at once, or after one look more.
@pytest.mark.parametrize("answers", [2, 5])
def test_a_timeout_holds_while_the_api_server_is_away(
    answers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = jobs_with(LeavingApi(answers), monkeypatch).wait("train", 0.05)
    assert (status.name, status.state) == ("train", "queued")


def test_no_time_to_wait_is_one_look(monkeypatch: pytest.MonkeyPatch) -> None:
    assert jobs_with(LeavingApi(2), monkeypatch).wait("train", 0).is_active


def test_ctrl_c_after_the_last_step_of_a_submission_leaves_no_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def submit_job(*_: Any) -> str:
        return "uid-1"

    def run(work: Coroutine[Any, Any, Any]) -> Any:
        result = run_in_own_loop(work)
        if interrupts:
            raise interrupts.pop()
        return result

    api, interrupts = LeavingApi(0), [KeyboardInterrupt()]
    monkeypatch.setattr(cluster_jobs, "submit_job", submit_job)
    monkeypatch.setattr(cluster_jobs, "run_in_own_loop", run)
    request = JobRequest.build(
        Requester(user="ada", host="laptop", suffix="x7k2p"),
        ["python"],
        context="testbed",
        namespace="n",
        workdir="/work",
        environment={},
    )
    with pytest.raises(KeyboardInterrupt):
        jobs_with(api, monkeypatch).submit(request)
    assert api.deleted == [(item("jobs", "n", request.name), "uid-1")]


def test_cancelling_ends_while_the_api_server_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPS_PATIENCE", "0.01")
    api = LeavingApi(2)
    assert jobs_with(api, monkeypatch).cancel("train").is_active
    assert api.patches


def test_an_error_of_show_ends_following_at_once() -> None:
    rounds = 0

    async def changes() -> AsyncIterator[tuple[JobStatus, Sequence[dict[str, Any]]]]:
        nonlocal rounds
        while rounds < ROUNDS:
            rounds += 1
            yield job_status(JOB, [POD], home="kubernetes"), [POD]
            await asyncio.sleep(0)

    def broken(_: str) -> None:
        raise BrokenPipeError

    output = JobOutput(LeavingApi(0), "n", 10, broken)
    with pytest.raises(BrokenPipeError):
        asyncio.run(output.follow(changes(), print))
    assert rounds < ROUNDS
