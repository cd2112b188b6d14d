"""What a proxy gets from an executor's server, on grpcio's core and on its public API."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import grpc
import pytest

from harness.processes import DEADLINE_S
from shared_pathways_service.constants import LOOPBACK
from shared_pathways_service.protocol import executors_pb2 as pb
from shared_pathways_service.protocol.auth import bearer
from shared_pathways_service.protocol.chunks import Chunk, parsed_chunk, serialized_chunk
from shared_pathways_service.servers.executor.exchange import Offers
from shared_pathways_service.servers.executor.executor_commands import Report
from shared_pathways_service.servers.executor.executor_server import executor_server
from shared_pathways_service.servers.executor.executor_service import DRIVE, ExecutorService
from shared_pathways_service.servers.serving.call_threads import CallThreads

TOKEN = "a-token"
#: The client whose reports cannot be sent.
BAD = 9
HALF = bytes(range(256)) * 512


class Echo:
    """Commands that are reported at once, with their bytes, on the thread that reads them."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self.closed = threading.Event()

    def take(self, command: pb.ExecutorCommand, data: Sequence[memoryview] = ()) -> None:
        report: Any = pb.ExecutorReport(number=command.number)
        if command.client == BAD:
            report = "not a report"
        self.report(report, iter(data) if data else None, may_wait=command.client == 1)

    def close(self) -> None:
        self.closed.set()


class Server:
    def __init__(self, kind: str) -> None:
        self.ended = threading.Event()
        self.echoes: list[Echo] = []
        self.service = ExecutorService(self._made, Offers(), TOKEN, self.ended.set)  # type: ignore[arg-type]
        self._pool = CallThreads(3, "call")
        self._server: Any = executor_server(self.service, (), self._pool, kind)
        self.address = f"{LOOPBACK}:{self._server.add_insecure_port(f'{LOOPBACK}:0')}"
        self._server.start()
        self._arguments = [None] * (kind == "public")

    def close(self) -> None:
        self._server.stop(*self._arguments)
        self._pool.shutdown()

    def _made(self, report: Report) -> Echo:
        self.echoes.append(Echo(report))
        return self.echoes[-1]


class Proxy:
    """A proxy's stream; it sends messages, and receives until there are so many reports."""

    def __init__(self, address: str, token: str = TOKEN) -> None:
        self._sending: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._channel = grpc.insecure_channel(address)
        drive: Any = self._channel.stream_stream(DRIVE)
        self.call: Any = drive(
            iter(self._sending.get, None), metadata=bearer(token), timeout=DEADLINE_S
        )

    def send(self, message: bytes) -> None:
        self._sending.put(message)

    def commands(self, *numbers: int, client: int = 0) -> None:
        made = [pb.ExecutorCommand(number=number, client=client) for number in numbers]
        self.send(pb.ExecutorCommands(commands=made).SerializeToString())

    def received(self, count: int) -> list[int | Chunk]:
        found: list[int | Chunk] = []
        while sum(isinstance(item, int) for item in found) < count:
            message = next(self.call)
            chunk = parsed_chunk(message)
            if chunk is None:
                found += [r.number for r in pb.ExecutorReports.FromString(message).reports]
            else:
                found.append(chunk)
        return found

    def close(self) -> None:
        self._sending.put(None)
        self.call.cancel()
        self._channel.close()


@pytest.fixture(params=["core", "public"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    server = Server(request.param)
    yield server
    server.close()


def test_reports_come_in_the_order_of_the_commands(server: Server) -> None:
    with contextlib.closing(Proxy(server.address)) as proxy:
        proxy.commands(*range(1, 400))
        proxy.commands(400)
        # (Those that may wait are sent all the same.)
        proxy.commands(401, 402, client=1)
        assert proxy.received(402) == [*range(1, 403)]
    assert server.ended.wait(DEADLINE_S)
    assert server.echoes[0].closed.wait(DEADLINE_S)
    assert server.service.exit_code == 0


def test_reports_of_other_threads_are_sent(server: Server) -> None:
    with contextlib.closing(Proxy(server.address)) as proxy:
        proxy.commands(1)
        assert proxy.received(1) == [1]
        (echo,) = server.echoes
        threads = [
            threading.Thread(target=echo.report, args=(pb.ExecutorReport(number=n),))
            for n in range(2, 40)
        ]
        for thread in threads:
            thread.start()
        assert sorted(proxy.received(38)) == [*range(2, 40)]
        for thread in threads:
            thread.join()


def test_bytes_come_before_what_they_belong_to(server: Server) -> None:
    with contextlib.closing(Proxy(server.address)) as proxy:
        for _ in range(2):
            proxy.send(serialized_chunk(Chunk(7, memoryview(HALF))))
        proxy.commands(7)
        *chunks, number = proxy.received(1)
        assert number == 7
        assert [(c.bytes_of, bytes(c.data)) for c in chunks if isinstance(c, Chunk)] == [
            (7, HALF),
            (7, HALF),
        ]


def test_one_proxy_is_served_with_its_token(server: Server) -> None:
    def code(proxy: Proxy) -> grpc.StatusCode:
        with contextlib.closing(proxy), pytest.raises(grpc.RpcError) as raised:
            next(proxy.call)
        found: grpc.StatusCode = raised.value.code()
        return found

    assert code(Proxy(server.address, "another")) is grpc.StatusCode.UNAUTHENTICATED
    assert not server.echoes
    with contextlib.closing(Proxy(server.address)) as proxy:
        proxy.commands(1)
        assert proxy.received(1) == [1]
        assert code(Proxy(server.address)) is grpc.StatusCode.ALREADY_EXISTS
        proxy.commands(2)
        assert proxy.received(1) == [2]
        assert not server.ended.is_set()


def test_a_command_that_cannot_be_read_ends_the_executor(server: Server) -> None:
    with contextlib.closing(Proxy(server.address)) as proxy:
        proxy.send(b"\xff\xff")
        assert server.ended.wait(DEADLINE_S)
    assert server.echoes[0].closed.wait(DEADLINE_S)
    assert server.service.exit_code == 1


def test_a_report_that_cannot_be_sent_ends_the_executor_with_an_error(server: Server) -> None:
    with contextlib.closing(Proxy(server.address)) as proxy:
        proxy.commands(1)
        assert proxy.received(1) == [1]
        proxy.commands(2, client=BAD)
        assert server.ended.wait(DEADLINE_S)
    assert server.service.exit_code == 1
