"""Services with each kind of image, whose links have their far ends in different places."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator

import pytest

from harness.testbed.clients import KIND
from harness.testbed.kills import all_free
from harness.testbed.plugin import ANY_IMAGES, IMAGES
from shared_pathways_service.testing.testbed import (
    DeployedService,
    Namespace,
    Testbed,
    deploy_service,
    new_namespace,
)

#: Returns the service of two slices with images of a kind.
ServiceOf = Callable[[str], DeployedService]


@pytest.fixture(scope="package")
def service_of(testbed: Testbed) -> Iterator[ServiceOf]:
    """Deploys one service of each kind for all tests of this folder, when it is needed first."""
    with contextlib.ExitStack() as stack:

        @functools.cache
        def deployed_once(images: str) -> DeployedService:
            return deployed_with(stack.enter_context(new_namespace(testbed)), images)

        yield deployed_once


@pytest.fixture
def service(service_of: ServiceOf) -> Iterator[DeployedService]:
    """A service of two slices with our images."""
    made = service_of("ours")
    yield made
    all_free(made)


@pytest.fixture(params=ANY_IMAGES)
def any_service(service_of: ServiceOf, request: pytest.FixtureRequest) -> DeployedService:
    """A service of two slices: with our images, and with the stand-ins for Google's."""
    return service_of(request.param)


def deployed_with(namespace: Namespace, images: str) -> DeployedService:
    """Returns a service of two slices with images of a kind."""
    namespace.add_nodes({KIND: 2}, cpu_nodes=0)
    return deploy_service(namespace, {KIND: 2}, image=IMAGES[images])
