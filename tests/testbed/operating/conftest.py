"""The options of `sps` that name the namespace of a test."""

from __future__ import annotations

import pytest

from harness.testbed.clients import tenant
from shared_pathways_service.testing.testbed import Namespace


@pytest.fixture
def place(namespace: Namespace, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The options that name the namespace, as its tenant."""
    for name, value in tenant(namespace).items():
        monkeypatch.setenv(name, value)
    return ["--context=testbed", f"--namespace={namespace.name}"]
