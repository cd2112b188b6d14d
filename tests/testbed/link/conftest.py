"""Services with each kind of image, whose links have their far ends in different places."""

from __future__ import annotations

import pytest

from harness.testbed.clients import KIND
from harness.testbed.plugin import IMAGES
from shared_pathways_service.testing.testbed import DeployedService, Namespace, deploy_service


@pytest.fixture
def service(namespace: Namespace) -> DeployedService:
    """A service of two slices with our images."""
    return deployed_with(namespace, "ours")


@pytest.fixture(params=IMAGES)
def any_service(namespace: Namespace, request: pytest.FixtureRequest) -> DeployedService:
    """A service of two slices: with our images, and with the stand-ins for Google's."""
    return deployed_with(namespace, request.param)


def deployed_with(namespace: Namespace, images: str) -> DeployedService:
    """Returns a service of two slices with images of a kind."""
    namespace.add_nodes({KIND: 2}, cpu_nodes=0)
    return deploy_service(namespace, {KIND: 2}, image=IMAGES[images])
