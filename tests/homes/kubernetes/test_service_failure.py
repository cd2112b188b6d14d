"""Whether a service fails that was ready a moment ago, once the proxy of a request has ended."""

from __future__ import annotations

import asyncio
import datetime
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from harness.deadlines import deadline
from harness.session_requests import tenant_request
from shared_pathways_service.cluster_state.services import Service, read_service
from shared_pathways_service.errors import ServiceNotReady
from shared_pathways_service.homes.kubernetes.service_watch import find_failure
from shared_pathways_service.manifests.service_inputs import ServiceInputs
from shared_pathways_service.manifests.service_jobset import service_jobset
from tests.cluster_state import objects
from tests.cluster_state.objects import Object
from tests.cluster_state.services import OURS, head, worker
from tests.kube.nowhere import NowhereApi

KIND = "tpuv6e:2x2"
MISSING = (
    "E1 Permanent error, with a last message of The specified bucket does not exist.; Error while "
    "initializing persistent cache storage gcs"
)
#: When containers of `objects.running` began.
BEGAN = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC).timestamp()
OLD = BEGAN + 3600.0


def jobset() -> Object:
    made = service_jobset(ServiceInputs(name="pw", instances={KIND: 2}, image=OURS))
    made["metadata"] |= {"uid": "u", "resourceVersion": "1"}
    return made


def crash_loop(message: str = "", *, runs: bool = False) -> dict[str, Any]:
    """The status of a container that crashes after each start, and maybe runs for an instant."""
    last = {
        "exitCode": 1,
        "message": message,
        "startedAt": "2026-01-01T00:00:00Z",
        "finishedAt": "2026-01-01T00:00:00Z",
    }
    state = objects.RUNNING if runs else {"state": {"waiting": {"reason": "CrashLoopBackOff"}}}
    return {**state, "restartCount": 2, "lastState": {"terminated": last}}


def crashing(message: str = "") -> dict[str, Any]:
    return {"make": objects.pod, "status": crash_loop(message), "restarts": True}


class Api(NowhereApi):
    """Has these JobSets and pods; reports changes of pods once they are watched."""

    def __init__(self, pods: list[Object], *, now: float = OLD, **more: Any) -> None:
        super().__init__()
        self._lists = {"jobsets": more.get("jobsets", [jobset()]), "pods": pods}
        self._changes: list[Object] = more.get("changes", [])
        self._log: str = more.get("log", "")
        self._now = now
        self.watched: list[str] = []

    @property
    def server_time(self) -> float:
        return self._now

    async def request(self, method: str, path: str, **_: Any) -> dict[str, Any]:
        assert method == "GET"
        items = self._lists[path.rpartition("/")[2]]
        return {"metadata": {"resourceVersion": "1"}, "items": items}

    async def chunks(self, path: str) -> AsyncIterator[bytes]:
        resource = path.rpartition("/")[2]
        if resource == "log":
            yield self._log.encode()
            return
        self.watched.append(resource)
        for pod in self._changes if resource == "pods" else ():
            pod["metadata"]["resourceVersion"] = "2"
            yield json.dumps({"type": "MODIFIED", "object": pod}).encode() + b"\n"
        await asyncio.Event().wait()


def failure_of(api: Api, *wanted: str) -> ServiceNotReady | None:
    service = read_service(jobset())
    assert isinstance(service, Service)

    async def look() -> ServiceNotReady | None:
        try:
            async with asyncio.timeout(deadline(60.0)):
                return await find_failure(api, service, tenant_request("j", *(wanted or (KIND,))))
        finally:
            await api.close()

    return asyncio.run(look())


WORKERS = [worker(0, 0), worker(1, 0)]


def test_a_service_that_runs_for_long_does_not_fail_and_is_not_waited_for() -> None:
    api = Api([head(), *WORKERS])
    assert failure_of(api) is None
    assert api.watched == []


@pytest.mark.parametrize("is_in_status", [True, False])
def test_a_crash_loop_is_reported_with_its_cause(is_in_status: bool) -> None:
    pods = [head(**crashing(MISSING if is_in_status else "")), *WORKERS]
    error = failure_of(Api(pods, log=MISSING))
    assert error is not None
    assert "it crashes repeatedly (2 restarts): it ended with exit code 1" in error.message
    assert "the bucket of its --gcs_scratch_location does not exist" in error.message
    assert "--gcs-bucket of `sps deploy`" in error.hint
    assert (error.ready, error.wanted) == (2, 2)


def test_a_crash_without_a_known_cause_has_advice() -> None:
    error = failure_of(Api([head(**crashing()), *WORKERS], log="E1 segmentation fault"))
    assert error is not None
    assert "segmentation fault" in error.message
    assert "connect again" in error.hint


def test_a_crash_loop_that_runs_for_an_instant_fails() -> None:
    status = crash_loop(MISSING, runs=True)
    again = head(objects.pod, ready=True, phase="Running", status=status, restarts=True)
    assert failure_of(Api([again, *WORKERS], now=BEGAN + 1.0)) is not None
    assert failure_of(Api([again, *WORKERS])) is None


@pytest.mark.parametrize("is_head", [True, False])
def test_a_first_start_is_waited_for_until_it_crashes(is_head: bool) -> None:
    broken = head(**crashing(MISSING)) if is_head else worker(1, 0, **crashing(MISSING))
    api = Api([head(), *WORKERS], now=BEGAN + 1.0, changes=[broken])
    error = failure_of(api, KIND, KIND)
    assert error is not None
    assert "the bucket of its --gcs_scratch_location does not exist" in error.message


def test_a_first_start_is_not_waited_for_once_it_is_survived() -> None:
    api = Api([head(), *WORKERS], now=BEGAN + 9.9)
    assert failure_of(api) is None
    assert "pods" in api.watched


def test_a_crash_that_leaves_enough_slices_is_not_the_reason() -> None:
    pods = [head(), worker(0, 0), worker(1, 0, **crashing(MISSING))]
    assert failure_of(Api(pods)) is None
    error = failure_of(Api(pods), KIND, KIND)
    assert error is not None
    assert "1 of 2 slices are ready" in error.message


def test_a_service_that_was_deleted_or_has_ended_fails() -> None:
    for left, says in (([], "its JobSet was deleted"), ([suspended()], "suspended")):
        error = failure_of(Api([head(), *WORKERS], jobsets=left))
        assert error is not None
        assert says in error.message


def suspended() -> Object:
    made = jobset()
    made["spec"]["suspend"] = True
    return made
