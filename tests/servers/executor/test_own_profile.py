"""An executor's profile: in the order of the commands, bounded, ended by its own `DROP` only."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from harness.processes import DEADLINE_S
from shared_pathways_service.protocol import executors_pb2 as pb
from shared_pathways_service.protocol import xplane_pb2
from shared_pathways_service.servers.devices.status_errors import Code
from shared_pathways_service.servers.executor.exchange import Offers
from shared_pathways_service.servers.executor.executor_commands import Commands
from shared_pathways_service.servers.executor.python_calls import PythonCalls
from tests.servers.proxy.conftest import wait_until

_Action = pb.ProfileExecutor.Action
CLOCK, START, STOP, DROP = _Action.CLOCK, _Action.START, _Action.STOP, _Action.DROP


class Executor:
    """Takes commands of profiles, without waiting."""

    def __init__(self) -> None:
        self._arrived: queue.SimpleQueue[tuple[pb.ExecutorReport, bytes]] = queue.SimpleQueue()
        engine: Any = SimpleNamespace()
        python = PythonCalls(is_allowed=False)
        self._commands = Commands(engine, self._take, Offers(), "the executor", python)
        self._reports: dict[int, tuple[pb.ExecutorReport, bytes]] = {}
        self._sent = 0

    def send(self, action: _Action.ValueType, profile: int = 1, most_bytes: int = 1 << 30) -> int:
        self._sent += 1
        body = pb.ProfileExecutor(action=action, profile=profile, most_bytes=most_bytes)
        self._commands.take(pb.ExecutorCommand(number=self._sent, profile=body))
        return self._sent

    def answer(self, number: int) -> tuple[pb.ExecutorReport, bytes]:
        while number not in self._reports:
            report, data = self._arrived.get(timeout=DEADLINE_S)
            self._reports[report.number] = report, data
        return self._reports[number]

    def code(self, number: int) -> Code:
        return Code(self.answer(number)[0].code)

    def close(self) -> None:
        self._commands.close()

    def _take(self, report: pb.ExecutorReport, data: Any = None, *, may_wait: bool = False) -> None:
        del may_wait
        self._arrived.put((report, b"".join(data or ())))


@pytest.fixture
def executor() -> Iterator[Executor]:
    made = Executor()
    yield made
    made.close()


def test_a_profile_comes_with_its_clock(executor: Executor) -> None:
    began, read, ended = executor.send(START), executor.send(CLOCK), executor.send(STOP)
    clocks = [executor.answer(number)[0].clock_ns for number in (began, ended)]
    assert clocks == sorted(clocks)
    assert executor.answer(read)[0].clock_ns
    assert xplane_pb2.XSpace.FromString(executor.answer(ended)[1]).planes


def test_commands_do_not_overtake_each_other(executor: Executor) -> None:
    numbers = []
    for profile in range(1, 6):
        numbers += [executor.send(START, profile), executor.send(DROP, profile)]
    numbers += [executor.send(START, 6), executor.send(STOP, 6)]
    assert [executor.code(number) for number in numbers] == [Code.OK] * 12


def test_a_late_drop_does_not_end_the_next_profile(executor: Executor) -> None:
    executor.send(START, 2)
    late, wrong, ended = executor.send(DROP, 1), executor.send(STOP, 1), executor.send(STOP, 2)
    assert executor.code(late) is Code.OK
    assert executor.code(wrong) is Code.FAILED_PRECONDITION
    assert executor.code(ended) is Code.OK


def test_a_profile_that_is_too_large_does_not_travel(executor: Executor) -> None:
    executor.send(START)
    report, data = executor.answer(executor.send(STOP, most_bytes=10))
    assert report.code == Code.RESOURCE_EXHAUSTED.value
    assert "(--trace_bytes) is 10 bytes" in report.message
    assert data == b""
    assert executor.code(executor.send(START, 2)) is Code.OK


def test_one_at_a_time(executor: Executor) -> None:
    executor.send(START)
    assert executor.code(executor.send(START, 2)) is Code.ALREADY_EXISTS


def test_the_end_of_the_proxy_ends_its_profile(executor: Executor) -> None:
    executor.send(START)
    executor.close()
    # XLA's profiler, of which this process has one, is free again.
    following = Executor()
    try:
        assert executor.code(1) is Code.OK
        wait_until(lambda: following.code(following.send(START)) is Code.OK)
    finally:
        following.close()
