"""When a workload reports its program's end, where its proxy is there and where it is gone."""

from __future__ import annotations

import contextlib
import socket
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.session_requests import session_request
from shared_pathways_service.cli import workload
from shared_pathways_service.cli.workload import Workload


class FakeAgent:
    """A connection to a proxy at a path; it notes in `order` that its failure was waited for."""

    def __init__(self, path: Path, order: list[str], *, is_remote: bool = False) -> None:
        self.snapshot = types.SimpleNamespace(address=f"unix:{path}")
        self.state = types.SimpleNamespace(
            token="token",
            token_file=None,
            insecure_credentials=False,
            transfer_dir=None,
            is_remote=is_remote,
        )
        self.order = order
        self.error: BaseException | None = None

    def wait_for_failure(self, _timeout: float) -> None:
        self.order.append("waited")
        if self.error is not None:
            raise self.error


@pytest.fixture
def order() -> list[str]:
    return []


@pytest.fixture
def path(own_directories: Path) -> Path:
    return own_directories / "proxy"


@contextlib.contextmanager
def listening(path: Path, backlog: int = 1) -> Iterator[None]:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen(backlog)
        yield


def run(monkeypatch: pytest.MonkeyPatch, agent: FakeAgent, code: int = 3) -> int:
    """Runs a workload whose program ends with this code."""
    monkeypatch.setattr(Workload, "_open", lambda *_: agent)

    def run_child(*_: Any) -> int:
        agent.order.append("ran")
        return code

    monkeypatch.setattr(workload, "run_child", run_child)
    request = session_request()
    ended = Workload(
        command=["true"], request=request, variables={}, on_end=lambda: agent.order.append("ended")
    )
    return ended.run()


def test_the_end_of_a_failed_program_waits_for_that_of_its_proxy(
    monkeypatch: pytest.MonkeyPatch, path: Path, order: list[str]
) -> None:
    assert run(monkeypatch, FakeAgent(path, order)) == 3
    assert order == ["ran", "waited", "ended"]
    # What a killed proxy leaves.
    with listening(path):
        pass
    order.clear()
    assert run(monkeypatch, FakeAgent(path, order)) == 3
    assert order == ["ran", "waited", "ended"]


def test_nothing_is_waited_for_where_the_proxy_is_there_or_the_program_is_content(
    monkeypatch: pytest.MonkeyPatch, path: Path, order: list[str]
) -> None:
    assert run(monkeypatch, FakeAgent(path, order), code=0) == 0
    assert order == ["ran", "ended"]
    order.clear()
    assert run(monkeypatch, FakeAgent(path, order, is_remote=True)) == 3
    assert order == ["ran", "ended"]
    order.clear()
    # A proxy that accepts nothing for now is there as well.
    with listening(path, backlog=0), socket.socket(socket.AF_UNIX) as first:
        first.connect(str(path))
        assert run(monkeypatch, FakeAgent(path, order)) == 3
    assert order == ["ran", "ended"]


def test_a_signal_in_the_wait_does_not_hide_the_end(
    monkeypatch: pytest.MonkeyPatch, path: Path, order: list[str]
) -> None:
    agent = FakeAgent(path, order)
    agent.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        run(monkeypatch, agent)
    assert order == ["ran", "waited", "ended"]
