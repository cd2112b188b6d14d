"""Proxies that never begin to serve: why is told, and nothing of them is left."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

from harness.testbed.clients import deployed, nothing_left
from shared_pathways_service.errors import CapacityError, InvalidRequestError, ProxyFailed
from shared_pathways_service.testing.testbed import Namespace, Testbed, new_namespace
from shared_pathways_service.testing.testbed.node_agent.images import MISSING_TAG
from tests.testbed.failing import created, failure

JOBS = "batch/v1/jobs"


@pytest.fixture(scope="module")
def served(testbed: Testbed) -> Iterator[Namespace]:
    """A namespace with a service that is ready."""
    with new_namespace(testbed) as namespace:
        deployed(namespace, 1)
        yield namespace


@contextlib.contextmanager
def quota(namespace: Namespace, **hard: int) -> Iterator[None]:
    """Leaves no room for more than there is of something."""
    resources = {"jobs": "count/jobs.batch", "pods": "pods", "secrets": "count/secrets"}
    namespace.set_quota({resources[name]: str(value) for name, value in hard.items()})
    try:
        yield
    finally:
        namespace.delete("resourcequotas", "limit")


@pytest.mark.parametrize("resource", ["jobs", "secrets", "pods"])
def test_a_quota_that_is_exceeded(served: Namespace, resource: str) -> None:
    there = len(served.items({"jobs": JOBS}.get(resource, resource)))
    with quota(served, **{resource: there}):
        error = failure(served, CapacityError)
    assert "exceeded quota: limit" in error.message
    assert f"={there}" in error.message
    assert "quota" in error.hint
    nothing_left(served)


def test_an_image_that_cannot_be_pulled(served: Namespace) -> None:
    image = f"shared-pathways-service/proxy_server:{MISSING_TAG}"
    error = failure(served, ProxyFailed, proxy_server_image=image)
    assert error.exit_code is None
    assert image in error.message
    assert "cannot be pulled" in error.message
    assert "proxy_server_image" in error.hint
    nothing_left(served)


def test_a_proxy_that_crashes_at_its_start(served: Namespace) -> None:
    error = failure(served, ProxyFailed, proxy_server_image="testbed/exit:3")
    assert error.exit_code == 3
    assert error.log_tail == ("this image ends with 3",)
    assert "exit code 3" in error.message
    nothing_left(served)


def test_a_proxy_for_which_there_is_no_node(served: Namespace) -> None:
    options = ["node_selector:disk=none"]
    error = failure(served, ProxyFailed, proxy_options=options, timeout=4)
    assert "within 4 s" in error.message
    assert "no node takes it" in error.message
    assert "didn't match Pod's node affinity/selector" in error.message
    assert "timeout=" in error.hint
    nothing_left(served)


@pytest.mark.parametrize("disguised", [False, True], ids=["plain", "disguised"])
def test_a_name_that_somebody_elses_job_has(served: Namespace, disguised: bool) -> None:
    name = "isc-proxy-taken" + ("-too" if disguised else "")
    labels = {"app.kubernetes.io/managed-by": "shared-pathways-service", "sps.dev/session": "other"}
    container = {"name": "main", "image": "testbed/command", "command": ["sleep", "600"]}
    spec = {
        "suspend": True,
        "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
    }
    metadata = {"name": name, "labels": labels if disguised else {}}
    theirs = served.create(JOBS, {"metadata": metadata, "spec": spec})
    before = len(created(served))
    error = failure(served, InvalidRequestError, proxy_job_name=name)
    assert (error.field, error.value) == ("proxy_job_name", name)
    assert served.name in error.expected
    tried = created(served)[before:]
    assert [(entry.verb, entry.resource, entry.code) for entry in tried] == [
        ("create", "jobs", 409)
    ]
    nothing_left(served)
    still = served.testbed.api.get(served.path(JOBS, name))
    for kept in ("uid", "labels", "deletionTimestamp"):
        assert still["metadata"].get(kept) == theirs["metadata"].get(kept)
    assert still["spec"] == theirs["spec"]
    served.delete(JOBS, name)


def test_a_local_port_that_is_taken_is_named(served: Namespace) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        error = failure(served, InvalidRequestError, local_port=port)
    assert (error.field, error.value) == ("local_port", port)
    assert "in use" in error.message
    nothing_left(served)
