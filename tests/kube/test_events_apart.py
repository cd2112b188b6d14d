"""A cluster that keeps its events in an etcd of their own, as large ones do."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from harness.session_requests import tenant_request
from shared_pathways_service.events import Event
from shared_pathways_service.homes.kubernetes.proxy_watch import ProxyFollower
from shared_pathways_service.kube import paths
from shared_pathways_service.kube.api import KubeApi
from shared_pathways_service.manifests.names import LABEL_SESSION, PROXY_CONTAINER
from shared_pathways_service.testing.testbed.build import Programs
from shared_pathways_service.testing.testbed.ports import pick_ports
from tests.kube.control_plane import DEADLINE_S, ControlPlane
from tests.kube.support import with_api

REFUSAL = 'Error creating: pods "j-" is forbidden: exceeded quota: limit, requested: pods=1'


class SplitControlPlane(ControlPlane):
    """Has a second etcd, for events."""

    def _run(self, name: str, *flags: str) -> subprocess.Popen[bytes]:
        if name != "kube-apiserver":
            return super()._run(name, *flags)
        client, peer = (f"http://127.0.0.1:{port}" for port in pick_ports(2))
        self.second = super()._run(
            "etcd",
            f"--data-dir={self.directory}/etcd-events",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
        )
        return super()._run(name, *flags, f"--etcd-servers-overrides=/events#{client}")

    def stop(self) -> None:
        self.second.kill()
        self.second.wait()
        super().stop()


@pytest.fixture
def split(testbed_programs: Programs) -> Iterator[SplitControlPlane]:
    plane = SplitControlPlane(testbed_programs)
    try:
        plane.start()
        yield plane
    finally:
        plane.stop()


def test_a_quota_is_reported_with_separate_event_versions(split: SplitControlPlane) -> None:
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "t"}}
    split.call("POST", "/api/v1/namespaces", body)
    container = {"name": PROXY_CONTAINER, "image": "i"}
    job: dict[str, Any] = split.call(
        "POST",
        paths.collection("jobs", "t"),
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "j", "labels": {LABEL_SESSION: "s"}},
            "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [container]}}},
        },
    )

    busy = split.call("POST", paths.collection("events", "t"), _event(job, "busy", "try again"))
    versions = [int(one["metadata"]["resourceVersion"]) for one in (job, busy)]
    assert versions[0] > versions[1], "they are not of one count"
    heard: list[Event] = []

    async def work(api: KubeApi) -> None:
        told: asyncio.Queue[Event] = asyncio.Queue()
        follower = ProxyFollower(api, "t", tenant_request("j"), job, tell=told.put_nowait)
        following = asyncio.create_task(follower.run())
        try:
            async with asyncio.timeout(DEADLINE_S):
                heard.append(await told.get())
                refusal = _event(job, "refused", REFUSAL)
                await api.request("POST", paths.collection("events", "t"), body=refusal)
                heard.append(await told.get())
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    with_api(split, split.admin, work)
    assert [(news.kind, news.reason) for news in heard] == [
        ("proxy.waiting", "try again"),
        ("proxy.exited", REFUSAL),
    ]
    assert heard[-1].data["outcome"] == "quota"


def _event(job: dict[str, Any], name: str, message: str) -> dict[str, Any]:
    about = {"kind": "Job", "namespace": "t", "name": "j", "uid": job["metadata"]["uid"]}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": "t"},
        "reason": "FailedCreate",
        "type": "Warning",
        "message": message,
        "lastTimestamp": "2026-01-01T00:00:01Z" if message == REFUSAL else "2026-01-01T00:00:00Z",
        "involvedObject": about,
    }
