"""What is asked for first is done first, whichever threads do it, and no thread waits in vain."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import pytest

from harness.processes import DEADLINE_S
from harness.proxy.programs import DOUBLE, sharded_double
from harness.proxy.raw import RawClient, single, split
from shared_pathways_service.servers.proxy.execution.executor import Executor
from shared_pathways_service.servers.proxy.execution.operations import Operation
from shared_pathways_service.servers.serving.last_requests_file import LastRequests
from tests.servers.proxy.conftest import LocalProxy

pytestmark = pytest.mark.race

#: Floats of an array that is copied aside.
LARGE = 1 << 20


@pytest.fixture
def large(proxy: LocalProxy, client: RawClient) -> tuple[int, int, np.ndarray]:
    """A program that takes its argument's memory, its argument, and what that holds."""
    text = sharded_double(4, ", tf.aliasing_output = 0 : i32").replace("8xf32", f"{LARGE}xf32")
    program = client.compile(text, range(4))
    values = np.arange(LARGE, dtype=np.float32)
    (array,) = client.execute(program, [client.put(values, split(range(4)))])
    client.ready(array)
    return program, array, 2 * values


@contextlib.contextmanager
def helpers_busy(proxy: LocalProxy) -> Iterator[None]:
    """Keeps what is left to helper threads from being done within the block."""
    busy, free = threading.Barrier(5), threading.Event()

    def occupy() -> None:
        busy.wait(DEADLINE_S)
        free.wait(DEADLINE_S)

    for _ in range(4):
        proxy.engine.run_aside(occupy)
    busy.wait(DEADLINE_S)
    try:
        yield
    finally:
        free.set()


def test_a_copy_is_made_before_a_later_program_takes_the_memory(
    proxy: LocalProxy, client: RawClient, large: tuple[int, int, np.ndarray]
) -> None:
    program, array, values = large
    with helpers_busy(proxy):
        (copy,) = client.call(
            "copy_arrays", array_handles=[array], device_ids=[3, 2, 1, 0], result_handles=[99]
        ).array_handles
        (result,) = client.execute(program, [array])
        # Time for the program to run, were it not to wait.
        client.ready(*client.execute(client.compile(DOUBLE, [4]), [client.put(FOUR, single(4))]))
    np.testing.assert_array_equal(client.fetch(copy), values)
    np.testing.assert_array_equal(client.fetch(result), 2 * values)


def test_a_fetch_looks_before_a_later_program_takes_the_memory(
    proxy: LocalProxy, client: RawClient, large: tuple[int, int, np.ndarray]
) -> None:
    program, array, values = large
    with helpers_busy(proxy):
        fetch, buffer = client.begin_fetch(array)
        (result,) = client.execute(program, [array])
        client.ready(result)
    fetch.result()
    np.testing.assert_array_equal(np.frombuffer(client.lookup(buffer), np.float32), values)
    np.testing.assert_array_equal(client.fetch(result), 2 * values)


FOUR = np.arange(4, dtype=np.float32)


class Work:
    """Stands in for an operation: runs until it may end."""

    name = "work"

    def __init__(self) -> None:
        self.began, self.may_end, self.ended = (threading.Event() for _ in range(3))

    def arrive(self, _executor: Executor) -> None:
        self.began.set()
        assert self.may_end.wait(DEADLINE_S)
        self.ended.set()


@pytest.fixture
def executor() -> Iterator[Executor]:
    made = Executor("slice-0-1", LastRequests().place("here"))
    yield made
    made.close()


def put(executor: Executor) -> Work:
    work = Work()
    executor.put(cast("Operation", work))
    return work


def test_an_executor_goes_on_behind_what_it_is_stuck_in(executor: Executor) -> None:
    stuck, behind = put(executor), put(executor)
    assert stuck.began.wait(DEADLINE_S)
    assert not behind.began.is_set()
    executor.leave_behind(cast("Operation", stuck))
    assert behind.began.wait(DEADLINE_S)
    # Once it ends after all, its thread takes nothing more.
    stuck.may_end.set()
    last = put(executor)
    assert stuck.ended.wait(DEADLINE_S)
    assert not last.began.wait(0.2)
    behind.may_end.set()
    assert last.began.wait(DEADLINE_S)
    last.may_end.set()


def test_an_executor_goes_on_with_the_thread_that_it_has(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck, behind = put(executor), put(executor)
    assert stuck.began.wait(DEADLINE_S)

    def fail(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fail)
        executor.leave_behind(cast("Operation", stuck))
    stuck.may_end.set()
    assert behind.began.wait(DEADLINE_S)
    behind.may_end.set()


def test_an_executor_that_has_moved_on_does_not_run_two_things_at_once(
    executor: Executor,
) -> None:
    over, present, next_ = put(executor), put(executor), put(executor)
    over.may_end.set()
    assert present.began.wait(DEADLINE_S)
    executor.leave_behind(cast("Operation", over))
    assert not next_.began.wait(0.2)
    present.may_end.set()
    assert next_.began.wait(DEADLINE_S)
    next_.may_end.set()


class LosesOnce:
    """A lock that, released for the first time, loses slice 1."""

    def __init__(self, proxy: LocalProxy) -> None:
        self._proxy = proxy
        self._lock = threading.Lock()
        self.released = False

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_exc: object) -> None:
        self._lock.release()
        if not self.released:
            self.released = True
            self._proxy.lose(1)


def test_a_loss_amid_the_dispatch_over_two_slices_leaves_the_living_one_free(
    proxy: LocalProxy, client: RawClient
) -> None:
    operation = Operation(
        "both",
        lambda: (),
        inputs=(),
        outputs=(),
        epochs=proxy.slices.epochs((0, 1)),
        session_id=0,
    )
    lock: Any = LosesOnce(proxy)
    operation._lock = lock
    operation.start()
    assert lock.released
    assert operation.error is not None
    (result,) = client.execute(client.compile(DOUBLE, [0]), [client.put(FOUR, single(0))])
    np.testing.assert_array_equal(client.fetch(result), 2 * FOUR)
