"""A laptop sleeps: its client and agent are stopped, and their connections break meanwhile."""

from __future__ import annotations

import contextlib
import time

import pytest

from harness.programs import wait_until
from harness.testbed.clients import nothing_left
from harness.testbed.link_clients import check_end, link_client
from harness.testbed.link_faults import asleep, survived
from harness.testbed.plugin import IMAGES
from harness.testbed.ways import open_way
from shared_pathways_service.testing.testbed import DeployedService
from tests.testbed.link.conftest import ServiceOf

pytestmark = pytest.mark.race

#: Longer than what counts as a sleep.
ASLEEP_S = 35.0
#: The least that can be asked for.
KEEP_FOR = "60s"


@pytest.mark.timeout(600)
def test_a_sleep_within_keep_for(service_of: ServiceOf) -> None:
    namespaces = [service_of(images).namespace for images in IMAGES]
    with contextlib.ExitStack() as stack:
        clients = []
        for namespace in namespaces:
            way = stack.enter_context(open_way(namespace))
            client = stack.enter_context(link_client(namespace, way, keep_for="5m"))
            clients.append((client, way, client.step()))
            client.ask_for_step()
        # (At the same time, because it takes so long.)
        with contextlib.ExitStack() as lids:
            for client, way, _ in clients:
                lids.enter_context(asleep(client, way))
            time.sleep(ASLEEP_S)
        for client, _, before in clients:
            client.stepped()
            outcome = survived(before, client.stop())
            assert outcome.losses >= 1
    for namespace in namespaces:
        nothing_left(namespace)


@pytest.mark.timeout(900)
def test_a_sleep_longer_than_keep_for(service: DeployedService) -> None:
    namespace = service.namespace
    with open_way(namespace) as way, link_client(namespace, way, keep_for=KEEP_FOR) as client:
        client.step()
        with asleep(client, way):
            # The cluster itself ends the proxy, whose client does not wake up.
            wait_until("the proxy's end", lambda: client.name not in text_of(namespace.processes()))
        _, error = client.failed()
        assert client.name in error["message"]
        check_end(error, "was ended")
        assert "connect again" in error["hint"]
    nothing_left(namespace)


def text_of(processes: dict[str, dict[str, int]]) -> str:
    return " ".join(processes)
