"""The submitted jobs of a service in a cluster: a job is a Job, and each attempt a pod."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from shared_pathways_service.api.job_requests import JobRequest, JobStatus
from shared_pathways_service.api.service_choice import ServiceChoice
from shared_pathways_service.api.validation import DNS_LABEL_LIMIT, check_dns_label
from shared_pathways_service.cluster_state.job_reading import (
    JOB_SELECTOR,
    is_submitted_job,
    job_status,
    pods_in_order,
)
from shared_pathways_service.errors import InvalidRequestError, ServiceNotFound
from shared_pathways_service.events import rfc3339
from shared_pathways_service.homes.job_home import OnStatus, Tell
from shared_pathways_service.homes.kubernetes.error_translation import before_creating
from shared_pathways_service.homes.kubernetes.job_output import JobOutput
from shared_pathways_service.homes.kubernetes.job_submission import submit_job
from shared_pathways_service.homes.own_loop import run_in_own_loop
from shared_pathways_service.kube.access import resolve
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.kube.cluster import ClusterChoice
from shared_pathways_service.kube.errors import ApiUnreachable
from shared_pathways_service.kube.paths import collection, item
from shared_pathways_service.manifests.jobs.submitted_job import cancel_patch
from shared_pathways_service.manifests.names import LABEL_USER, label_value
from shared_pathways_service.patience import timeouts

__all__ = ["ClusterJobs"]

T = TypeVar("T")
Object = Mapping[str, Any]

_JOB_LABEL = "batch.kubernetes.io/job-name"
#: Seconds between two looks at a job that is waited for.
_LOOK_S = 1.0


class ClusterJobs:
    """The submitted jobs of one user at a service in a cluster, as a `JobHome`.

    Args:
      service: The service.
      user: The user.
    """

    name = "kubernetes"

    def __init__(self, service: ServiceChoice, user: str) -> None:
        self._service = service
        self._namespace = service.namespace
        self._user = user

    def submit(self, request: JobRequest, tell: Tell = lambda _step: None) -> None:
        """Creates a job, after the checks of connect()."""
        address = self._service.pathways_service or ""
        submitted: list[str] = []

        async def submit(api: KubeApi) -> None:
            submitted.append(await submit_job(api, self._namespace, address, request, tell))

        try:
            self._run(submit)
        except BaseException:
            # Of an interrupted submission nothing runs.
            if submitted:
                path = item("jobs", self._namespace, request.name)
                self._run(lambda api: api.delete(path, uid=submitted[0]))
            raise

    def jobs(self) -> Sequence[JobStatus]:
        """Returns all jobs whose Jobs exist."""
        return self._run(self._jobs)

    def job(self, name: str) -> JobStatus:
        """Returns a job."""
        return self._run(lambda api: self._status(api, name))

    def cancel(self, name: str) -> JobStatus:
        """Ends a job; its Job remains, without pods."""
        return self._run(lambda api: self._cancel(api, name))

    def delete(self, name: str) -> None:
        """Removes the Job of a job, with its output."""
        self._run(lambda api: self._delete(api, name))

    def output(self, name: str, lines: int) -> list[str]:
        """Returns the last lines of the output of a job's last attempt."""
        return self._run(lambda api: self._output(api, name, lines))

    def follow(
        self, name: str, lines: int, show: Callable[[str], object], on_status: OnStatus
    ) -> JobStatus:
        """Shows the output of a job, attempt by attempt, until the job has ended."""

        async def follow(api: KubeApi) -> JobStatus:
            output = JobOutput(api, self._namespace, lines, show)
            job = await self._job(api, name)
            async with contextlib.aclosing(self._changes(api, job)) as changes:
                status = await output.follow(changes, on_status)
            assert status is not None, "a job that exists has a state"
            return status

        return self._run(follow)

    def wait(self, name: str, timeout_s: float) -> JobStatus:
        """Returns a job once it has ended, or after the timeout."""

        async def wait(api: KubeApi) -> JobStatus:
            job = await self._job(api, name)
            status = await self._state(api, job)
            return await self._ended(api, job, status, timeout_s) if status.is_active else status

        return self._run(wait)

    # ---- internals

    def _run(self, work: Callable[[KubeApi], Coroutine[Any, Any, T]]) -> T:
        """Runs a coroutine with an API to its end."""

        async def run() -> T:
            service = self._service
            choice = ClusterChoice(
                cluster=service.cluster or "",
                project=service.project or "",
                region=service.region or "",
                context=service.context or "",
            )
            with before_creating():
                async with KubeApi(await resolve(choice)) as api:
                    return await work(api)

        return run_in_own_loop(run())

    async def _jobs(self, api: KubeApi) -> list[JobStatus]:
        selector = f"{JOB_SELECTOR},{LABEL_USER}={label_value(self._user)}"
        jobs = await self._items(api, "jobs", selector)
        pods = await self._items(api, "pods", JOB_SELECTOR.rpartition(",")[0])
        found = [job_status(job, _pods_of(job, pods), home=self.name) for job in jobs]
        return sorted(found, key=lambda status: status.submitted)

    async def _status(self, api: KubeApi, name: str) -> JobStatus:
        return await self._state(api, await self._job(api, name))

    async def _state(self, api: KubeApi, job: Object) -> JobStatus:
        return job_status(job, await self._pods(api, job), home=self.name)

    async def _job(self, api: KubeApi, name: str) -> Object:
        check_dns_label("NAME", name, limit=DNS_LABEL_LIMIT)
        job = await api.find(item("jobs", self._namespace, name))
        if job is None or not is_submitted_job(job):
            names = [status.name for status in await self._jobs(api)]
            raise ServiceNotFound(
                f"there is no job {name} in namespace {self._namespace}",
                candidates=names,
                hint=f"your jobs are {', '.join(names)}" if names else "`sps submit` starts one",
            )
        return job

    async def _pods(self, api: KubeApi, job: Object) -> list[Object]:
        pods = await self._items(api, "pods", f"{_JOB_LABEL}={job['metadata']['name']}")
        return _pods_of(job, pods)

    async def _items(self, api: KubeApi, resource: str, selector: str) -> list[Object]:
        path = collection(resource, self._namespace)
        found = await api.get(path, params={"labelSelector": selector})
        return list(found.get("items") or ())

    async def _cancel(self, api: KubeApi, name: str) -> JobStatus:
        job = await self._job(api, name)
        status = await self._state(api, job)
        if not status.is_active:
            return status
        path, uid = item("jobs", self._namespace, name), str(job["metadata"]["uid"])
        await api.patch(path, cancel_patch(uid))
        return await self._ended(api, job, status, timeouts.JOB_PODS_END.s, without_pods=True)

    async def _ended(
        self,
        api: KubeApi,
        job: Object,
        status: JobStatus,
        timeout_s: float,
        *,
        without_pods: bool = False,
    ) -> JobStatus:
        """Returns a job once it has ended; its last known state after the timeout.

        Args:
          api: The API server.
          job: The Job.
          status: Its state now.
          timeout_s: Seconds, also while the API server is away.
          without_pods: Whether to wait for the end of its pods as well.
        """
        limit_s = None if math.isinf(timeout_s) else timeout_s
        with contextlib.suppress(TimeoutError):
            async with (
                asyncio.timeout(limit_s),
                contextlib.aclosing(self._changes(api, job)) as changes,
            ):
                async for found, pods in changes:
                    status = found
                    if not found.is_active and not (without_pods and pods):
                        break
        return status

    async def _delete(self, api: KubeApi, name: str) -> None:
        job = await self._job(api, name)
        if job_status(job, (), home=self.name).is_active:
            commands = api.access.commands
            raise InvalidRequestError(
                "NAME",
                name,
                "a job that has ended",
                hint=f"`{commands.sps('cancel', name, namespace=self._namespace)}` ends it",
            )
        await api.delete(item("jobs", self._namespace, name), uid=str(job["metadata"]["uid"]))

    async def _output(self, api: KubeApi, name: str, lines: int) -> list[str]:
        found: list[str] = []
        pods = pods_in_order(await self._pods(api, await self._job(api, name)))
        if pods:
            await JobOutput(api, self._namespace, lines, found.append).show(pods[-1])
        return found

    async def _changes(
        self, api: KubeApi, job: Object
    ) -> AsyncGenerator[tuple[JobStatus, Sequence[Object]]]:
        """Yields the state of a job and its pods repeatedly, also after the job has ended."""
        name, uid = str(job["metadata"]["name"]), str(job["metadata"]["uid"])
        away_since, status = 0.0, None
        while True:
            try:
                found = await api.find(item("jobs", self._namespace, name))
                pods = [] if found is None else await self._pods(api, found)
                away_since = 0.0
            except ApiUnreachable as error:
                away_since = away_since or time.monotonic()
                if error.is_final or time.monotonic() - away_since > timeouts.JOB_CLUSTER_AWAY.s:
                    raise
                await asyncio.sleep(_LOOK_S)
                continue
            if found is None or str(found["metadata"]["uid"]) != uid:
                status = status or job_status(job, (), home=self.name)
                yield _deleted(status), ()
                return
            status = job_status(found, pods, home=self.name)
            yield status, pods
            await asyncio.sleep(_LOOK_S)


def _pods_of(job: Object, pods: Sequence[Object]) -> list[Object]:
    """Returns the pods of this Job, and not of an earlier one of its name."""
    uid = job["metadata"]["uid"]
    return [
        pod
        for pod in pods
        if any(owner.get("uid") == uid for owner in pod["metadata"].get("ownerReferences") or ())
    ]


def _deleted(status: JobStatus) -> JobStatus:
    return dataclasses.replace(
        status, state="lost", reason="it was deleted", ended=rfc3339(time.time())
    )
