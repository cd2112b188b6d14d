"""What is not used any more is freed at once: an idle proxy collects no garbage."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from harness.deadlines import wait_until
from harness.proxy.programs import DOUBLE, sharded_double
from harness.proxy.raw import RawClient, replicated, spec, split
from shared_pathways_service.protocol.ifrt import core_pb2
from shared_pathways_service.servers.devices.status_errors import Code, StatusError
from shared_pathways_service.servers.proxy.execution.operations import Operation
from shared_pathways_service.servers.proxy.execution.virtual_slices import Work
from tests.servers.proxy.conftest import LocalProxy, MakeClient, MakeProxy

BUFFER = 5000
EIGHT = np.arange(8, dtype=np.float32)


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def disassemble(client: RawClient, array: int) -> list[int]:
    kind = "disassemble_into_single_device_arrays"
    return list(client.call(kind, array_handle=array).array_handles)


def take_one_shard(client: RawClient, array: int) -> list[int]:
    answer = client.call("fully_replicated_shard", array_handle=array)
    return [answer.array_handle]


def assemble(client: RawClient, array: int) -> list[int]:
    parts = disassemble(client, array)
    made = client.call(
        "assemble_array_from_single_device_arrays",
        shape={"dims": [8]},
        sharding=replicated(range(4)),
        single_device_array_handles=parts,
    )
    return [*parts, made.array_handle]


def copy(client: RawClient, array: int) -> list[int]:
    ids = [4, 5, 6, 7]
    return list(client.call("copy_arrays", array_handles=[array], device_ids=ids).array_handles)


def reshard(client: RawClient, array: int) -> list[int]:
    target = spec([8], split(range(8)))
    answer = client.call("reshard_arrays", array_handles=[array], array_specs=[target])
    return list(answer.array_handles)


def bitcast(client: RawClient, array: int) -> list[int]:
    target = spec([2, 4], replicated(range(4)))
    answer = client.call("bitcast_arrays", array_handles=[array], array_specs=[target])
    return list(answer.array_handles)


def remap(client: RawClient, array: int) -> list[int]:
    whole = spec([8], replicated(range(4)))
    plan = core_pb2.RemapPlanProto(input_specs=[whole], output_specs=[whole])
    plan.mappings.add(
        from_start=[0], from_end=[4], from_step=[1], to_start=[0], to_end=[4], to_step=[1]
    )
    return list(client.call("remap_arrays", plan=plan, array_handles=[array]).array_handles)


def run(client: RawClient, array: int) -> list[int]:
    parts = disassemble(client, array)
    return [*parts, *client.execute(client.compile(DOUBLE.replace("4x", "8x"), [0]), parts[:1])]


def fetch(client: RawClient, array: int) -> list[int]:
    client.begin_fetch(array)
    return []


@pytest.mark.parametrize(
    "read", [disassemble, take_one_shard, assemble, copy, reshard, bitcast, remap, run, fetch]
)
def test_arrays_that_were_read_before_they_were_there(
    make_proxy: MakeProxy, connect: MakeClient, read: Callable[[RawClient, int], list[int]]
) -> None:
    proxy = make_proxy(memory_limit=1 << 20)
    client = connect(proxy.address)
    array = client.new_handle()
    client.make(array, BUFFER, [8], replicated(range(4)))
    made = [array, *read(client, array)]
    # Once more, so that the list of readers is not only made anew.
    made += read(client, array)
    client.store(BUFFER, EIGHT.tobytes())
    client.ready(*made)
    client.call("destruct_array", array_handle=made)
    held = proxy.engine.memory.held
    # (What is charged for an array's memory is freed with the array.)
    wait_until("no memory", lambda: not any(held(device) for device in range(8)))


def test_results_that_were_read_before_they_were_there(
    make_proxy: MakeProxy, connect: MakeClient
) -> None:
    proxy = make_proxy(memory_limit=1 << 20)
    client = connect(proxy.address)
    program = client.compile(sharded_double(8), range(8))
    array = client.new_handle()
    client.make(array, BUFFER, [8], split(range(8)))
    (result,) = client.execute(program, [array])
    parts = disassemble(client, result)
    client.store(BUFFER, EIGHT.tobytes())
    client.ready(*parts)
    client.call("destruct_array", array_handle=[array, result, *parts])
    held = proxy.engine.memory.held
    wait_until("no memory", lambda: not any(held(device) for device in range(8)))


@pytest.mark.parametrize("transport", ["core", "public"])
def test_a_session_that_ended_with_an_error(proxy: LocalProxy, connect: MakeClient) -> None:
    client = connect(proxy.address)
    (session,) = proxy.service.sessions
    ended = weakref.ref(session)
    del session
    client.send_raw(b"\xff")
    wait_until("the end of the session", lambda: not proxy.service.sessions)
    wait_until("nothing of the session", lambda: ended() is None)


class _LosesItsFirst(dict[Work, None]):
    """Operations of an epoch that is lost as soon as one begins."""

    def __setitem__(self, work: Work, value: None) -> None:
        super().__setitem__(work, value)
        work.abandon(StatusError(Code.DATA_LOSS, "lost"))


def test_an_operation_that_a_loss_ends_while_it_starts(proxy: LocalProxy) -> None:
    first, second = proxy.slices.current()
    first.operations = _LosesItsFirst()
    operation = Operation(
        "nothing", lambda: (), inputs=(), outputs=(), epochs=(first, second), session_id=1
    )
    operation.start()
    assert (operation.done, first.operations, second.operations) == (True, {}, {})
