"""One API server for the tests of this directory, a namespace for each of them."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.testbed.plugin import CACHE_DIR
from shared_pathways_service.kube.gke import ENDPOINT_VARIABLE
from shared_pathways_service.testing.google import FakeGoogle
from shared_pathways_service.testing.testbed import TestbedUnavailable
from shared_pathways_service.testing.testbed.build import find_or_build
from tests.kube.control_plane import ControlPlane


@pytest.fixture(scope="session")
def _control_plane() -> Iterator[ControlPlane]:
    try:
        programs = find_or_build(CACHE_DIR, _say)
    except TestbedUnavailable as error:
        if os.environ.get("CI") == "true":
            raise
        _say(f"NO API SERVER, its tests are skipped: {error}")
        pytest.skip(f"no API server: {error}")
    plane = ControlPlane(programs)
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


def _say(text: str) -> None:
    # Past pytest's capture: a build takes minutes, and what is skipped must not go unseen.
    os.write(2, f"tests/kube: {text}\n".encode())


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    return lambda path: monkeypatch.setenv("KUBECONFIG", str(path))
