"""What a link cannot survive: the end of its far end, or of the proxy."""

from __future__ import annotations

import os
import signal

import psutil
import pytest

from harness.deadlines import wait_until
from harness.testbed.clients import nothing_left
from harness.testbed.link_clients import LinkClient, check_end, link_client
from harness.testbed.ways import open_way
from shared_pathways_service.constants import LINK_PORT
from shared_pathways_service.testing.testbed import DeployedService, Namespace

pytestmark = pytest.mark.race


@pytest.mark.timeout(600)
def test_a_pod_that_is_deleted_while_the_link_is_lost(any_service: DeployedService) -> None:
    namespace = any_service.namespace
    with open_way(namespace) as way, link_client(namespace, way) as client:
        client.step()
        way.refuse()
        way.cut()
        [pod] = namespace.items("pods", labelSelector=f"job-name={client.name}")
        namespace.delete("pods", pod["metadata"]["name"])
        wait_until("the pod's end", lambda: pod["metadata"]["name"] not in namespace.processes())
        way.open()
        report, error = client.failed()
        assert report.kinds == ["link.lost"]
        check_end(error, f"the proxy {client.name} lost its pod, which was deleted")
    nothing_left(namespace)


@pytest.mark.timeout(600)
def test_a_far_end_that_is_killed(any_service: DeployedService) -> None:
    namespace = any_service.namespace
    with open_way(namespace) as way, link_client(namespace, way) as client:
        client.step()
        os.kill(far_end_of(namespace, client), signal.SIGKILL)
        report, error = client.failed()
        assert report.kinds == ["link.lost"]
        assert error["type"] == "TunnelError"
        assert f"the link to the proxy {client.name} is gone for good" in error["message"]
        assert "the far end was restarted" in error["message"]
        assert "load a checkpoint" in error["hint"]
    nothing_left(namespace)


def far_end_of(namespace: Namespace, client: LinkClient) -> int:
    """Returns the process of a far end: a child of our proxy, or of a sidecar's container."""
    [containers] = [
        found for pod, found in namespace.processes().items() if pod.startswith(client.name)
    ]
    [found] = [
        process.pid
        for pid in containers.values()
        for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True))
        # (Not the program that isolates a container.)
        if process.name().startswith("python") and f"--port={LINK_PORT}" in process.cmdline()
    ]
    return found
