"""One API server for the tests of this directory, a namespace for each of them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shared_pathways_service.kube.gke import ENDPOINT_VARIABLE
from shared_pathways_service.testing.google import FakeGoogle
from shared_pathways_service.testing.testbed.build import Programs
from tests.kube.control_plane import ControlPlane


@pytest.fixture(scope="session")
def _control_plane(testbed_programs: Programs) -> Iterator[ControlPlane]:
    plane = ControlPlane(testbed_programs)
    try:
        plane.start()
        yield plane
    finally:
        plane.stop()


@pytest.fixture
def control_plane(_control_plane: ControlPlane) -> Iterator[ControlPlane]:
    """The control plane; its API server runs again after a test that killed it."""
    yield _control_plane
    if not _control_plane.is_up:
        _control_plane.start()


@pytest.fixture
def namespace(control_plane: ControlPlane) -> str:
    name = f"t-{secrets.token_hex(4)}"
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    control_plane.call("POST", "/api/v1/namespaces", body)
    return name


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch, own_directories: Path) -> Callable[..., FakeGoogle]:
    """Makes a stand-in for Google that google-auth and the GKE look-up then use."""

    def use(*args: Any, **kwargs: Any) -> FakeGoogle:
        fake = FakeGoogle(*args, **kwargs)
        own_directories.mkdir(exist_ok=True)
        fake.write_credentials(own_directories / "credentials.json")
        monkeypatch.setenv(
            "GOOGLE_APPLICATION_CREDENTIALS", str(own_directories / "credentials.json")
        )
        monkeypatch.setenv(ENDPOINT_VARIABLE, fake.url + "/")
        return fake

    return use


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    return lambda path: monkeypatch.setenv("KUBECONFIG", str(path))
