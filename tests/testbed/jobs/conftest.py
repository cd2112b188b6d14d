"""One service for all tests of submitted jobs in a cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.testbed.clients import KIND
from shared_pathways_service.testing.testbed import (
    DeployedService,
    Testbed,
    deploy_service,
    new_namespace,
)


@pytest.fixture(scope="package")
def service(testbed: Testbed) -> Iterator[DeployedService]:
    """A service with two slices, whose preemptions take a moment only."""
    with new_namespace(testbed) as namespace:
        namespace.add_nodes({KIND: 2}, cpu_nodes=0)
        yield deploy_service(namespace, {KIND: 2}, server_args=["--preemption_grace_s=0.5"])
