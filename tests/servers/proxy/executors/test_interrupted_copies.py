"""Copies between executors that are killed in the middle of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent import futures

import numpy as np
import pytest

from harness.holding_relay import HoldingRelay, holding_relay
from harness.processes import DEADLINE_S, ServerProcess
from harness.proxy.executors import running_executors
from shared_pathways_service.protocol import executors_pb2 as pb
from shared_pathways_service.protocol.ifrt import core_pb2
from shared_pathways_service.servers.devices.status_errors import Code, StatusError
from shared_pathways_service.servers.proxy.execution.values import Spec
from shared_pathways_service.servers.proxy.executors.executors import Executors
from shared_pathways_service.servers.proxy.executors.remote_arrays import RemoteArray
from shared_pathways_service.servers.xla.shardings import Placings

#: More than gRPC and the kernel keep on their way.
DATA = np.arange(8 << 20, dtype=np.float32)
HELD_AFTER = 2 << 20


class Slices:
    """Three slices, each of a device of an executor of its own, whose relay holds transfers."""

    def __init__(
        self, processes: list[ServerProcess], relays: list[HoldingRelay], token: str
    ) -> None:
        self.processes = processes
        self.relays = relays
        self.executors = Executors([relay.address for relay in relays], range(3), token)
        self.lost: list[int] = []
        self.executors.watch(self._lose)
        self._placings = Placings(range(3), make=self.executors.client)
        self._threads = futures.ThreadPoolExecutor(1)

    def put(self, device: int) -> RemoteArray:
        spec = self._spec(device)
        array: RemoteArray = spec.placing.client.put(spec, [DATA])
        return array

    def content(self, device: int, array: RemoteArray) -> np.ndarray:
        piece: np.ndarray
        (piece,) = self._spec(device).placing.client.fetch(array)
        return piece

    def begin_copy(self, array: RemoteArray, device: int) -> futures.Future[RemoteArray]:
        """Begins a copy, and waits until it is held."""
        (source,) = [i for i, link in self.executors._link_of.items() if link is array.links[0]]
        relay = self.relays[source]
        relay.go_on.clear()
        relay.is_held.clear()
        spec = self._spec(device)
        copying = self._threads.submit(
            lambda: spec.placing.client.copy(spec, spec.placing.client.parts(array))
        )
        assert relay.is_held.wait(DEADLINE_S)
        assert not copying.done()
        return copying

    def close(self) -> None:
        for relay in self.relays:
            relay.close()
        self.executors.close()
        self._threads.shutdown()

    def _spec(self, device: int) -> Spec:
        kind, dtype = core_pb2.DTypeProto.KIND_F32, DATA.dtype
        return Spec(kind, dtype, DATA.shape, self._placings.single(device))

    def _lose(self, devices: object, _reason: str) -> None:
        self.lost += list(devices)  # type: ignore[call-overload]


@pytest.fixture
def slices() -> Iterator[Slices]:
    with contextlib.ExitStack() as stack:
        flags = ["--instance_type=tpuv6e1t:1x1"]
        running = stack.enter_context(running_executors(*[flags] * 3))
        relays = [
            stack.enter_context(holding_relay(int(address.rpartition(":")[2]), HELD_AFTER))
            for address in running.addresses
        ]
        slices = Slices(list(running.processes), relays, running.token)
        stack.callback(slices.close)
        yield slices


def data_loss(copying: futures.Future[RemoteArray]) -> StatusError:
    error = copying.exception(DEADLINE_S)
    assert isinstance(error, StatusError)
    assert error.code is Code.DATA_LOSS, error
    return error


def test_executors_that_are_killed_in_the_middle_of_a_copy(slices: Slices) -> None:
    # An array that is deleted meanwhile arrives.
    source = slices.put(0)
    copying = slices.begin_copy(source, 2)
    link = source.links[0]
    for array in (source, *source.parts()):
        link.free("arrays", array.number)
    link.ask(pb.ExecutorCommand(meet=pb.MeetHosts())).result(DEADLINE_S)
    slices.relays[0].go_on.set()
    kept = copying.result(DEADLINE_S)
    np.testing.assert_array_equal(slices.content(2, kept), DATA)

    # The sender is killed, and the receiver notices it before the proxy.
    copying = slices.begin_copy(slices.put(0), 2)
    slices.processes[0].kill()
    relay = slices.relays[0]
    relay.is_asked.clear()
    relay.go_on.set()
    # (Because of the receiver's report, the proxy asks the sender whether it is still there.)
    assert relay.is_asked.wait(DEADLINE_S)
    relay.may_end.set()
    assert "is gone" in data_loss(copying).message
    assert slices.lost == [0]

    # The receiver is killed.
    copying = slices.begin_copy(kept, 1)
    slices.relays[1].may_end.set()
    slices.processes[1].kill()
    data_loss(copying)
    assert slices.lost == [0, 1]
    slices.relays[2].go_on.set()

    # All others are as before.
    np.testing.assert_array_equal(slices.content(2, kept), DATA)
