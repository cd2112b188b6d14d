"""A service's state outlives its head, its head's node, and the service itself."""

from __future__ import annotations

import json
from typing import Any

import pytest

from harness.deadlines import wait_until
from harness.programs import sps
from harness.testbed.clients import KIND
from shared_pathways_service.testing.testbed import Namespace
from shared_pathways_service.testing.testbed.deployed_service import (
    OUR_SERVER_IMAGE,
    DeployedService,
)
from tests.testbed.roles import rendered_user
from tests.testbed.second_reader import are_read_by_the_official_client

pytestmark = pytest.mark.race

CLAIMS = "persistentvolumeclaims"
LEASES = "coordination.k8s.io/v1/leases"
IMAGE = f"--server-image={OUR_SERVER_IMAGE}"


@pytest.fixture
def place(namespace: Namespace, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The options that name the namespace, as its operator."""
    namespace.add_nodes({KIND: 2}, cpu_nodes=1)
    for name, value in rendered_user(namespace, "operator").items():
        monkeypatch.setenv(name, value)
    return ["--context=testbed", f"--namespace={namespace.name}"]


def data(*words: str) -> Any:
    return json.loads(sps(*words, "--json").stdout)


def remembered(place: list[str]) -> tuple[list[str], list[str]]:
    """What an operator has decided: the cordoned slices, and the owners of reservations."""
    slices = data("status", *place)["slices"]
    cordoned = [one["id"] for one in slices if one["state"] == "cordoned"]
    return cordoned, [one["user"] for one in data("reservations", *place)]


def test_what_an_operator_decided_is_kept_until_it_is_deleted(
    namespace: Namespace, place: list[str]
) -> None:
    # Nothing is said of a volume: this cluster has a default StorageClass.
    made = data("deploy", "pw", f"--slices={KIND}=2", IMAGE, *place)
    assert made["state_size"] == "1Gi"
    are_read_by_the_official_client(namespace, CLAIMS, "pw-state")
    one = data("status", *place)["slices"][0]["id"]
    sps("cordon", one, *place)
    sps("reserve", f"{KIND}=1", "--for-user=ada", "--until=in 8h", *place)
    decided = remembered(place)
    assert decided == ([one], ["ada"])

    service = DeployedService(namespace, "pw")
    head = service.head
    namespace.testbed.drain(head["spec"]["nodeName"])
    moved = service.wait_for_head(other_than=head["metadata"]["uid"])
    assert moved["spec"]["nodeName"] != head["spec"]["nodeName"]
    sps("status", "--wait=90", *place)
    # (A slice is shown as cordoned once its host has come back.)
    wait_until("the decisions are known", lambda: remembered(place) == decided)
    kinds = [
        json.loads(line)["kind"]
        for line in sps("events", "--json", *place).stdout.split("\n")
        if line
    ]
    assert "slice.cordoned" in kinds

    done = sps("undeploy", "pw", *place)
    assert "the claim pw-state keeps the state" in done.stderr
    again = data("deploy", "pw", f"--slices={KIND}=2", IMAGE, "--state-size=2Gi", *place)
    assert again["state_size"] == "2Gi"
    assert remembered(place) == decided
    [claim] = namespace.items(CLAIMS)
    assert claim["spec"]["resources"]["requests"]["storage"] == "2Gi"

    refused = sps("upgrade", "pw", "--lease", "--storage-class=none", *place, check=False)
    assert "the class of the existing claim pw-state" in refused.stderr
    # The service that stays has no Lease.
    assert namespace.items(LEASES) == []

    sps("undeploy", "pw", *place)
    # The service is gone already, and its state may still be deleted.
    assert data("undeploy", "pw", "--delete-state", *place)["kept_claim"] is None
    assert namespace.items(CLAIMS) == []


def test_a_claim_that_cannot_be_served_is_named(namespace: Namespace, place: list[str]) -> None:
    namespace.create(
        CLAIMS,
        {
            "metadata": {"name": "theirs-state"},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}},
            },
        },
    )
    words = (f"--slices={KIND}=1", IMAGE, "--state-size=1Gi")
    done = sps("deploy", "theirs", "--lease", *words, *place, check=False)
    assert done.returncode == 2
    assert "theirs-state" in done.stderr
    assert "is not of the service theirs" in done.stderr
    # What was created before it was refused is gone again.
    assert namespace.items(LEASES) == []
    done = sps("deploy", "pw", *words, "--storage-class=none", "--timeout=15", *place, check=False)
    assert done.returncode == 3
    assert "PersistentVolumeClaim" in done.stderr
    done = sps("undeploy", "pw", "--delete-state", *place)
    assert [one["metadata"]["name"] for one in namespace.items(CLAIMS)] == ["theirs-state"]
