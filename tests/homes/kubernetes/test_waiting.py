"""Waiting for all of a service, with no right but to read, whatever its head tells of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from harness.deadlines import deadline
from harness.processes import run_async
from shared_pathways_service.events import Event
from shared_pathways_service.homes.kubernetes.preflight import Preflight
from shared_pathways_service.manifests.service_inputs import ServiceInputs
from shared_pathways_service.manifests.service_jobset import service_jobset
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

    def __init__(self) -> None:
        super().__init__()
        self.second = asyncio.Event()

    async def request(self, method: str, path: str, **_: Any) -> dict[str, Any]:
        assert method == "GET"
        items = [silent_jobset()] if path.endswith("/jobsets") else [head(), worker(0, 0)]
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
