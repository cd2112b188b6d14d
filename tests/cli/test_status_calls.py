"""`sps status` asks the embedded service's supervisor and its resource manager once each."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from harness.embedded import embedded
from harness.programs import program
from shared_pathways_service import cli
from shared_pathways_service.protocol import resource_manager_pb2_grpc, supervisor_pb2_grpc
from tests.cli.support import HOLDER


class Counting:
    """A stub of a server, which counts its calls by their names."""

    def __init__(self, stub: Any, calls: Counter[str]) -> None:
        self._stub = stub
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        self._calls[name] += 1
        return getattr(self._stub, name)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the calls of this process to the servers of an embedded service."""
    counted: Counter[str] = Counter()

    def count(module: Any, name: str) -> None:
        stub = getattr(module, name)
        monkeypatch.setattr(module, name, lambda channel: Counting(stub(channel), counted))

    count(supervisor_pb2_grpc, "SupervisorStub")
    count(resource_manager_pb2_grpc, "ResourceManagerStub")
    return counted


@pytest.mark.parametrize("is_named", [False, True])
def test_a_status_asks_each_server_once(
    calls: Counter[str], capsys: pytest.CaptureFixture[str], *, is_named: bool
) -> None:
    with embedded(1), program(HOLDER) as running:
        name = running.expect("holds")["name"]
        words = ["--json", *([name] if is_named else [])]
        calls.clear()
        capsys.readouterr()
        cli.command("status").main(words, standalone_mode=False)
        shown = json.loads(capsys.readouterr().out)
        running.tell("leave")
        running.expect("left")
    # With the counters of the connection's proxy.
    assert [proxy["name"] for proxy in shown["proxies"]] == [name]
    assert calls == {"GetProcesses": 1, "GetStatus": 1}
