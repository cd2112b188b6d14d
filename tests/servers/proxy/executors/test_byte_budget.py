"""The bytes under way to and from an executor are bounded, and commands do not wait for them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from concurrent import futures

import numpy as np
import pytest

from harness.processes import DEADLINE_S
from shared_pathways_service.protocol import executors_pb2 as pb
from shared_pathways_service.protocol.ifrt import core_pb2
from shared_pathways_service.servers.devices.status_errors import Code, StatusError
from shared_pathways_service.servers.proxy.execution.values import Spec
from shared_pathways_service.servers.proxy.executors import byte_budget
from shared_pathways_service.servers.proxy.executors.byte_budget import ByteBudget
from shared_pathways_service.servers.proxy.executors.executor_client import ExecutorClient
from shared_pathways_service.servers.proxy.executors.executor_link import ExecutorLink
from shared_pathways_service.servers.proxy.executors.executors import Executors
from shared_pathways_service.servers.proxy.executors.remote_arrays import RemoteArray
from shared_pathways_service.servers.xla.shardings import Placings
from tests.servers.proxy.conftest import wait_until
from tests.servers.proxy.executors.recording_executor import RecordingExecutor, recording_executor

DATA = np.arange(4, dtype=np.float32)
LOST = StatusError(Code.DATA_LOSS, "the executor is gone")


@pytest.fixture(autouse=True)
def one_array_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(byte_budget, "_MOST_BYTES", DATA.nbytes + 1)


@pytest.fixture
def threads() -> Iterator[futures.ThreadPoolExecutor]:
    with futures.ThreadPoolExecutor(4) as made:
        yield made


def test_waits_have_turns_and_a_large_one_is_alone(threads: futures.ThreadPoolExecutor) -> None:
    budget = ByteBudget()
    budget.take(1)
    # More than the limit: alone.
    large = threads.submit(budget.take, 100)
    wait_until(lambda: budget.waiting == 1)
    # It would have room, but comes later.
    small = threads.submit(budget.take, 1)
    wait_until(lambda: budget.waiting == 2)
    assert not small.done()
    budget.give_back(1)
    large.result(DEADLINE_S)
    assert not small.done()
    budget.give_back(100)
    small.result(DEADLINE_S)


def test_a_loss_ends_all_waits(threads: futures.ThreadPoolExecutor) -> None:
    budget = ByteBudget()
    budget.take(100)
    waiting = [threads.submit(budget.take, 1) for _ in range(3)]
    wait_until(lambda: budget.waiting == 3)
    budget.end(LOST)
    for each in waiting:
        with pytest.raises(StatusError, match="gone"):
            each.result(DEADLINE_S)
    with pytest.raises(StatusError, match="gone"):
        budget.take(1)
    assert budget.waiting == 0


# ---- with an executor


class Device:
    """One device, of an executor that records its commands."""

    def __init__(self, executor: RecordingExecutor) -> None:
        self.executor = executor
        self.executors = Executors([executor.address], [0], None)
        placings = Placings([0], make=self.executors.client)
        self.spec = Spec(core_pb2.DTypeProto.KIND_F32, DATA.dtype, DATA.shape, placings.single(0))
        client = self.spec.placing.client
        assert isinstance(client, ExecutorClient)
        self.client = client

    @property
    def link(self) -> ExecutorLink:
        return self.executors.link_of[0]

    def put(self) -> RemoteArray:
        return self.client.put(self.spec, [DATA])

    def check_that_commands_pass(self) -> None:
        self.link.ask(pb.ExecutorCommand(meet=pb.MeetHosts())).result(DEADLINE_S)
        assert self.executor.transfers.empty()


@pytest.fixture
def device() -> Iterator[Device]:
    with recording_executor() as executor:
        made = Device(executor)
        yield made
        made.executors.close()


def test_an_upload_waits_for_bytes_that_are_under_way(
    device: Device, threads: futures.ThreadPoolExecutor
) -> None:
    uploads = [threads.submit(device.put) for _ in range(3)]
    for waiting in (2, 1, 0):
        put = device.executor.next_transfer()
        wait_until(lambda waiting=waiting: device.link.uploads.waiting == waiting)  # type: ignore[misc]
        device.check_that_commands_pass()
        device.executor.answer(put)
    assert len({upload.result(DEADLINE_S).number for upload in uploads}) == 3


def test_a_fetch_waits_until_what_was_fetched_is_used(
    device: Device, threads: futures.ThreadPoolExecutor
) -> None:
    putting = threads.submit(device.put)
    device.executor.answer(device.executor.next_transfer())
    array = putting.result(DEADLINE_S)
    reading = device.client.reading(array)
    entered = threads.submit(reading.__enter__)
    device.executor.answer(device.executor.next_transfer(), DATA.tobytes())
    (piece,) = entered.result(DEADLINE_S)
    np.testing.assert_array_equal(piece, DATA)
    other = threads.submit(device.client.fetch, array)
    wait_until(lambda: device.link.fetches.waiting == 1)
    device.check_that_commands_pass()
    reading.__exit__(None, None, None)
    device.executor.answer(device.executor.next_transfer(), DATA.tobytes())
    np.testing.assert_array_equal(other.result(DEADLINE_S)[0], DATA)


def test_a_lost_executor_ends_transfers_that_wait(
    device: Device, threads: futures.ThreadPoolExecutor
) -> None:
    uploads = [threads.submit(device.put) for _ in range(2)]
    device.executor.next_transfer()
    wait_until(lambda: device.link.uploads.waiting == 1)
    device.executor.end()
    for upload in uploads:
        with pytest.raises(StatusError) as raised:
            upload.result(DEADLINE_S)
        assert raised.value.code is Code.DATA_LOSS


def test_a_lost_executor_keeps_nothing_of_what_is_freed(
    device: Device, threads: futures.ThreadPoolExecutor
) -> None:
    putting = threads.submit(device.put)
    device.executor.answer(device.executor.next_transfer())
    array = putting.result(DEADLINE_S)
    device.executor.end()
    wait_until(lambda: device.link.lost is not None)
    del array, putting
    gc.collect()
    # (Only the mark of its end, unless the stream has taken that.)
    assert device.link._sending._items.qsize() <= 1
    device.link.free("arrays", 1)
    assert device.link._sending._items.qsize() <= 1
