"""An API server in whose place a server records what official clients send."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kube.background import Background, background
from tests.kube.certificates import Authority
from tests.kube.official_client.support import NAME
from tests.kube.recording_server import RecordingServer, recording_server

VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY")


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority("corp", is_strict=True)


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch, own_directories: Path) -> Iterator[Background]:
    own_directories.mkdir(exist_ok=True)
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    with background() as made:
        yield made


@pytest.fixture
def server(servers: Background, authority: Authority) -> RecordingServer:
    certificate = authority.issue("api", address="127.0.0.1", hosts=[NAME])
    return servers.enter(recording_server(certificate, authority.certificate))
