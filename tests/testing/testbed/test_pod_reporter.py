"""What the testbed's kubelet tells the API server of a pod."""

from __future__ import annotations

import asyncio
from typing import Any

from shared_pathways_service.testing.testbed.node_agent.endpoint import KubeletEndpoint
from shared_pathways_service.testing.testbed.node_agent.pod_reporter import PodReporter
from shared_pathways_service.testing.testbed.node_agent.pod_status import PodRecord
from tests.kube.nowhere import NowhereApi

POD = {
    "metadata": {"namespace": "here", "name": "one", "uid": "1"},
    "spec": {"nodeName": "node"},
}
RECORD = PodRecord(containers=(), address="127.0.0.2", node_address="127.0.0.1", started_at="")


class Recorder(NowhereApi):
    """Notes requests."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    async def request(self, method: str, path: str, **_options: Any) -> Any:
        self.asked.append(f"{method} {path.rpartition('/')[2]}")
        return {}


def test_the_containers_of_a_lost_node_are_not_reported() -> None:
    async def told(is_lost: bool) -> list[str]:
        api = Recorder()
        reporter = PodReporter(api, KubeletEndpoint.__new__(KubeletEndpoint), POD)
        if is_lost:
            reporter.silence()
        reporter.report(RECORD)
        reporter.event("Normal", "Killing", "Stopping its containers")
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})
        await reporter.close()
        return sorted(api.asked)

    assert asyncio.run(told(is_lost=False)) == ["PATCH status", "POST events"]
    assert asyncio.run(told(is_lost=True)) == []
