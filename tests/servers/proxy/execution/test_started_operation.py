"""Operations that are started settle once, free their room, and are ordered like all others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from harness.processes import DEADLINE_S
from shared_pathways_service.servers.devices.status_errors import Code, StatusError
from shared_pathways_service.servers.proxy.execution import in_flight
from shared_pathways_service.servers.proxy.execution.executor import Executor
from shared_pathways_service.servers.proxy.execution.in_flight import Pace
from shared_pathways_service.servers.proxy.execution.started_operation import StartedOperation
from shared_pathways_service.servers.proxy.execution.values import Value
from shared_pathways_service.servers.proxy.execution.virtual_slices import Epoch
from shared_pathways_service.servers.serving.last_requests_file import LastRequests
from tests.servers.proxy.conftest import wait_until

pytestmark = pytest.mark.race

OnEnd = Callable[[StatusError | None], None]
LOST = StatusError(Code.DATA_LOSS, "the slice is lost")
FAILED = StatusError(Code.INTERNAL, "it failed")
ARRAY = object()


class Slice:
    """A placement whose operations start at once, and end when they are told to."""

    def __init__(self) -> None:
        self.executor = Executor("slice", LastRequests().place(""))
        self.epoch = Epoch(0, 1, "slice-0")
        self.epoch.executor = self.executor
        # Of those that were started, with their threads.
        self.ends: list[OnEnd] = []
        self.threads: list[threading.Thread] = []
        self.has_started = threading.Condition()

    def operation(self, start: Callable[[OnEnd], Sequence[Any]] | None = None) -> StartedOperation:
        """Returns one that is not started yet, with one output."""
        epochs = (self.epoch,)
        return StartedOperation(
            "work",
            start or self._start,
            nbytes=8,
            pace=Pace(0.0),
            inputs=(),
            outputs=[Value(None, epochs)],
            epochs=epochs,
            session_id=1,
            quick=True,
        )

    def wait_for(self, count: int) -> None:
        with self.has_started:
            assert self.has_started.wait_for(lambda: len(self.ends) >= count, DEADLINE_S)

    def _start(self, on_end: OnEnd) -> Sequence[Any]:
        with self.has_started:
            self.ends.append(on_end)
            self.threads.append(threading.current_thread())
            self.has_started.notify_all()
        return [ARRAY]


@pytest.fixture
def place() -> Iterator[Slice]:
    made = Slice()
    yield made
    made.executor.close()


def output(operation: StartedOperation) -> Value:
    return operation._outputs[0]


def outcome(value: Value) -> tuple[object, str]:
    """Returns the array and the error's message of a value that has settled."""
    assert value.settled
    return value.array, value.error.message if value.error else ""


def is_running(operation: StartedOperation) -> bool:
    return operation.running


def is_idle(place: Slice) -> bool:
    return not (place.executor.in_flight._started or place.epoch.operations)


def test_it_has_its_arrays_when_it_is_started_and_settles_with_the_end(place: Slice) -> None:
    operation = place.operation()
    value = output(operation)
    operation.start()
    assert place.threads == [threading.current_thread()]
    assert (value.array, value.settled, operation.running) == (ARRAY, False, True)
    assert not is_idle(place)
    place.ends[0](None)
    assert (value.array, value.settled, operation.running) == (ARRAY, True, False)
    assert is_idle(place)


def test_it_may_end_before_its_start_returns(place: Slice) -> None:
    for error in (None, FAILED):

        def start(on_end: OnEnd, error: StatusError | None = error) -> Sequence[Any]:
            on_end(error)
            return [ARRAY]

        operation = place.operation(start)
        value = output(operation)
        operation.start()
        assert outcome(value) == ((None, error.message) if error else (ARRAY, ""))
        assert not operation.running
        assert is_idle(place)


def test_an_error_is_that_of_its_outputs(place: Slice) -> None:
    def start(_on_end: OnEnd) -> Sequence[Any]:
        raise FAILED.copy()  # (One that is raised keeps its frames.)

    refused, failed = place.operation(start), place.operation()
    values = [output(refused), output(failed)]
    refused.start()
    failed.start()
    place.ends[0](FAILED)
    for value in values:
        assert outcome(value) == (None, FAILED.message)
    assert not refused.running
    assert is_idle(place)


def test_a_loss_settles_it_and_frees_its_room_while_the_work_goes_on(place: Slice) -> None:
    operation = place.operation()
    value = output(operation)
    operation.start()
    assert operation.abandon(LOST)  # It runs still.
    assert outcome(value) == (None, LOST.message)
    assert is_idle(place)
    # It may block its devices until it has ended.
    place.ends[0](None)
    assert not is_running(operation)
    assert outcome(value) == (None, LOST.message)
    # Nothing holds its data.
    assert (operation._made, operation._run) == (None, None)


def test_a_loss_before_its_start_leaves_no_trace(place: Slice) -> None:
    operation = place.operation()
    operation.fail(LOST)
    operation.arrive(place.executor)
    assert place.ends == []
    assert is_idle(place)


def test_one_without_room_is_handed_on_and_so_are_those_behind_it(
    place: Slice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(in_flight, "_MOST", 2)
    operations = [place.operation() for _ in range(4)]
    for operation in operations:
        operation.start()
    assert len(place.ends) == 2
    # What waits in the queue for room is lost like all others.
    operations[3].abandon(LOST)
    place.ends[0](None)
    place.wait_for(3)
    me = threading.current_thread()
    assert place.threads[:2] == [me, me]
    assert place.threads[2] is not me
    for end in place.ends[1:]:
        end(None)
    # (The executor's thread may not have returned from the start of the third one.)
    wait_until(lambda: is_idle(place))
    errors = [operation.error and operation.error.code for operation in operations]
    assert errors == [None, None, None, Code.DATA_LOSS]
