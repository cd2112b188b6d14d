"""What a tenant may not do is told before anything is created."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.testbed.clients import KIND, nothing_left
from shared_pathways_service.errors import AccessDenied, PreflightError
from shared_pathways_service.manifests.permissions import Permission, granting_rules, needed
from shared_pathways_service.manifests.service_inputs import ServiceInputs
from shared_pathways_service.manifests.service_jobset import service_jobset
from shared_pathways_service.testing.testbed import Namespace, Testbed, new_namespace
from shared_pathways_service.testing.testbed.certificates import make_certificates
from shared_pathways_service.testing.testbed.deployed_service import OUR_SERVER_IMAGE
from shared_pathways_service.testing.testbed.kubeconfig import write_kubeconfig
from tests.testbed.failing import created, failure

JOBSETS = "jobset.x-k8s.io/v1alpha2/jobsets"
NEEDED = needed(ours=True)


@pytest.fixture(scope="module")
def described(testbed: Testbed) -> Iterator[Namespace]:
    """A namespace with a service that nobody runs: permissions are looked at before that."""
    with new_namespace(testbed, cpu_nodes=0) as namespace:
        inputs = ServiceInputs(
            name="pathways",
            namespace=namespace.name,
            instances={KIND: 1},
            image=OUR_SERVER_IMAGE,
        )
        namespace.create(JOBSETS, service_jobset(inputs))
        yield namespace


def test_an_api_server_that_is_not_the_one_to_trust(
    described: Namespace, own_directories: Path
) -> None:
    own_directories.mkdir(exist_ok=True)
    theirs = make_certificates(own_directories).authority
    path = own_directories / "kubeconfig"
    testbed, user = described.testbed, described.user("tenant")
    write_kubeconfig(path, testbed.server, theirs, user, namespace=described.name)
    error = failure(described, PreflightError, kubeconfig=path)
    assert testbed.server in error.message
    assert "certificate verify failed" in error.message
    assert "certificate-authority-data" in error.hint
    assert created(described) == []


@pytest.mark.parametrize("lacking", NEEDED, ids=str)
def test_each_permission_that_is_missing(described: Namespace, lacking: Permission) -> None:
    role = f"no-{lacking.verb}-{lacking.resource.replace('/', '-')}"
    described.user(role, granting_rules(p for p in NEEDED if p != lacking))
    error = failure(described, AccessDenied, role=role)
    assert (error.verb, error.resource) == (lacking.verb, lacking.resource)
    assert error.namespace == described.name
    [rule] = granting_rules([lacking])
    for name, values in rule.items():
        assert f'"{name}": ["{values[0]}"]' in error.rule
    for told in (str(lacking), described.name):
        assert told in error.message
    assert created(described, role) == []
    nothing_left(described)
