"""Executors that come with a placement, and go with it."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.patience import patience
from harness.processes import DEADLINE_S, ServerProcess
from harness.proxy.programs import DOUBLE
from harness.proxy.raw import Failed, single
from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.patience.factor import Timeout
from shared_pathways_service.protocol import proxy_status_pb2 as status_pb
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.servers.devices.status_errors import Code, StatusError
from shared_pathways_service.servers.proxy.execution.openings import Opening
from shared_pathways_service.servers.proxy.executors.placed_executors import PlacedExecutors
from tests.servers.proxy.conftest import (
    KIND,
    LocalProxy,
    MakeClient,
    MakeProxy,
    wait_until,
)
from tests.servers.proxy.processes import DATA_LOSS, FOUR

EXECUTOR = "shared_pathways_service.servers.executor"


def named(index: int, generation: int, *addresses: str, token: str = "") -> pb.PlacementExecutors:
    return pb.PlacementExecutors(
        virtual_index=index,
        generation=generation,
        executors=[
            pb.Executor(host_index=host, address=address, token=token)
            for host, address in enumerate(addresses)
        ],
    )


# ---- without executors


Lost = queue.SimpleQueue[tuple[int, int, str, int | None]]


@contextlib.contextmanager
def placed(lost: Lost, wait_s: float = DEADLINE_S) -> Iterator[PlacedExecutors]:
    executors = PlacedExecutors([InstanceType.parse(KIND)], wait=Timeout(wait_s))
    executors.watch(lambda *what: lost.put(what))
    try:
        # (What was waited for in vain is in the reasons.)
        with patience(1):
            yield executors
    finally:
        executors.close()


def test_a_placement_whose_executors_are_not_named_is_lost() -> None:
    lost: Lost = queue.SimpleQueue()
    opening = Opening()
    with placed(lost, wait_s=0.01) as executors:
        executors.begin(0, 3, opening)
        index, generation, reason, host = lost.get(timeout=DEADLINE_S)
        assert (index, generation, host) == (0, 3, None)
        assert reason == "the resource manager named no executors for it within 0.01 s"
        # What waits for it fails by its loss, and does not wait for ever.
        assert opening.wait(DEADLINE_S)


@pytest.mark.parametrize(
    ("addresses", "reason", "host"),
    [
        # (Port 1 of this machine: refused.)
        (("127.0.0.1:1",), "127.0.0.1:1", 0),
        (("127.0.0.1:1", "127.0.0.1:1"), "executors of hosts [0, 1], not of 1", None),
    ],
)
def test_a_placement_whose_executors_cannot_be_used_is_lost(
    addresses: tuple[str, ...], reason: str, host: int | None
) -> None:
    lost: Lost = queue.SimpleQueue()
    opening = Opening()
    with placed(lost) as executors:
        executors.begin(0, 3, opening)
        # Of an older placement, which is over.
        executors.serve(named(0, 2, "127.0.0.1:2"))
        executors.serve(named(0, 3, *addresses))
        index, generation, said, on_host = lost.get(timeout=DEADLINE_S)
        assert (index, generation, on_host) == (0, 3, host)
        assert reason in said
        assert opening.wait(DEADLINE_S)


def test_a_placement_that_ends_before_its_executors_are_named_is_not_reported() -> None:
    lost: Lost = queue.SimpleQueue()
    with placed(lost) as executors:
        first, second = Opening(), Opening()
        executors.begin(0, 3, first)
        executors.end(0, 3)
        assert first.wait(DEADLINE_S)
        executors.begin(0, 4, second)
        executors.end(0, 3)
        assert not second.done
    assert second.wait(DEADLINE_S)
    assert lost.empty()
    third = Opening()
    executors.begin(0, 5, third)
    assert third.done


# ---- with executors


@pytest.fixture
def addresses(tmp_path: Path) -> Iterator[list[tuple[str, ServerProcess]]]:
    token_file = tmp_path / "token"
    token_file.write_text("a-token")
    token_file.chmod(0o600)
    flags = [f"--instance_type={KIND}", f"--token_file={token_file}"]
    with contextlib.ExitStack() as stack:
        started = [stack.enter_context(ServerProcess(EXECUTOR, flags)) for _ in range(3)]
        yield [(f"127.0.0.1:{(process.ready or {})['port']}", process) for process in started]


def serve(proxy: LocalProxy, message: pb.PlacementExecutors) -> None:
    assert proxy.engine.placed_executors is not None
    proxy.engine.placed_executors.serve(message)


def test_programs_follow_their_slice_to_other_executors_and_arrays_do_not(
    make_proxy: MakeProxy, connect: MakeClient, addresses: list[tuple[str, ServerProcess]]
) -> None:
    (first, killed), (second, other), (third, last) = addresses
    proxy = make_proxy(places_executors=True)
    client = connect(proxy.address)
    # The slices are placed with generations 1 and 2; this waits for the first one's executor.
    array = client.put(FOUR, single(0))
    serve(proxy, named(0, 1, first, token="a-token"))
    serve(proxy, named(1, 2, second, token="a-token"))
    np.testing.assert_array_equal(client.fetch(array), FOUR)
    double = client.compile(DOUBLE, [0])
    (result,) = client.execute(double, [array])
    np.testing.assert_array_equal(client.fetch(result), 2 * FOUR)
    kept = client.put(FOUR, single(4))
    np.testing.assert_array_equal(client.fetch(kept), FOUR)

    killed.kill()
    with pytest.raises(Failed) as raised:
        client.ready(client.execute(double, [client.put(FOUR, single(0))])[0])
    assert raised.value.code == DATA_LOSS
    # A small program is compiled and described all the same, and its runs fail.
    compiled_meanwhile = client.compile(DOUBLE, [0])
    metadata = client.call(
        "loaded_executable_metadata", loaded_executable_handle=compiled_meanwhile
    )
    assert metadata.compiled_memory_stats.output_size_in_bytes == FOUR.nbytes
    (failed,) = client.execute(compiled_meanwhile, [client.put(FOUR, single(0))])
    with pytest.raises(Failed, match=r"virtual slice 0 .* unplaced") as raised:
        client.fetch(failed)
    assert raised.value.code == DATA_LOSS
    with pytest.raises(Failed) as raised:
        client.compile(f"{DOUBLE}//{'large' * (64 << 10)}", [0])
    assert raised.value.code == DATA_LOSS

    assert proxy.slices.place(0, 9, "spare")
    (again,) = client.execute(double, [client.put(FOUR, single(0))])
    serve(proxy, named(0, 1, first, token="a-token"))
    serve(proxy, named(0, 9, third, token="a-token"))
    np.testing.assert_array_equal(client.fetch(again), 2 * FOUR)
    (first_run,) = client.execute(compiled_meanwhile, [again])
    np.testing.assert_array_equal(client.fetch(first_run), 4 * FOUR)
    for gone in (array, result):
        with pytest.raises(Failed) as raised:
            client.fetch(gone)
        assert raised.value.code == DATA_LOSS
    np.testing.assert_array_equal(client.fetch(kept), FOUR)

    # The resource manager takes one: its executor ends, and the other one goes on.
    assert proxy.slices.unplace(1, 2, "it is taken")
    assert other.wait() == 0
    np.testing.assert_array_equal(client.fetch(again), 2 * FOUR)
    assert proxy.engine.placed_executors is not None
    proxy.engine.placed_executors.close()
    assert last.wait() == 0


SQUARE = """
module @square {
  func.func public @main(%x: tensor<1024x1024xf32>) -> tensor<1024x1024xf32> {
    %n = stablehlo.dot_general %x, %x, contracting_dims = [1] x [0]
        : (tensor<1024x1024xf32>, tensor<1024x1024xf32>) -> tensor<1024x1024xf32>
    return %n : tensor<1024x1024xf32>
  }
}
"""


def test_a_program_on_one_slice_is_compared_with_the_same_one_on_another(
    make_proxy: MakeProxy, connect: MakeClient, addresses: list[tuple[str, ServerProcess]]
) -> None:
    (first, _), (second, _), _ = addresses
    proxy = make_proxy(places_executors=True)
    client = connect(proxy.address)
    serve(proxy, named(0, 1, first, token="a-token"))
    serve(proxy, named(1, 2, second, token="a-token"))
    # (A program of some milliseconds: shorter ones are not compared.)
    ones = np.ones((1024, 1024), np.float32)
    runs = [(client.compile(SQUARE, [i]), client.put(ones, single(i))) for i in (0, 4)]
    for _ in range(7):
        for square, argument in runs:
            client.ready(client.execute(square, [argument])[0])
    assert proxy.engine.placed_executors is not None
    times = proxy.engine.placed_executors.times
    # (A run is entered after its results are there.)
    wait_until(lambda: [_calls(one) for one in times.message().executors] == [[6], [6]])
    message = times.message()
    assert [(one.generation, one.host_index) for one in message.executors] == [(1, 0), (2, 0)]
    assert len(message.programs) == 1
    for executor in message.executors:
        [program] = executor.programs
        assert 0 < program.median_s <= program.p90_s
        # So they are one program, though they are compiled for other devices.
        assert program.ratio > 0
        assert executor.ratio == program.ratio
    assert proxy.slices.unplace(1, 2, "it is taken")
    wait_until(lambda: [one.generation for one in times.message().executors] == [1])


def _calls(executor: status_pb.ExecutorTime) -> list[int]:
    return [program.calls for program in executor.programs]


def test_a_program_for_a_slice_without_executors_holds_up_no_other_one(
    make_proxy: MakeProxy, connect: MakeClient, addresses: list[tuple[str, ServerProcess]]
) -> None:
    (first, _), (second, _), (third, _) = addresses
    proxy = make_proxy(places_executors=True)
    client, other, gone = (connect(proxy.address) for _ in range(3))
    early = client.begin_compile(DOUBLE, [0])
    gone.begin_compile(DOUBLE, [0])
    serve(proxy, named(1, 2, second, token="a-token"))
    for session in (client, other):
        double = session.compile(DOUBLE, [4])
        (result,) = session.execute(double, [session.put(FOUR, single(4))])
        np.testing.assert_array_equal(session.fetch(result), 2 * FOUR)
    assert not early.future.done()
    gone.close()
    wait_until(lambda: len(proxy.service.sessions) == 2)
    compiled = proxy.engine.compiler.compiled
    # It also waits for the executors of a placement that comes meanwhile.
    assert proxy.slices.place(0, 9, "spare")
    serve(proxy, named(0, 1, first, token="a-token"))
    serve(proxy, named(0, 9, third, token="a-token"))
    double = early.result().loaded_executable_handle
    (result,) = client.execute(double, [client.put(FOUR, single(0))])
    np.testing.assert_array_equal(client.fetch(result), 2 * FOUR)
    assert proxy.engine.compiler.compiled == compiled + 1


def test_work_of_a_lost_placement_does_not_use_the_next_ones_executors(
    make_proxy: MakeProxy,
    connect: MakeClient,
    addresses: list[tuple[str, ServerProcess]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (first, _), (second, _), _ = addresses
    proxy = make_proxy(places_executors=True)
    client = connect(proxy.address)
    serve(proxy, named(0, 1, first, token="a-token"))
    double = client.compile(DOUBLE, [0])
    argument = client.put(FOUR, single(0))
    np.testing.assert_array_equal(client.fetch(client.execute(double, [argument])[0]), 2 * FOUR)
    devices = proxy.engine.placings.client((0,))
    begun, go_on = threading.Barrier(3), threading.Event()
    ended: queue.SimpleQueue[StatusError | None] = queue.SimpleQueue()

    def delayed(work: Callable[..., Any]) -> Callable[..., Any]:
        def late(*arguments: Any) -> Any:
            begun.wait(DEADLINE_S)
            assert go_on.wait(DEADLINE_S)
            try:
                made = work(*arguments)
            except StatusError as error:
                ended.put(error)
                raise
            ended.put(None)
            return made

        return late

    (session,) = proxy.service.sessions
    (program,) = session.programs.values()
    monkeypatch.setattr(program, "start", None)
    monkeypatch.setattr(program, "run", delayed(program.run))
    with monkeypatch.context() as patch:
        patch.setattr(devices, "put", delayed(devices.put))
        lost = [client.put(FOUR, single(0)), *client.execute(double, [argument])]
        begun.wait(DEADLINE_S)
        assert proxy.slices.unplace(0, 1, "it is taken")
        assert proxy.slices.place(0, 9, "spare")
        serve(proxy, named(0, 9, second, token="a-token"))
        (opening,) = proxy.engine.openings((0,))
        assert opening.wait(DEADLINE_S)
        go_on.set()
        for _ in lost:
            error = ended.get(timeout=DEADLINE_S)
            assert error is not None
            assert error.code is Code.DATA_LOSS
    for array in lost:
        with pytest.raises(Failed) as raised:
            client.fetch(array)
        assert raised.value.code == DATA_LOSS
