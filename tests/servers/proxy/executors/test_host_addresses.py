"""Where executors find each other."""

from __future__ import annotations

import pytest

from shared_pathways_service.servers.devices.status_errors import Code, StatusError
from shared_pathways_service.servers.proxy.executors.host_addresses import meeting_host

#: This machine's address on the way to each executor.
OWN = {"a:1": "10.0.0.1", "b:2": "10.0.0.1", "here:3": "127.0.0.1", "here:4": "::1"}


def test_executors_meet_at_an_address_that_all_can_reach() -> None:
    assert meeting_host(["a:1", "b:2"], OWN.__getitem__) == "10.0.0.1"
    assert meeting_host(["here:3"], OWN.__getitem__) == "127.0.0.1"


@pytest.mark.parametrize("addresses", [("here:3", "a:1"), ("a:1", "here:4")])
def test_executors_on_a_loopback_and_others_cannot_meet(addresses: tuple[str, str]) -> None:
    with pytest.raises(StatusError, match=r"a:1 and here:\d cannot reach each other") as raised:
        meeting_host(addresses, OWN.__getitem__)
    assert raised.value.code is Code.FAILED_PRECONDITION


def test_an_address_that_leads_nowhere_is_named() -> None:
    def fail(_address: str) -> str:
        raise OSError("Name or service not known")

    with pytest.raises(StatusError, match=r"executor at a:1 .*Name or service") as raised:
        meeting_host(["a:1"], fail)
    assert raised.value.code is Code.UNAVAILABLE


def test_the_way_to_this_machine_is_its_loopback() -> None:
    assert meeting_host(["127.0.0.1:1"]) == "127.0.0.1"
