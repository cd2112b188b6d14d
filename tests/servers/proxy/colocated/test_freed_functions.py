"""Functions of colocated Python that are not used any more, above all on executors."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import numpy as np
import pytest

from harness.processes import is_alive
from harness.proxy.python_functions import compile_python
from harness.proxy.raw import Failed, RawClient, single
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from tests.servers.proxy.colocated.conftest import MakeWaiting
from tests.servers.proxy.colocated.local_executor import LocalExecutor, local_executor
from tests.servers.proxy.conftest import LocalProxy, MakeClient, MakeProxy, wait_until
from tests.servers.proxy.processes import FOUR


@pytest.fixture
def executor() -> Iterator[LocalExecutor]:
    with local_executor() as made:
        yield made


@pytest.fixture
def proxy(executor: LocalExecutor, make_proxy: MakeProxy) -> Iterator[LocalProxy]:
    """Its first slice has the executor; the second one has none."""
    made = make_proxy(places_executors=True, runs_python=True)
    placed = made.engine.placed_executors
    assert placed is not None
    placed.serve(
        pb.PlacementExecutors(
            virtual_index=0,
            generation=1,
            executors=[pb.Executor(host_index=0, address=executor.address)],
        )
    )
    yield made
    placed.close()


def increment(client: RawClient) -> int:
    """Makes a program of a function, and calls it."""
    program = compile_python(client, lambda x: x + 1)
    (result,) = client.execute(program, [client.put(FOUR, single(0))])
    np.testing.assert_array_equal(client.fetch(result), FOUR + 1)
    return program


def test_a_client_frees_a_function(
    executor: LocalExecutor, proxy: LocalProxy, connect: MakeClient
) -> None:
    client = connect(proxy.address)
    program = increment(client)
    (first,) = executor.numbers("programs")
    increment(client)
    client.call("loaded_executable_destruct", loaded_executable_handle=program)
    wait_until(lambda: len(executor.numbers("programs")) == 1)
    assert executor.numbers("programs") != [first]


def test_a_function_that_failed_is_freed(
    executor: LocalExecutor, proxy: LocalProxy, connect: MakeClient
) -> None:
    client = connect(proxy.address)
    program = compile_python(client, lambda x: x // "no number")
    (result,) = client.execute(program, [client.put(FOUR, single(0))])
    with pytest.raises(Failed, match="unsupported operand"):
        client.fetch(result)
    assert executor.numbers("programs")
    client.call("loaded_executable_destruct", loaded_executable_handle=program)
    wait_until(lambda: not executor.numbers("programs"))


def test_a_function_that_failed_beside_the_proxy_is_freed(
    make_proxy: MakeProxy, connect: MakeClient
) -> None:
    proxy = make_proxy(runs_python=True)
    client = connect(proxy.address)
    program = compile_python(client, lambda x: x // "no number")
    (session,) = proxy.service.sessions
    function = weakref.ref(session.programs[program].executable)
    (result,) = client.execute(program, [client.put(FOUR, single(0))])
    with pytest.raises(Failed, match="unsupported operand"):
        client.fetch(result)
    client.call("loaded_executable_destruct", loaded_executable_handle=program)
    wait_until(lambda: function() is None)


@pytest.mark.race
def test_the_end_of_a_session_frees_its_functions(
    executor: LocalExecutor, proxy: LocalProxy, connect: MakeClient, make_waiting: MakeWaiting
) -> None:
    other = connect(proxy.address)
    increment(other)
    remaining = executor.numbers("programs")
    waiting = make_waiting()
    with RawClient(proxy.address) as client:
        increment(client)
        client.execute(compile_python(client, waiting.function), [client.put(FOUR, single(0))])
        processes = waiting.processes()
        assert len(executor.numbers("programs")) == 3
    wait_until(lambda: executor.numbers("programs") == remaining)
    wait_until(lambda: not any(map(is_alive, processes)))
    increment(other)
