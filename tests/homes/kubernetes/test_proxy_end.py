"""How a proxy ended, after a time in which the API server was away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from harness.deadlines import deadline
from harness.session_requests import tenant_request
from shared_pathways_service.events import Event
from shared_pathways_service.events.session import ProxyExited
from shared_pathways_service.homes.kubernetes.proxy_watch import ProxyFollower
from shared_pathways_service.manifests.names import LABEL_SESSION
from tests.cluster_state.claiming_proxies import V6
from tests.cluster_state.objects import Object, ended, failed, job, running
from tests.kube.nowhere import NowhereApi


class Api(NowhereApi):
    """Reports changes of pods, and then of the Job; then lists the pods that are left."""

    def __init__(self, jobs: list[Object], pods: list[Object], left: list[Object]) -> None:
        super().__init__()
        self._changes = {"jobs": jobs, "pods": pods}
        self._left = left
        self._lists = 0
        self._are_pods_seen = asyncio.Event()

    async def find(self, path: str, **_: Any) -> dict[str, Any] | None:
        assert path.endswith("/jobs/j")
        return job()

    async def get(self, path: str, **_: Any) -> dict[str, Any]:
        if path.endswith("/pods"):
            self._lists += 1
        # The first list is that of the watch, before anything changed.
        items = self._left if self._lists > 1 and path.endswith("/pods") else []
        return {"metadata": {"resourceVersion": "1"}, "items": items}

    async def chunks(self, path: str) -> AsyncIterator[bytes]:
        resource = path.rpartition("/")[2]
        if resource == "jobs":
            await self._are_pods_seen.wait()
        for change in self._changes.get(resource, []):
            yield json.dumps(change).encode() + b"\n"
        if resource == "pods":
            self._are_pods_seen.set()
        await asyncio.Event().wait()


def test_a_pod_whose_deletion_was_not_seen() -> None:
    # (A list after a gap does not have it any more, so its last state is the one before the gap.)
    told = end_of(Api([], [change("ADDED", running()), change("DELETED", running())], []))
    assert (told.outcome, told.reason) == ("pod_deleted", "it is being deleted")


def test_a_job_that_fails_before_the_end_of_its_pod_is_seen() -> None:
    backoff = "Job has reached the specified backoff limit"
    is_failed = change("MODIFIED", job(conditions=failed("BackoffLimitExceeded", backoff)))
    seen = [change("ADDED", running())]
    told = end_of(Api([is_failed], seen, []))
    assert (told.outcome, told.reason) == ("pod_deleted", "its pod was deleted")
    told = end_of(Api([is_failed], seen, [ended(code=3)]))
    assert (told.outcome, told.exit_code) == ("crashed", 3)


def test_a_job_that_is_complete_before_the_end_of_its_pod_is_seen() -> None:
    done = job(conditions=[{"type": "Complete", "status": "True"}])
    is_complete, seen = change("MODIFIED", done), [change("ADDED", running())]
    told = end_of(Api([is_complete], seen, []))
    assert (told.outcome, told.reason) == ("pod_deleted", "its pod was deleted")
    told = end_of(Api([is_complete], seen, [ended(0, deleted=True)]))
    assert told.outcome == "pod_deleted"
    told = end_of(Api([is_complete], seen, [ended(0)]))
    assert (told.outcome, told.exit_code) == ("completed", 0)


def change(kind: str, thing: Mapping[str, Any]) -> Object:
    metadata = {**thing["metadata"], "resourceVersion": "2"}
    return {"type": kind, "object": {**thing, "metadata": metadata}}


def end_of(api: Api) -> ProxyExited:
    async def work() -> Event:
        made = job()
        made["metadata"] |= {"resourceVersion": "1", "labels": {LABEL_SESSION: "s"}}
        told: list[Event] = []
        follower = ProxyFollower(api, "n", tenant_request("j", V6), made, tell=told.append)
        await asyncio.wait_for(follower.run(), deadline(60.0))
        return told[-1]

    end = asyncio.run(work())
    assert isinstance(end, ProxyExited), end
    return end
