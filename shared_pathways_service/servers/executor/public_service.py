"""An executor's calls on grpcio's public API."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from typing import Any

import grpc

from shared_pathways_service.protocol import executors_pb2 as pb
from shared_pathways_service.servers.devices.status_errors import StatusError
from shared_pathways_service.servers.executor.exchange import Offers
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
from shared_pathways_service.servers.serving.send_queue import SendQueue

__all__ = ["public_server"]


def public_server(
    service: ExecutorService, options: Sequence[tuple[str, int]], pool: futures.ThreadPoolExecutor
) -> grpc.Server:
    """Returns a server of an executor, whose calls each have a thread of the pool."""
    calls = _PublicCalls(service)
    _, name, drive = DRIVE.split("/")
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        drive: grpc.stream_stream_rpc_method_handler(calls.drive),
        TAKE.rpartition("/")[2]: grpc.unary_stream_rpc_method_handler(calls.take),
    }
    return grpc.server(
        pool,
        handlers=[grpc.method_handlers_generic_handler(name, handlers)],
        interceptors=[_TakersOnly(service.offers)],
        options=options,
    )


class _PublicCalls:
    def __init__(self, service: ExecutorService) -> None:
        self._service = service

    def drive(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        """Carries out commands until the stream ends."""
        try:
            self._service.begin(_header(context))
        except StatusError as error:
            _abort(context, error)
        try:
            yield from self._serve(requests)
        finally:
            self._service.end()

    def take(self, request: bytes, context: Any) -> Iterator[bytes]:
        """Sends what is offered."""
        try:
            yield from self._service.offered(request, _header(context))
        except StatusError as error:
            _abort(context, error)

    def _serve(self, requests: Iterator[bytes]) -> Iterator[bytes]:
        sending: SendQueue[pb.ExecutorReport] = SendQueue(
            MOST_REPORTS, pb.ExecutorReport.ByteSize, patience_s=PATIENCE_S
        )

        def report(
            report: pb.ExecutorReport, data: Data | None = None, *, may_wait: bool = False
        ) -> None:
            if data is not None:
                sending.put_behind(report.number, data, report)
            elif may_wait:
                sending.put_patiently(report)
            else:
                sending.put(report)

        reader = CommandReader(self._service.make_commands(report))

        def take_all() -> None:
            try:
                for message in requests:
                    reader.take(message)
            except grpc.RpcError:
                pass  # the stream was broken
            except Exception as error:  # noqa: BLE001 - its types are protobuf's, and MemoryError
                self._service.note_unreadable(error)
            finally:
                reader.close()
                sending.end()

        threading.Thread(target=take_all, name="commands", daemon=True).start()
        # (The end of the stream ends this as well.)
        try:
            for message in sending.messages():
                yield serialized(message)
        except Exception as error:
            self._service.note_unsent(error)
            raise


class _TakersOnly(grpc.ServerInterceptor):
    """Refuses a `Take` whose token no offer has, before a thread waits for its request.

    Args:
      offers: What is offered to other executors.
    """

    def __init__(self, offers: Offers) -> None:
        self._offers = offers

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        """Returns the handler of a call."""
        metadata = dict(details.invocation_metadata or ())
        if details.method != TAKE or self._offers.have(metadata.get(HEADER, "")):
            return continuation(details)
        return grpc.stream_stream_rpc_method_handler(_refuse)


def _refuse(_requests: Iterator[Any], context: Any) -> Iterator[Any]:
    context.abort(grpc.StatusCode.PERMISSION_DENIED, "nothing is offered with this token")
    yield


def _abort(context: Any, error: StatusError) -> None:
    code = next(code for code in grpc.StatusCode if code.value[0] == error.code)
    context.abort(code, error.message)


def _header(context: Any) -> str:
    header: str = dict(context.invocation_metadata() or ()).get(HEADER, "")
    return header
