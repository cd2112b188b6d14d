"""A laptop sleeps: its client and agent are stopped, and their connections break meanwhile."""

from __future__ import annotations

import time

import pytest

from harness.programs import wait_until
from harness.testbed.clients import nothing_left
from harness.testbed.link_clients import check_end, link_client
from harness.testbed.link_faults import asleep, survived
from harness.testbed.ways import open_way
from shared_pathways_service.testing.testbed import DeployedService

pytestmark = pytest.mark.race

#: Longer than what counts as a sleep.
ASLEEP_S = 35.0
#: The least that can be asked for.
KEEP_FOR = "60s"


@pytest.mark.timeout(600)
def test_a_sleep_within_keep_for(any_service: DeployedService) -> None:
    namespace = any_service.namespace
    with open_way(namespace) as way, link_client(namespace, way, keep_for="5m") as client:
        before = client.step()
        client.ask_for_step()
        with asleep(client, way):
            time.sleep(ASLEEP_S)
        client.stepped()
        outcome = survived(before, client.stop())
        assert outcome.losses >= 1
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
