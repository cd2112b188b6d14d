"""Waiting for all of a service, with no right but to read, whatever its head tells of it."""

from __future__ import annotations

import asyncio
import datetime
import json
from collections.abc import AsyncIterator
from typing import Any

from harness.deadlines import deadline
from harness.processes import run_async
from shared_pathways_service.events import Event
from shared_pathways_service.homes.kubernetes.preflight import Preflight
from shared_pathways_service.manifests.service_inputs import ServiceInputs
from shared_pathways_service.manifests.service_jobset import service_jobset
from tests.cluster_state import objects
from tests.cluster_state.objects import Object
from tests.cluster_state.services import OURS, head, worker
from tests.kube.nowhere import NowhereApi


def silent_jobset() -> Object:
    """Returns a service of two slices whose head is not told their types."""
    made = service_jobset(ServiceInputs(name="pw", instances={"tpuv6e:2x2": 2}, image=OURS))
    made["metadata"] |= {"uid": "u", "resourceVersion": "1"}
    for job in made["spec"]["replicatedJobs"]:
        for container in job["template"]["spec"]["template"]["spec"]["containers"]:
            flags = container.get("args") or []
            container["args"] = [flag for flag in flags if "instance_type" not in flag]
    return made


class ReadOnlyApi(NowhereApi):
    """Has the service with one slice ready; tells of the other when it is let."""

    def __init__(self, *workers: Object) -> None:
        super().__init__()
        self.second = asyncio.Event()
        self._pods = [head(), *(workers or [worker(0, 0)])]

    async def request(self, method: str, path: str, **_: Any) -> dict[str, Any]:
        assert method == "GET"
        items = [silent_jobset()] if path.endswith("/jobsets") else self._pods
        return {"metadata": {"resourceVersion": "1"}, "items": items}

    async def chunks(self, path: str) -> AsyncIterator[bytes]:
        if path.endswith("/log"):
            return
        await self.second.wait()
        if path.endswith("/pods"):
            pod = worker(1, 0)
            pod["metadata"]["resourceVersion"] = "2"
            yield json.dumps({"type": "ADDED", "object": pod}).encode() + b"\n"
        await asyncio.Event().wait()


def test_one_ready_slice_is_not_all_without_the_heads_types() -> None:
    told: list[Event] = []

    async def test() -> None:
        api = ReadOnlyApi()

        def hear(news: Event) -> None:
            told.append(news)
            api.second.set()

        async with asyncio.timeout(deadline(60.0)):
            found = await Preflight(api, "n", "").wait_until_complete(hear)
        assert not found.service.instances
        assert (found.ready, found.wanted) == (2, 2)
        await api.close()

    run_async(test())
    assert (told[0].data["ready"], told[0].data["wanted"]) == (1, 2)


class SlowLogApi(ReadOnlyApi):
    """Returns logs when a time has passed, and has no news of pods."""

    def __init__(self, until: datetime.datetime, *workers: Object) -> None:
        super().__init__(*workers)
        self._until = until
        self.logs = 0

    async def chunks(self, path: str) -> AsyncIterator[bytes]:
        if path.endswith("/log"):
            self.logs += 1
            while datetime.datetime.now(datetime.UTC) < self._until:
                await asyncio.sleep(0.01)
            return
        async for chunk in super().chunks(path):
            yield chunk


def test_what_has_settled_while_logs_were_read_is_not_waited_for() -> None:
    """Nothing tells of it but the time."""
    began = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=9)
    crash = {"startedAt": began.isoformat(), "finishedAt": began.isoformat(), "exitCode": 2}
    status = {
        "ready": True,
        "restartCount": 1,
        "lastState": {"terminated": crash},
        "state": {"running": {"startedAt": began.isoformat()}},
    }
    crashed = worker(1, 0, objects.pod, ready=True, phase="Running", restarts=True, status=status)

    async def test() -> None:
        api = SlowLogApi(began + datetime.timedelta(seconds=10.1), worker(0, 0), crashed)
        async with asyncio.timeout(deadline(60.0)):
            found = await Preflight(api, "n", "").wait_until_complete(lambda _: None)
        assert (found.ready, found.wanted) == (2, 2)
        assert api.logs
        await api.close()

    run_async(test())
