"""The calls of a session's functions on executors that only record what they are sent."""

from __future__ import annotations

from concurrent import futures
from typing import Any

import pytest

from shared_pathways_service.protocol import executors_pb2 as pb
from shared_pathways_service.servers.devices.status_errors import Code, StatusError
from shared_pathways_service.servers.proxy.colocated.executor_python import (
    ExecutorFunction,
    ExecutorPython,
)


class Link:
    """The stream to an executor."""

    def __init__(self) -> None:
        self.lost: StatusError | None = None
        self.sent: list[str | None] = []
        self.freed: list[tuple[str, int]] = []

    def tell(self, command: pb.ExecutorCommand) -> None:
        self.sent.append(command.WhichOneof("command"))

    def ask(self, command: pb.ExecutorCommand) -> futures.Future[pb.ExecutorReport]:
        self.tell(command)
        return futures.Future()

    def free(self, kind: str, number: int) -> None:
        self.freed.append((kind, number))


def call(python: ExecutorPython, link: Any) -> None:
    python.put(ExecutorFunction(pb.MakePython(), ()), link, 1, ())


def test_the_processes_of_all_executors_end_with_the_session() -> None:
    python, first, second = ExecutorPython(), Link(), Link()
    for link in (first, second, first):
        call(python, link)
    python.close()
    for link in (first, second):
        assert link.freed[-1] == ("pythons", python.number)
        assert ("pythons", python.number) not in link.freed[:-1]


def test_a_session_that_has_ended_calls_nothing() -> None:
    python, link = ExecutorPython(), Link()
    python.close()
    with pytest.raises(StatusError, match="the session has ended") as raised:
        call(python, link)
    assert raised.value.code is Code.CANCELLED
    assert not link.sent
    assert python.outstanding == 0


def test_lost_executors_are_forgotten_with_the_next_one() -> None:
    python, lost, serving = ExecutorPython(), Link(), Link()
    call(python, lost)
    lost.lost = StatusError(Code.DATA_LOSS, "it is gone")
    call(python, serving)
    python.close()
    assert ("pythons", python.number) in serving.freed
    assert ("pythons", python.number) not in lost.freed
