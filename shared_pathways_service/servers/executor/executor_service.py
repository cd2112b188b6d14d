"""The stream of an executor's proxy, and those of other executors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from shared_pathways_service.protocol import executors_pb2 as pb
from shared_pathways_service.protocol.auth import shows
from shared_pathways_service.protocol.chunks import Chunk, parsed_chunk, serialized_chunk
from shared_pathways_service.runtime.glog import glog
from shared_pathways_service.servers.devices.status_errors import StatusError
from shared_pathways_service.servers.executor.exchange import Offers
from shared_pathways_service.servers.executor.executor_commands import Commands, Data, Report
from shared_pathways_service.servers.serving.send_queue import SendQueue

__all__ = ["ExecutorService", "TakersOnly"]

_SERVICE = "shared_pathways_service.v1.Executors"
_HEADER = "authorization"
#: The most reports in one message.
_MOST = 256
#: Seconds for which the report of a program waits for those of the next ones.
_PATIENCE_S = 0.001

MakeCommands = Callable[[Report], Commands]


class ExecutorService:
    """Serves one proxy, and then no other; and executors that take what it has it offer.

    Args:
      make_commands: Makes the commands of a proxy, from what gets their reports.
      offers: What is offered to other executors.
      token: The token of the proxy; None: none is required.
      on_end: Called when the stream has ended.

    Attributes:
      exit_code: The exit code of the process: not 0 if a command could not be read.
    """

    def __init__(
        self,
        make_commands: MakeCommands,
        offers: Offers,
        token: str | None,
        on_end: Callable[[], None],
    ) -> None:
        self._make_commands = make_commands
        self._offers = offers
        self._token = token
        self._on_end = on_end
        self._lock = threading.Lock()
        self._is_driven = False
        self.exit_code = 0

    def add_to(self, server: grpc.Server) -> None:
        """Adds the service to a server; chunks of arrays are not copied by protobuf."""
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Drive": grpc.stream_stream_rpc_method_handler(
                self.Drive, request_deserializer=_parsed, response_serializer=_serialized
            ),
            "Take": grpc.unary_stream_rpc_method_handler(
                self.Take,
                request_deserializer=pb.TakeOffered.FromString,
                response_serializer=pb.OfferedBytes.SerializeToString,
            ),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))

    def Drive(  # noqa: N802 - the protocol's name
        self, request_iterator: Iterator[pb.ExecutorCommands | Chunk], context: Any
    ) -> Iterator[pb.ExecutorReports | Chunk]:
        """Carries out commands until the stream ends."""
        if not shows(_header(context), self._token):
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "the token is not this executor's")
        with self._lock:
            is_second, self._is_driven = self._is_driven, True
        if is_second:
            context.abort(grpc.StatusCode.ALREADY_EXISTS, "this executor has its proxy")
        glog("I", "The proxy has connected")
        try:
            yield from self._serve(request_iterator)
        finally:
            glog("I", "The proxy's stream has ended")
            self._on_end()

    def Take(  # noqa: N802 - the protocol's name
        self, request: pb.TakeOffered, context: Any
    ) -> Iterator[pb.OfferedBytes]:
        """Sends what is offered; the token is that of the transfer."""
        try:
            for data in self._offers.take(request.transfer, _header(context)):
                yield pb.OfferedBytes(data=data)
        except StatusError as error:
            code = next(code for code in grpc.StatusCode if code.value[0] == error.code)
            context.abort(code, error.message)

    def _serve(
        self, requests: Iterator[pb.ExecutorCommands | Chunk]
    ) -> Iterator[pb.ExecutorReports | Chunk]:
        sending: SendQueue[pb.ExecutorReport] = SendQueue(
            _MOST, pb.ExecutorReport.ByteSize, patience_s=_PATIENCE_S
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

        commands = self._make_commands(report)

        def take_all() -> None:
            try:
                _take_all(requests, commands)
            except grpc.RpcError:
                pass  # the stream was broken
            except Exception as error:  # noqa: BLE001 - its types are protobuf's, and MemoryError
                glog("E", f"A command of the proxy cannot be read: {error!r}")
                self.exit_code = 1
            finally:
                commands.close()
                sending.end()

        threading.Thread(target=take_all, name="commands", daemon=True).start()
        # (The end of the stream ends this as well.)
        for message in sending.messages():
            yield message if isinstance(message, Chunk) else pb.ExecutorReports(reports=message)


def _take_all(requests: Iterator[pb.ExecutorCommands | Chunk], commands: Commands) -> None:
    #: The bytes of commands that follow, by their numbers.
    arrived: dict[int, list[memoryview]] = {}
    for message in requests:
        if isinstance(message, Chunk):
            arrived.setdefault(message.bytes_of, []).append(message.data)
            continue
        for command in message.commands:
            commands.take(command, arrived.pop(command.number, ()) if arrived else ())


class TakersOnly(grpc.ServerInterceptor):
    """Refuses a `Take` whose token no offer has, before a thread waits for its request.

    Args:
      offers: What is offered to other executors.
    """

    def __init__(self, offers: Offers) -> None:
        self._offers = offers

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        """Returns the handler of a call."""
        metadata = dict(details.invocation_metadata or ())
        if not details.method.endswith("/Take") or self._offers.have(metadata.get(_HEADER, "")):
            return continuation(details)
        return grpc.stream_stream_rpc_method_handler(_refuse)


def _refuse(_requests: Iterator[Any], context: Any) -> Iterator[Any]:
    context.abort(grpc.StatusCode.PERMISSION_DENIED, "nothing is offered with this token")
    yield


def _parsed(data: bytes) -> pb.ExecutorCommands | Chunk:
    return parsed_chunk(data) or pb.ExecutorCommands.FromString(data)


def _serialized(message: pb.ExecutorReports | Chunk) -> bytes:
    if isinstance(message, Chunk):
        return serialized_chunk(message)
    return message.SerializeToString()


def _header(context: Any) -> str:
    header: str = dict(context.invocation_metadata() or ()).get(_HEADER, "")
    return header
