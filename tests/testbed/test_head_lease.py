"""Two heads of a service: one decides, even if the other was stopped and goes on later."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import pytest

from harness.processes import ServerProcess, Service, Stream
from harness.programs import sps
from harness.testbed.clients import KIND
from shared_pathways_service.manifests.lease_parts import account_name, lease_objects
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.testing.testbed import Namespace
from shared_pathways_service.testing.testbed.deployed_service import (
    OUR_SERVER_IMAGE,
    DeployedService,
)
from tests.testbed.roles import rendered_user
from tests.testbed.second_reader import are_read_by_the_official_client

pytestmark = pytest.mark.race

MANAGER = "shared_pathways_service.servers.resource_manager"
RBAC = "rbac.authorization.k8s.io/v1"
PATHS = {
    "leases": "coordination.k8s.io/v1/leases",
    "serviceaccounts": "serviceaccounts",
    "roles": f"{RBAC}/roles",
    "rolebindings": f"{RBAC}/rolebindings",
}


@pytest.fixture
def flags(namespace: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The flags of heads that have the account of the service `pw`, and its Lease."""
    for resource, body in lease_objects("pw", namespace.name).items():
        namespace.create(PATHS[resource], body)
    account = account_name("pw")
    made = namespace.testbed.api.create(
        namespace.path("serviceaccounts", f"{account}/token"),
        {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}},
    )
    files = {
        "token": made["status"]["token"],
        "ca.crt": namespace.testbed.authority.read_text(encoding="ascii"),
        "namespace": namespace.name,
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="ascii")
    server = urlsplit(namespace.testbed.server)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", str(server.hostname))
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.port))
    return [
        f"--lease={account}",
        f"--service_account_directory={tmp_path}",
        "--lease_duration_s=10",
    ]


def test_a_head_that_was_stopped_grants_nothing_when_it_goes_on(
    namespace: Namespace, flags: list[str], own_directories: Path
) -> None:
    with Service(own_directories / "s", *flags, count="1") as old:
        old.start_ready_workers("slice-0")
        ada = old.tenant("ada")
        ada.expect("running")
        bob = old.tenant("bob", queue_timeout_s=600)
        bob.expect("queued")
        old.rm.signal(signal.SIGSTOP)
        # What it would grant as soon as it goes on.
        ada.send(pb.TenantMessage(bye=pb.TenantBye(reason="done")))

        apart = [f"--server_socket={own_directories / 'new'}", f"--instance_type={KIND}"]
        with ServerProcess(MANAGER, [*apart, "--instance_count=1", *flags]) as new:
            # It is ready, so it holds the Lease; it had to wait for that.
            new.wait_for_line("Waits for the Lease: .* holds it")
            old.rm.signal(signal.SIGCONT)
            assert old.rm.wait() == 1
            assert "Lost the Lease" in "\n".join(old.rm.lines)
            assert not any(message.HasField("placement") for message in _rest(bob))
            assert bob.status()[0] is grpc.StatusCode.UNAVAILABLE
            assert _lease(namespace)["leaseTransitions"] == 2
            # One that ends in order leaves the Lease to the next one.
            assert new.stop() == 0
            assert not _lease(namespace).get("holderIdentity")


def test_a_service_without_a_volume_has_a_lease(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    namespace.add_nodes({KIND: 1}, cpu_nodes=0)
    for name, value in rendered_user(namespace, "operator").items():
        monkeypatch.setenv(name, value)
    place = ("--context=testbed", f"--namespace={namespace.name}")
    image = f"--server-image={OUR_SERVER_IMAGE}"
    sps("deploy", "pw", f"--slices={KIND}=1", image, "--state-size=0", *place)
    service = DeployedService(namespace, "pw")
    head = service.head["metadata"]
    first = _lease(namespace)["holderIdentity"]
    namespace.delete("pods", head["name"])
    service.wait_for_head(other_than=head["uid"])
    service.wait_until_ready()
    assert _lease(namespace)["holderIdentity"] not in ("", first)
    for path in PATHS.values():
        are_read_by_the_official_client(namespace, path, account_name("pw"))
    # An upgrade keeps it, and the service takes it along.
    upgraded = sps("upgrade", "pw", "--max-slice-restarts=3", "--dry-run", *place).stdout
    assert f"value: {account_name('pw')}" in upgraded
    sps("undeploy", "pw", *place)
    for path in PATHS.values():
        names = [one["metadata"]["name"] for one in namespace.items(path)]
        assert account_name("pw") not in names


def _lease(namespace: Namespace) -> Mapping[str, Any]:
    path = namespace.path(PATHS["leases"], account_name("pw"))
    found: Mapping[str, Any] = namespace.testbed.api.get(path)["spec"]
    return found


def _rest(stream: Stream) -> list[Any]:
    """Returns all messages of a stream up to its end."""
    return list(iter(stream.next, None))
