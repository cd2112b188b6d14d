"""Credentials expire while a link is lost: they are renewed, or the user logs in again."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.deadlines import wait_until
from harness.patience import patience
from harness.programs import program
from harness.testbed.clients import nothing_left
from harness.testbed.kills import events_told_by
from harness.testbed.link_clients import LinkClient, link_program
from harness.testbed.link_faults import survived
from harness.testbed.ways import Way, open_way
from shared_pathways_service.events import Event
from shared_pathways_service.events.session import LinkDialFailed
from shared_pathways_service.testing.testbed import DeployedService, Namespace
from tests.testbed.link.conftest import deployed_with
from tests.testbed.logins import Laptop

pytestmark = pytest.mark.race


@pytest.fixture
def service(namespace: Namespace) -> DeployedService:
    """A service of its own, whose tenant gets new tokens."""
    return deployed_with(namespace, "ours")


@pytest.mark.timeout(600)
def test_credentials_that_expire_are_renewed_by_their_plugin(
    any_service: DeployedService, own_directories: Path
) -> None:
    service = any_service
    with open_way(service.namespace) as way:
        laptop = laptop_on(way, service, own_directories)
        laptop.log_in("exec", laptop.user)
        with program(link_program(), env=laptop.variables) as running:
            client = LinkClient(running)
            before = client.step()
            lose(way)
            laptop.log_in("exec", laptop.renew())
            client.ask_for_step()
            way.open()
            client.stepped()
            assert survived(before, client.stop()).losses == 1
    nothing_left(service.namespace)


@pytest.mark.timeout(600)
def test_a_link_waits_until_its_user_has_logged_in_again(
    service: DeployedService, own_directories: Path
) -> None:
    # (The first dial repeats what was refused for 10 s, also on a busy machine.)
    with patience(1), open_way(service.namespace) as way:
        laptop = laptop_on(way, service, own_directories)
        laptop.log_in("file", laptop.user)
        with program(link_program(), env=laptop.variables) as running:
            client = LinkClient(running)
            before = client.step()
            lose(way)
            fresh = laptop.renew()
            client.ask_for_step()
            way.open()
            told = wait_until("a refused dial", refused_dials)
            assert "log in" in str(told[0].reason)
            laptop.log_in("file", fresh)
            client.stepped()
            assert survived(before, client.stop()).losses == 1
    nothing_left(service.namespace)


def laptop_on(way: Way, service: DeployedService, root: Path) -> Laptop:
    namespace = service.namespace
    root.mkdir(exist_ok=True)
    return Laptop(namespace, root, way.kubeconfig(namespace, namespace.user("tenant")))


def lose(way: Way) -> None:
    way.refuse()
    assert way.cut()


def refused_dials() -> list[Event]:
    """Returns dials that reached the API server, which did not take the credentials."""
    dials = [event for event in events_told_by() if isinstance(event, LinkDialFailed)]
    return [event for event in dials if "credentials" in str(event.reason)]
