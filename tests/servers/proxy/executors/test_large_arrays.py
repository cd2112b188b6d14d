"""Large arrays are in chunks, which commands pass."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent import futures

import numpy as np
import pytest

from harness.processes import DEADLINE_S
from harness.proxy.executors import running_executors
from shared_pathways_service.protocol import executors_pb2 as pb
from shared_pathways_service.protocol.ifrt import core_pb2
from shared_pathways_service.servers.devices.interface import DeviceClient
from shared_pathways_service.servers.proxy.execution.values import Spec
from shared_pathways_service.servers.proxy.executors.executors import Executors
from shared_pathways_service.servers.xla.shardings import Placings
from tests.servers.proxy.executors.recording_executor import RecordingExecutor, recording_executor

MIB = 1 << 20
#: More than gRPC and the kernel keep on their way.
LARGE = np.arange(16 * MIB, dtype=np.float32)


@pytest.fixture
def recording() -> Iterator[RecordingExecutor]:
    with recording_executor() as executor:
        yield executor


def spec_of(executors: Executors, data: np.ndarray) -> Spec:
    placings = Placings([0], make=executors.client)
    return Spec(core_pb2.DTypeProto.KIND_F32, data.dtype, data.shape, placings.single(0))


def test_hosts_meet_while_an_array_is_sent(
    recording: RecordingExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        assert go_on.wait(DEADLINE_S)

    monkeypatch.setattr(recording, "wait_in_transfer", wait)
    executors = Executors([recording.address], [0], None)
    spec = spec_of(executors, LARGE)
    with futures.ThreadPoolExecutor(1) as threads:
        putting = threads.submit(spec.placing.client.put, spec, [LARGE])
        assert begun.wait(DEADLINE_S)
        met = executors.link_of[0].ask(pb.ExecutorCommand(meet=pb.MeetHosts()))
        go_on.set()
        met.result(DEADLINE_S)
        put = recording.next_transfer()
        recording.answer(put)
        putting.result(DEADLINE_S)
    assert list(put.put.sizes) == [LARGE.nbytes]
    assert recording.chunks == {put.number: LARGE.nbytes // MIB}
    assert recording.met_after[0] < LARGE.nbytes // MIB
    executors.close()


def reply(client: DeviceClient, spec: Spec, data: np.ndarray) -> np.ndarray:
    piece: np.ndarray
    (piece,) = client.fetch(client.put(spec, [data]))
    return piece


def test_arrays_of_all_sizes_return_as_they_were() -> None:
    with running_executors(["--instance_type=tpuv6e:1x1"]) as running:
        executors = Executors(running.addresses, [0], running.token)
        items = MIB // LARGE.itemsize
        for size in (0, 1, items // 16, items // 16 + 1, items, items + 1, 5 * items - 1):
            data = LARGE[:size]
            spec = spec_of(executors, data)
            np.testing.assert_array_equal(reply(spec.placing.client, spec, data), data)
            backwards = data[::-1]
            np.testing.assert_array_equal(reply(spec.placing.client, spec, backwards), backwards)
        executors.close()
