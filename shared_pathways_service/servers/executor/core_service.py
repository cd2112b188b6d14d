"""An executor's calls on grpcio's private core.

One thread reads commands; reports are sent on the thread that has them. With grpcio's public API
each message passes two other threads, which was a third of an executor's time for a small program.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from concurrent import futures

from shared_pathways_service.patience import timeouts
from shared_pathways_service.protocol import executors_pb2 as pb
from shared_pathways_service.servers.devices.status_errors import Code, StatusError
from shared_pathways_service.servers.executor.executor_commands import Data
from shared_pathways_service.servers.executor.executor_service import (
    DRIVE,
    HEADER,
    MOST_REPORTS,
    PATIENCE_S,
    TAKE,
    CommandReader,
    ExecutorService,
    serialized,
)
from shared_pathways_service.servers.grpc_core.core_call import (
    RECEIVED,
    SENT,
    CoreCall,
    message_of,
)
from shared_pathways_service.servers.grpc_core.core_server import CoreServer, Route
from shared_pathways_service.servers.grpc_core.core_writer import CoreWriter
from shared_pathways_service.servers.serving.flushing import Flusher
from shared_pathways_service.servers.serving.send_queue import SendQueue

__all__ = ["core_server"]


def core_server(
    service: ExecutorService, options: Sequence[tuple[str, int]], pool: futures.Executor
) -> CoreServer:
    """Returns a server of an executor, whose calls each have a thread of the pool."""
    routes = {
        DRIVE: Route(pool, lambda call: _drive(service, call)),
        TAKE: Route(pool, lambda call: _take(service, call)),
    }
    return CoreServer(options, routes, pool, slow_reader_s=timeouts.EXECUTOR_LAST_READ.s)


def _drive(service: ExecutorService, call: CoreCall) -> None:
    """Carries out commands until the stream ends."""
    service.begin(call.metadata.get(HEADER, ""))
    try:
        reports = _Reports(call, service)
        reader = CommandReader(service.make_commands(reports))
        try:
            _serve(service, call, reader, reports)
        finally:
            reader.close()
            reports.close()
    finally:
        service.end()


def _serve(
    service: ExecutorService, call: CoreCall, reader: CommandReader, reports: _Reports
) -> None:
    call.receive_soon()
    while True:
        event = call.next_event()
        if event.tag is SENT:
            reports.sent()
        elif event.tag is RECEIVED:
            message = message_of(event)
            if message is None:
                return
            # (The next one arrives while this one is read.)
            call.receive_soon()
            with reports.together():
                try:
                    reader.take(message)
                except Exception as error:  # noqa: BLE001 - protobuf's types, and MemoryError
                    service.note_unreadable(error)
                    return
            # Keep nothing of it while waiting for the next.
            del message
        del event


def _take(service: ExecutorService, call: CoreCall) -> None:
    """Sends what is offered; no thread waits for the request of one without a token."""
    header = call.metadata.get(HEADER, "")
    if not service.offers.have(header):
        raise StatusError(Code.PERMISSION_DENIED, "nothing is offered with this token")
    request = call.receive()
    if request is not None:
        for message in service.offered(request, header):
            call.send(message)


class _Reports:
    """A `Report` that sends on the thread which has one, if none is being sent."""

    def __init__(self, call: CoreCall, service: ExecutorService) -> None:
        self._call = call
        self._service = service
        self._queue: SendQueue[pb.ExecutorReport] = SendQueue(
            MOST_REPORTS, pb.ExecutorReport.ByteSize
        )
        self._writer = CoreWriter(self._next_message, self._send, self._end)
        self._flusher = Flusher(PATIENCE_S)
        self._is_flush_due = False
        # The thread that sends its reports together, later.
        self._gathers = 0

    def __call__(
        self, report: pb.ExecutorReport, data: Data | None = None, *, may_wait: bool = False
    ) -> None:
        """Sends a report, behind its bytes, or if it may wait with the next one."""
        if data is not None:
            self._queue.put_behind(report.number, data, report)
            self._writer.wake()
            return
        self._queue.put(report)
        if self._gathers == threading.get_ident():
            return
        if not may_wait:
            self._writer.wake()
        elif not self._is_flush_due:
            self._is_flush_due = True
            self._flusher.flush_soon(self)

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Sends the reports of this thread with the last one; for one thread."""
        self._gathers = threading.get_ident()
        try:
            yield
        finally:
            self._gathers = 0
            self._writer.wake()

    def flush(self) -> None:
        """Sends what has waited."""
        self._is_flush_due = False
        self._writer.wake()

    def sent(self) -> None:
        """Sends the next message, as one is written."""
        self._writer.sent()

    def close(self) -> None:
        """Sends nothing any more."""
        self._queue.close()
        self._flusher.close()

    def _next_message(self) -> bytes | None:
        message = self._queue.next_message()
        return None if message is None else serialized(message)

    def _send(self, message: bytes) -> None:
        self._call.send_soon(message, more_follows=False)

    def _end(self, error: BaseException) -> None:
        self._service.note_unsent(error)
        self._call.cancel()
