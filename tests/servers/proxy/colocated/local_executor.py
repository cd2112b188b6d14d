"""An executor in this process: it calls real functions, and its engine computes nothing."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Iterator
from concurrent import futures
from threading import Thread
from typing import Any

import grpc

from harness.processes import DEADLINE_S
from harness.proxy.null_engine import NullEngine
from shared_pathways_service.protocol import executors_pb2 as pb
from shared_pathways_service.protocol import executors_pb2_grpc
from shared_pathways_service.servers.executor.exchange import Offers
from shared_pathways_service.servers.executor.executor_commands import Commands
from shared_pathways_service.servers.executor.python_calls import PythonCalls

__all__ = ["LocalExecutor", "local_executor"]


class LocalExecutor(executors_pb2_grpc.ExecutorsServicer):
    """Carries out the commands of one proxy, except those with bytes of large arrays."""

    def __init__(self) -> None:
        self.address = ""
        self.python = PythonCalls(is_allowed=True)
        self._reports: queue.SimpleQueue[pb.ExecutorReport | None] = queue.SimpleQueue()
        self._commands = Commands(
            NullEngine(), self._report, Offers(), "the executor of host 0", self.python
        )

    def numbers(self, kind: str) -> list[int]:
        """Returns the numbers of the clients, arrays or programs that it holds."""
        return [number for held, number in list(self._commands._held) if held == kind]

    def Drive(  # noqa: N802 - the protocol's name
        self, request_iterator: Iterator[pb.ExecutorCommands], _context: Any
    ) -> Iterator[pb.ExecutorReports]:
        thread = Thread(target=self._take, args=(request_iterator,))
        thread.start()
        try:
            for report in iter(self._reports.get, None):
                yield pb.ExecutorReports(reports=[report])
        finally:
            thread.join(DEADLINE_S)

    def Take(  # noqa: N802 - the protocol's name
        self, _request: pb.TakeOffered, _context: Any
    ) -> Iterator[pb.OfferedBytes]:
        """Offers nothing."""
        yield from ()

    def _report(
        self, report: pb.ExecutorReport, data: Any = None, *, may_wait: bool = False
    ) -> None:
        assert data is None
        del may_wait
        self._reports.put(report)

    def _take(self, requests: Iterator[pb.ExecutorCommands]) -> None:
        with contextlib.suppress(grpc.RpcError):
            for message in requests:
                for command in message.commands:
                    self._commands.take(command)
        self._commands.close()
        self._reports.put(None)


@contextlib.contextmanager
def local_executor() -> Iterator[LocalExecutor]:
    """Serves one proxy, which must end before it."""
    executor = LocalExecutor()
    # (The proxy's pings come every five seconds.)
    options = (("grpc.http2.min_ping_interval_without_data_ms", 1000),)
    with futures.ThreadPoolExecutor(4) as threads:
        server = grpc.server(threads, options=options)
        executors_pb2_grpc.add_ExecutorsServicer_to_server(executor, server)
        executor.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        yield executor
        assert server.stop(None).wait(DEADLINE_S)
