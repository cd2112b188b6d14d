"""How a program on executors is prepared for its runs."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from shared_pathways_service.protocol import executors_pb2 as pb
from shared_pathways_service.servers.devices.status_errors import Code, StatusError
from shared_pathways_service.servers.proxy.executors.executor_programs import RemoteExecutable


class Client:
    """Executors that compile; `is_lost` has them fail from then on."""

    def __init__(self, hosts: int) -> None:
        links = [SimpleNamespace(free=lambda _kind, _number: None) for _ in range(hosts)]
        self._present = SimpleNamespace(
            number=1,
            hosts=lambda _devices: links,
            devices_of=lambda devices: dict(zip(map(id, links), devices, strict=False)),
        )
        self.times: Any = None
        self.is_lost = False
        self.made: list[pb.MakeRunner] = []

    def present(self) -> Any:
        return self._present

    def is_on(self, _links: Sequence[Any]) -> bool:
        return True

    def ask(self, _client: int, links: Sequence[Any], **body: Any) -> list[pb.ExecutorReport]:
        if self.is_lost:
            raise StatusError(Code.DATA_LOSS, "the executor is gone")
        if "make_runner" in body:
            self.made.append(body["make_runner"])
        return [pb.ExecutorReport(run_ns=7 + i) for i, _ in enumerate(links)]


@pytest.mark.parametrize("is_quick", [False, True])
def test_executors_learn_which_programs_are_quick(is_quick: bool) -> None:
    client: Any = Client(hosts=1)
    start = RemoteExecutable(client, pb.CompileProgram()).starter([], is_quick=is_quick)
    assert start is not None
    assert start.is_quick
    assert [made.is_quick for made in client.made] == [is_quick]


@pytest.mark.parametrize("hosts", [1, 2])
def test_a_loss_after_the_compilation_fails_the_first_run(hosts: int) -> None:
    client: Any = Client(hosts)
    program = RemoteExecutable(client, pb.CompileProgram())
    client.is_lost = True
    run = program.runner([])
    start = program.starter([], is_quick=True)
    assert (start is None) is (hosts > 1)
    with pytest.raises(StatusError, match="is gone"):
        run([]) if start is None else start([], lambda _error: None)
    client.is_lost = False
    assert run([]) == []


class Times:
    """Records the runs that are entered."""

    def __init__(self) -> None:
        self.ran_ns: list[list[int]] = []

    def ran(self, _name: str, _digest: bytes, _devices: Any, times_ns: list[int]) -> None:
        self.ran_ns.append(times_ns)


def test_the_first_run_of_a_program_is_not_compared() -> None:
    client: Any = Client(hosts=2)
    client.times = Times()
    run = RemoteExecutable(client, pb.CompileProgram()).runner([])
    for _ in range(3):
        run([])
    assert client.times.ran_ns == [[7, 8]] * 2
