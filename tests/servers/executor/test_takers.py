"""What clients of an executor's server get: threads, and calls."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from harness.processes import DEADLINE_S
from harness.proxy.executors import running_executors
from shared_pathways_service.protocol import executors_pb2 as pb
from shared_pathways_service.protocol.auth import bearer
from shared_pathways_service.servers.executor.exchange import Offers, taken
from shared_pathways_service.servers.executor.executor_server import executor_server
from shared_pathways_service.servers.executor.executor_service import ExecutorService
from shared_pathways_service.servers.serving.call_threads import CallThreads
from shared_pathways_service.testing.attacks.peer import ENDED, HEADERS, RST_STREAM, SETTINGS, Peer

DATA = np.arange(4.0)


@pytest.fixture(params=["core", "public"])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    """An executor's server with one thread, which offers `DATA`."""
    offers = Offers()
    offers.announce(1, "a-token")
    offers.hold(1, [DATA])
    service = ExecutorService(lambda _report: None, offers, None, lambda: None)  # type: ignore[arg-type, return-value]
    pool = CallThreads(1, "call")
    server: Any = executor_server(service, (), pool, request.param)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(*[None] * (request.param == "public"))
    pool.shutdown()


def test_who_has_no_token_holds_no_thread(address: str) -> None:
    is_over = threading.Event()

    def nothing() -> Iterator[bytes]:
        is_over.wait(DEADLINE_S)
        yield from ()

    with grpc.insecure_channel(address) as channel:
        for metadata in ((), bearer("another")):
            take: Any = channel.stream_stream("/shared_pathways_service.v1.Executors/Take")
            call = take(nothing(), metadata=metadata, timeout=DEADLINE_S)
            with pytest.raises(grpc.RpcError) as raised:
                next(call)
            assert raised.value.code() is grpc.StatusCode.PERMISSION_DENIED
        transfer = pb.Transfer(address=address, number=1, token="a-token")
        assert b"".join(taken(transfer, DATA.nbytes)) == DATA.tobytes()
        is_over.set()


def test_a_connection_has_one_call() -> None:
    drive = "/shared_pathways_service.v1.Executors/Drive"
    with running_executors(["--instance_type=tpuv6e:2x2"]) as running:
        (address,) = running.addresses
        with Peer(address) as proxy, Peer(address) as other:
            for peer in (proxy, other):
                peer.greet()
                # Those of the server, and its answer to those of the client.
                assert peer.wait(SETTINGS, times=2, timeout_s=DEADLINE_S)
            proxy.open(drive, bearer(running.token))
            proxy.open(drive, bearer(running.token))
            # Refused before any thread knows of it: there are no headers.
            assert proxy.wait(RST_STREAM, timeout_s=DEADLINE_S)
            assert not proxy.seen[HEADERS]
            # One call after another, each is answered by a status.
            for times in (1, 2):
                other.open(drive)
                assert other.wait(HEADERS, times=times, timeout_s=DEADLINE_S)
                assert other.wait(ENDED, times=times, timeout_s=DEADLINE_S)
            assert not proxy.closed
