"""The service on the wire: grpcio's public synchronous API, over raw bytes.

All of gRPC that the proxy knows is here, so that another transport may take this one's place.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from typing import Any, NoReturn

import grpc

from shared_pathways_service.protocol import counters, ifrt
from shared_pathways_service.servers.glog import glog
from shared_pathways_service.servers.listening import SERVER_OPTIONS, Listening, listen
from shared_pathways_service.servers.proxy.answers import Answers
from shared_pathways_service.servers.proxy.limits import LARGEST_MESSAGE, Limits
from shared_pathways_service.servers.proxy.service import ProxyService
from shared_pathways_service.servers.proxy.session import Session
from shared_pathways_service.servers.proxy.status import Code, StatusError, from_exception
from shared_pathways_service.servers.proxy.transfers import Transfers

__all__ = ["GrpcTransport"]

#: Threads beside those of sessions and of transfers: for calls that are answered at once.
_SPARE_THREADS = 16
#: Bytes of a message that are always taken: uploads come in pieces of 1 MiB.
_LARGEST_CHUNK = 4 << 20
#: Calls that wait for a thread, and the seconds they may: one step with many arguments uploads
#: thousands of buffers at once, and gRPC by itself refuses from 1,000 on (RST_STREAM, error 7),
#: which the client takes for the end of its session. So does a bound on streams: a client counts
#: one as over before its server does.
_PATIENCE = (
    ("grpc.server.max_pending_requests", 1 << 20),
    ("grpc.server.max_pending_requests_hard_limit", 1 << 21),
    ("grpc.server_max_unrequested_time_in_server", 3600),
)

_STATUS = {code.value[0]: code for code in grpc.StatusCode}


class GrpcTransport:
    """A gRPC server for one `ProxyService`."""

    def __init__(self, service: ProxyService) -> None:
        self._service = service
        limits = service.limits
        # A thread is made when one is needed. What waits for a transfer's holds up no session.
        self._pool = futures.ThreadPoolExecutor(
            limits.sessions + _SPARE_THREADS, thread_name_prefix="grpc"
        )
        self._transfers = Transfers(limits.transfers, limits.transfer_patience_s)
        self._server = grpc.server(
            self._pool,
            options=[
                *SERVER_OPTIONS,
                # Of a server, not of a method: also what shows no token may be as long.
                ("grpc.max_receive_message_length", _longest_message(limits)),
                ("grpc.max_send_message_length", -1),
                *_PATIENCE,
            ],
        )
        unary = grpc.unary_unary_rpc_method_handler
        handlers: dict[str, Any] = {
            "GetVersion": unary(_translated(service.get_version)),
            "HostBufferDelete": unary(_translated(service.delete)),
            "HostBufferReadFromDisk": unary(_translated(service.read_from_disk)),
            "HostBufferLookup": grpc.unary_stream_rpc_method_handler(self._on_pool(self._lookup)),
            "HostBufferStore": grpc.stream_unary_rpc_method_handler(self._on_pool(self._store)),
            "IfrtSession": grpc.stream_stream_rpc_method_handler(self._session),
        }
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(ifrt.SERVICE, handlers),
                grpc.method_handlers_generic_handler(
                    counters.SERVICE, {counters.METHOD: unary(self._get_counters)}
                ),
            )
        )

    def start(
        self, *, server_port: int | None, server_socket: str, default_port: int, bind_address: str
    ) -> Listening:
        """Binds and serves; see `listen` for the arguments."""
        listening = listen(
            self._server,
            server_port=server_port,
            server_socket=server_socket,
            default_port=default_port,
            bind_address=bind_address,
        )
        self._server.start()
        return listening

    def stop(self) -> None:
        """Ends every call and the server; returns when its threads have been told."""
        self._server.stop(None).wait()
        self._transfers.close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _session(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        answers = Answers(self._service.limits)
        # Called also when the client goes away, which alone would not wake this thread.
        if not context.add_callback(lambda: answers.end(None)):
            return
        try:
            session = self._service.open_session(_metadata(context), answers)
        except StatusError as error:
            _abort(context, error)
        longest = _longest_message(self._service.limits)
        reader = threading.Thread(
            target=_read, args=(session, requests, answers, longest), name="session", daemon=True
        )
        try:
            try:
                reader.start()
            except RuntimeError as error:
                _abort(context, StatusError(Code.RESOURCE_EXHAUSTED, f"no session: {error}"))
            while True:
                answer = answers.next()
                if answer is None:
                    return
                if isinstance(answer, StatusError):
                    _abort(context, answer)
                # The next one is asked for when gRPC has taken this one, which it does as fast as
                # the client reads.
                yield answer
        finally:
            # The call is over, and with it its requests: none may be begun after the session's end.
            answers.close()
            if reader.ident is not None:
                reader.join()
            self._service.close_session(session)

    def _store(self, messages: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        with self._transfers.begin(context.cancel) as transfer:
            try:
                self._service.store(_metadata(context), transfer.watched(messages))
            except StatusError as error:
                _abort(context, error)
        return b""

    def _lookup(self, raw: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        with self._transfers.begin(context.cancel) as transfer:
            try:
                yield from transfer.watched(self._service.lookup(raw, context.add_callback))
            except StatusError as error:
                _abort(context, error)

    def _get_counters(self, _raw: bytes, context: grpc.ServicerContext) -> bytes:
        pairs: Any = context.invocation_metadata()
        try:
            return self._service.get_counters(dict(pairs).get("authorization", "").encode())
        except StatusError as error:
            _abort(context, error)

    def _on_pool(self, behave: Callable[..., Any]) -> Callable[..., Any]:
        """Returns what gRPC runs on the threads of transfers."""

        def on_pool(*arguments: Any) -> Any:
            return behave(*arguments)

        on_pool.experimental_thread_pool = self._transfers.pool  # type: ignore[attr-defined]
        return on_pool


def _longest_message(limits: Limits) -> int:
    """Returns the bytes of a message that is read: one a little too long still gets an answer."""
    return min(max(2 * limits.message_bytes, _LARGEST_CHUNK), LARGEST_MESSAGE)


def _read(session: Session, requests: Iterator[bytes], answers: Answers, longest: int) -> None:
    """Handles a session's requests, one after the other, until the client ends them."""
    end: StatusError | None = None
    try:
        for raw in requests:
            session.handle(raw)
    except Exception as error:  # noqa: BLE001 - whatever it is; grpcio's say nothing
        if str(error):
            end = from_exception(error)
    if end is None:
        # gRPC does not tell which.
        glog(
            "I",
            f"A session's stream is over: its client has ended it, or sent more than {longest} "
            "bytes in one message (--max_message_bytes)",
        )
    else:
        glog("W", f"A session is ended: {end}")
    answers.end(end)


def _metadata(context: grpc.ServicerContext) -> Mapping[str, bytes]:
    pairs: Any = context.invocation_metadata()
    return {key: value for key, value in pairs if isinstance(value, bytes)}


def _translated(function: Callable[[bytes], bytes]) -> Any:
    def behave(raw: bytes, context: grpc.ServicerContext) -> bytes:
        try:
            return function(raw)
        except StatusError as error:
            _abort(context, error)

    return behave


def _abort(context: grpc.ServicerContext, error: StatusError) -> NoReturn:
    context.abort(_STATUS[error.code.value], error.message)
    raise AssertionError("abort returned")
