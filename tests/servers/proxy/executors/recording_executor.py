"""An executor in this process that records its commands, and answers transfers when asked to."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import grpc

from harness.processes import DEADLINE_S
from shared_pathways_service.protocol import executors_pb2 as pb
from shared_pathways_service.protocol import executors_pb2_grpc

__all__ = ["RecordingExecutor", "recording_executor"]


class RecordingExecutor(executors_pb2_grpc.ExecutorsServicer):
    """Answers all commands at once but puts and fetches, which it records."""

    def __init__(self) -> None:
        self.address = ""
        #: The number of messages of bytes of each command.
        self.chunks: Counter[int] = Counter()
        #: The number of all these messages before each meeting.
        self.met_after: list[int] = []
        self.transfers: queue.SimpleQueue[pb.ExecutorCommand] = queue.SimpleQueue()
        self._reports: queue.SimpleQueue[pb.ExecutorReport | None] = queue.SimpleQueue()

    def next_transfer(self) -> pb.ExecutorCommand:
        return self.transfers.get(timeout=DEADLINE_S)

    def answer(self, command: pb.ExecutorCommand, *pieces: bytes) -> None:
        self._reports.put(pb.ExecutorReport(number=command.number, pieces=pieces))

    def wait_in_transfer(self) -> None:
        """Is called after each message of bytes; tests replace it."""

    def end(self) -> None:
        """Ends the stream."""
        self._reports.put(None)

    def Drive(  # noqa: N802 - the protocol's name
        self, request_iterator: Iterator[pb.ExecutorCommands], _context: Any
    ) -> Iterator[pb.ExecutorReports]:
        threading.Thread(target=self._take, args=(request_iterator,), daemon=True).start()
        for report in iter(self._reports.get, None):
            yield pb.ExecutorReports(reports=[report])

    def Take(  # noqa: N802 - the protocol's name
        self, _request: pb.TakeOffered, _context: Any
    ) -> Iterator[pb.OfferedBytes]:
        """Offers nothing."""
        yield from ()

    def _take(self, requests: Iterator[pb.ExecutorCommands]) -> None:
        with contextlib.suppress(grpc.RpcError):
            for message in requests:
                if message.bytes_of:
                    self.chunks[message.bytes_of] += 1
                    self.wait_in_transfer()
                for command in message.commands:
                    if command.WhichOneof("command") in {"put", "fetch"}:
                        self.transfers.put(command)
                        continue
                    if command.HasField("meet"):
                        self.met_after.append(self.chunks.total())
                    if command.number:
                        self.answer(command)


@contextlib.contextmanager
def recording_executor() -> Iterator[RecordingExecutor]:
    """Serves one proxy."""
    executor = RecordingExecutor()
    with futures.ThreadPoolExecutor(4) as threads:
        server = grpc.server(threads)
        executors_pb2_grpc.add_ExecutorsServicer_to_server(executor, server)
        executor.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        yield executor
        executor.end()
        assert server.stop(None).wait(DEADLINE_S)
