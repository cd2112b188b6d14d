"""Stand-ins for Google's images, and where the environment names them the images themselves.

- ``SPS_PATHWAYS_IMAGES``: a repository of the images with a tag, such as
  ``us-docker.pkg.dev/cloud-tpu-v2-images/pathways:latest``, for docker or podman.
- ``SPS_PATHWAYS_PROXY``, ``SPS_PATHWAYS_RM``: addresses of servers that run, ``HOST:PORT``. Nobody
  else may use the proxy.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import pytest

from shared_pathways_service.testing.google_images import (
    MACHINE_VARIABLE,
)
from tests.testing.google_images import container
from tests.testing.google_images.cluster import (
    OVERRIDE,
    VARIABLE,
    Cluster,
    Containers,
)

IMAGES = "SPS_PATHWAYS_IMAGES"
PROXY = "SPS_PATHWAYS_PROXY"
MANAGER = "SPS_PATHWAYS_RM"


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    for name in (VARIABLE, OVERRIDE, MACHINE_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    with contextlib.ExitStack() as stack:
        yield Cluster(stack)


@contextlib.contextmanager
def containers() -> Iterator[Cluster]:
    with contextlib.ExitStack() as stack:
        yield Containers(stack, os.environ[IMAGES])


@pytest.fixture(params=["standin", "real"])
def images(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Starts servers: stand-ins, and the images that the environment names."""
    if request.param == "standin":
        yield request.getfixturevalue("cluster")
        return
    if not os.environ.get(IMAGES):
        pytest.skip(f"{IMAGES} names no images")
    assert container.program(), f"{IMAGES} needs one of {container.PROGRAMS}"
    with containers() as real:
        yield real


@pytest.fixture(params=["standin", "real"])
def proxy(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a proxy with plaintext that serves, and that nobody uses."""
    if request.param == "standin":
        yield request.getfixturevalue("cluster").start_serving()[0]
    elif named := os.environ.get(PROXY):
        yield named
    elif os.environ.get(IMAGES):
        with containers() as real:
            yield real.start_serving()[0]
    else:
        pytest.skip(f"neither {PROXY} nor {IMAGES} names a proxy")


@pytest.fixture(params=["standin", "real"])
def manager(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a resource manager that serves."""
    if request.param == "real" and (named := os.environ.get(MANAGER)):
        yield named
        return
    if request.param == "real" and not os.environ.get(IMAGES):
        pytest.skip(f"neither {MANAGER} nor {IMAGES} names a resource manager")
    with contextlib.ExitStack() as stack:
        if request.param == "standin":
            servers = request.getfixturevalue("cluster")
        else:
            servers = stack.enter_context(containers())
        servers.start_manager()
        yield servers.manager
