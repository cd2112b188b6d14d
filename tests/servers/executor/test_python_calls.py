"""Functions of colocated Python on an executor: abandoned calls, and the ends of processes."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.processes import DEADLINE_S, is_alive
from harness.proxy.python_functions import Function, Waiting, pickled
from shared_pathways_service.protocol import executors_pb2 as pb
from shared_pathways_service.servers.devices.status_errors import Code, StatusError
from shared_pathways_service.servers.executor.held import Held
from shared_pathways_service.servers.executor.job import Job
from shared_pathways_service.servers.executor.python_calls import PythonCalls
from tests.servers.proxy.conftest import wait_until
from tests.servers.proxy.processes import FOUR


class Client:
    """Has arrays that are bytes."""

    def pieces(self, array: np.ndarray) -> list[memoryview]:
        return [memoryview(array.tobytes())]

    def put(self, _spec: Any, shards: list[memoryview]) -> np.ndarray:
        return np.frombuffer(shards[0], np.float32)


@pytest.fixture
def calls() -> Iterator[PythonCalls]:
    made = PythonCalls(is_allowed=True)
    yield made
    made.close_all()


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[Waiting]:
    made = Waiting(tmp_path)
    yield made
    made.close()


def held(value: Any) -> Held:
    made = Held()
    made.fill(value)
    return made


def function(calls: PythonCalls, body: Function, number: int, session: int = 1) -> Held:
    message = pb.MakePython(
        program=number,
        name=f"function {number}",
        pickled=pickled(body),
        python=session,
        device_count=1,
        devices=[0],
        results=[pb.ExecutorArraySpec()],
        piece_bytes=[FOUR.nbytes],
    )
    made = Held()
    calls.make(Job(0, 1, "make_python", message, [held(Client())], [made]), pb.ExecutorReport())
    return made


def begin(calls: PythonCalls, number: int, of: Held) -> futures.Future[np.ndarray]:
    """Begins an expected call; the future gets its result."""
    made: futures.Future[np.ndarray] = futures.Future()
    result = Held()

    def end(job: Job) -> None:
        try:
            calls.end(job, pb.ExecutorReport())
            made.set_result(result.get())
        except StatusError as error:
            made.set_exception(error)

    calls.begin(
        Job(number, 1, "call_python", None, [held(Client()), of, held(FOUR)], [result]), end
    )
    return made


def test_calls_run_in_the_process_of_their_session(calls: PythonCalls, waiting: Waiting) -> None:
    first = function(calls, waiting.function, 1)
    other = function(calls, lambda x: x + 1, 2, session=2)
    calls.expect(1)
    calls.expect(2)
    waits = begin(calls, 1, first)
    (process,) = waiting.processes()
    np.testing.assert_array_equal(begin(calls, 2, other).result(DEADLINE_S), FOUR + 1)
    assert is_alive(process)
    calls.close([1])
    with pytest.raises(StatusError, match=r"function 1: .*ended by signal 9"):
        waits.result(DEADLINE_S)
    wait_until(lambda: not is_alive(process))
    calls.expect(3)
    np.testing.assert_array_equal(begin(calls, 3, other).result(DEADLINE_S), FOUR + 1)


@pytest.mark.race
def test_a_call_can_be_abandoned_before_it_begins_and_while_it_runs(
    calls: PythonCalls, waiting: Waiting
) -> None:
    waits, adds = function(calls, waiting.function, 1), function(calls, lambda x: x + 1, 2)
    calls.expect(1)
    calls.abandon(1)
    with pytest.raises(StatusError, match="function 1 was not called") as raised:
        begin(calls, 1, waits)
    assert raised.value.code == Code.CANCELLED
    for number in (2, 3):
        calls.expect(number)
    running, queued = begin(calls, 2, waits), begin(calls, 3, adds)
    (process,) = waiting.processes()
    calls.abandon(2)
    with pytest.raises(StatusError, match=r"function 1: .*ended by signal 9"):
        running.result(DEADLINE_S)
    np.testing.assert_array_equal(queued.result(DEADLINE_S), FOUR + 1)
    wait_until(lambda: not is_alive(process))
    calls.abandon(3)  # it has ended: nothing happens


def test_no_function_is_made_for_a_session_that_has_ended(calls: PythonCalls) -> None:
    calls.close([1])
    with pytest.raises(StatusError, match="function 1: its session has ended") as raised:
        function(calls, lambda x: x, 1)
    assert raised.value.code == Code.CANCELLED
    function(calls, lambda x: x, 2, session=2)


def test_the_sessions_that_ended_long_ago_are_forgotten(calls: PythonCalls) -> None:
    for session in range(1, 3001):
        calls.close([session])
    for session in (1977, 3000):
        with pytest.raises(StatusError, match="function 1: its session has ended"):
            function(calls, lambda x: x, 1, session)
    function(calls, lambda x: x, 1, session=1)


def test_without_permission_no_function_is_made() -> None:
    with pytest.raises(StatusError, match="function 1: this executor has no --colocated_python"):
        function(PythonCalls(is_allowed=False), lambda x: x, 1)
