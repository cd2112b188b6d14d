"""Who gets a thread of an executor's server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
import pytest

from harness.processes import DEADLINE_S
from shared_pathways_service.protocol import executors_pb2 as pb
from shared_pathways_service.protocol.auth import bearer
from shared_pathways_service.servers.executor.exchange import Offers, taken
from shared_pathways_service.servers.executor.executor_service import ExecutorService, TakersOnly

DATA = np.arange(4.0)


@pytest.fixture
def address() -> Iterator[str]:
    """An executor's server with one thread, which offers `DATA`."""
    offers = Offers()
    offers.announce(1, "a-token")
    offers.hold(1, [DATA])
    with ThreadPoolExecutor(1) as threads:
        server = grpc.server(threads, interceptors=[TakersOnly(offers)])
        service = ExecutorService(lambda _report: None, offers, None, lambda: None)  # type: ignore[arg-type, return-value]
        service.add_to(server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield f"127.0.0.1:{port}"
        server.stop(None).wait(DEADLINE_S)


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
