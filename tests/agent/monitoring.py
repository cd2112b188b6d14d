"""A stand-in for Google that takes metrics, and users of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.deadlines import deadline
from shared_pathways_service.agent.cloud_monitoring import ENDPOINT_VARIABLE
from shared_pathways_service.session.cloud_metrics import METRICS
from shared_pathways_service.testing.google import FakeGoogle
from shared_pathways_service.testing.google_monitoring import FakeMonitoring

PROJECT = "fake-project"
DEADLINE_S = deadline(60.0)

MakeMonitoring = Callable[..., FakeMonitoring]


@contextlib.contextmanager
def google_user(monkeypatch: pytest.MonkeyPatch, root: Path) -> Iterator[Path]:
    """Gives this process, and those it starts, credentials that a stand-in knows: their file."""
    with FakeGoogle() as google:
        root.mkdir(parents=True, exist_ok=True)
        path = root / "credentials.json"
        google.write_credentials(path)
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
        for name in ("GOOGLE_CLOUD_PROJECT", "GCLOUD_PROJECT"):
            monkeypatch.delenv(name, raising=False)
        yield path


@contextlib.contextmanager
def monitoring_at_hand(monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeMonitoring]:
    """Yields what makes a stand-in for Cloud Monitoring that the agent then writes to."""
    with contextlib.ExitStack() as stack:

        def use(**options: Any) -> FakeMonitoring:
            fake = stack.enter_context(FakeMonitoring(PROJECT, **options))
            monkeypatch.setenv(ENDPOINT_VARIABLE, fake.url)
            return fake

        yield use


LEVELS = {metric.name for metric in METRICS if metric.is_level}
UNAVAILABLE = "metrics.unavailable"
