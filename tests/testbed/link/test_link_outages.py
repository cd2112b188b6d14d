"""The way between a client and its proxy is gone for a while, in different manners."""

from __future__ import annotations

import contextlib
import re
import time

import pytest

from harness.testbed.clients import nothing_left
from harness.testbed.kills import agent_logs, wait_for_event
from harness.testbed.link_clients import link_client
from harness.testbed.link_faults import survived
from harness.testbed.network_namespaces import network_namespace, why_unavailable
from harness.testbed.plugin import IMAGES
from harness.testbed.ways import open_way
from shared_pathways_service.events import Event
from shared_pathways_service.testing.testbed import DeployedService, Testbed, new_namespace
from tests.testbed.link.conftest import deployed_with

pytestmark = pytest.mark.race

#: Long enough for several dials; the API server's start comes on top.
AWAY_S = 3.0


@pytest.mark.timeout(600)
def test_the_api_server_is_killed_and_comes_back(disturbed_testbed: Testbed) -> None:
    with contextlib.ExitStack() as stack:
        namespaces, clients = [], []
        for images in IMAGES:
            namespace = stack.enter_context(new_namespace(disturbed_testbed))
            deployed_with(namespace, images)
            namespaces.append(namespace)
        # (Last, because they compute all the time.)
        for namespace in namespaces:
            way = stack.enter_context(open_way(namespace))
            clients.append(stack.enter_context(link_client(namespace, way)))
        before = [client.step() for client in clients]
        for client in clients:
            client.ask_for_step()
        disturbed_testbed.kill_api_server()
        for log in agent_logs():
            wait_for_event("a dial that fails", lambda e: e.kind == "link.dial_failed", log)
        time.sleep(AWAY_S)
        disturbed_testbed.start_api_server()
        for client in clients:
            client.stepped()
        for first, client in zip(before, clients, strict=True):
            after = client.stop()
            outcome = survived(first, after)
            assert outcome.losses == 1
            assert outcome.dials > 1
            assert outcome.longest_loss_s >= AWAY_S
            failed = [news.kind for news in after.links[1:-1]]
            assert failed == ["link.dial_failed"] * (outcome.dials - 1)
        for namespace in namespaces:
            nothing_left(namespace)


@pytest.mark.timeout(600)
def test_every_packet_is_dropped(service: DeployedService) -> None:
    if reason := why_unavailable():
        pytest.skip(reason)
    namespace = service.namespace
    with (
        network_namespace() as network,
        open_way(namespace, network.listener) as way,
        link_client(namespace, way, prefix=network.prefix) as client,
    ):
        before = client.step()
        client.ask_for_step()
        network.drop_packets()
        wait_for_event("the loss of the link", is_loss)
        assert network.pass_packets() > 0
        client.stepped()
        outcome = survived(before, client.stop())
        assert outcome.losses == 1
    nothing_left(namespace)


@pytest.mark.timeout(600)
def test_a_silent_way_is_given_up_and_dialled_again(service: DeployedService) -> None:
    namespace = service.namespace
    with open_way(namespace) as way, link_client(namespace, way) as client:
        before = client.step()
        way.swallow()
        client.ask_for_step()
        wait_for_event("the loss of the silent link", is_loss)
        way.open()
        client.stepped()
        after = client.stop()
        assert survived(before, after).losses == 1
        # (20 s on a usual machine.)
        assert re.fullmatch(r"no sign of life for \d+ s", after.links[0].reason or "")
    nothing_left(namespace)


@pytest.mark.timeout(600)
def test_a_short_silence_is_no_loss(service: DeployedService) -> None:
    namespace = service.namespace
    with open_way(namespace) as way, link_client(namespace, way) as client:
        before = client.step()
        way.swallow()
        client.ask_for_step()
        time.sleep(3.0)
        way.open()
        client.stepped()
        assert survived(before, client.stop()).losses == 0
    nothing_left(namespace)


def is_loss(event: Event) -> bool:
    return event.kind == "link.lost"
