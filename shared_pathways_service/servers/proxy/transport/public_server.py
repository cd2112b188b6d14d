"""A proxy's calls on grpcio's public synchronous API."""

from __future__ import annotations

import functools
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any, NoReturn

import grpc

from shared_pathways_service.runtime.glog import glog
from shared_pathways_service.servers.devices.status_errors import (
    Code,
    StatusError,
    from_exception,
    invalid_argument,
)
from shared_pathways_service.servers.proxy.memory import HostCharge
from shared_pathways_service.servers.proxy.session.answers import QueuedAnswers
from shared_pathways_service.servers.proxy.session.session import Session
from shared_pathways_service.servers.proxy.transport.calls import (
    DOWNLOAD,
    SESSION,
    UPLOAD,
    Call,
    Calls,
    Served,
)
from shared_pathways_service.servers.proxy.transport.late_requests import LateRequests
from shared_pathways_service.servers.serving.listening import stop_blocking_server

__all__ = ["PublicServer"]

_STATUS = {code.value[0]: code for code in grpc.StatusCode}


class PublicServer:
    """A gRPC server for one proxy, with the threads for each kind of calls."""

    def __init__(
        self,
        options: Sequence[tuple[str, int]],
        calls: Calls,
        sessions: futures.ThreadPoolExecutor,
        plain: futures.ThreadPoolExecutor,
        callbacks: futures.ThreadPoolExecutor,
    ) -> None:
        self._calls = calls
        self._server = grpc.server(
            sessions, options=list(options), maximum_concurrent_rpcs=calls.service.limits.calls
        )
        self.add_insecure_port = self._server.add_insecure_port
        self.start = self._server.start
        handlers: dict[str, Any] = {
            # As a stream, a call is passed on before its request has arrived.
            path: grpc.stream_unary_rpc_method_handler(
                _on_pool(_plain(self._with_request(answer)), plain)
            )
            for path, answer in calls.plain.items()
        }
        transfers = calls.transfers.pool
        handlers[DOWNLOAD] = grpc.stream_stream_rpc_method_handler(
            _on_pool(self._download, transfers)
        )
        handlers[UPLOAD] = grpc.stream_unary_rpc_method_handler(
            _on_pool(_plain(calls.upload), transfers)
        )
        for path, serve in calls.streams.items():
            behave = functools.partial(self._serve, serve)
            handlers[path] = grpc.stream_stream_rpc_method_handler(_on_pool(behave, callbacks))
        handlers[SESSION] = grpc.stream_stream_rpc_method_handler(self._session)
        self._server.add_generic_rpc_handlers((_Handlers(handlers),))

    def stop(self) -> None:
        """Ends every call, and the server."""
        stop_blocking_server(self._server)

    def _session(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        service = self._calls.service
        answers = QueuedAnswers(service.limits)
        # Also called when the client goes away, which alone would not wake this thread.
        if not context.add_callback(lambda: answers.end(None)):
            return
        try:
            session = service.open_session(_PublicCall(context).metadata, answers)
        except StatusError as error:
            _abort(context, error)
        reader = threading.Thread(
            target=self._read, args=(session, requests, answers), name="session", daemon=True
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
                # gRPC asks for the next one when it has taken this one, as fast as the client
                # reads.
                yield answer
        finally:
            # The call and its requests are over: none may start after the session's end.
            answers.close()
            if reader.ident is not None:
                reader.join()
            service.close_session(session)

    def _read(self, session: Session, requests: Iterator[bytes], answers: QueuedAnswers) -> None:
        """Handles a session's requests, one after the other, until the client ends them."""
        end: StatusError | None = None
        try:
            for raw in requests:
                session.handle(raw)
                # The next one may take long to arrive.
                del raw
        except Exception as error:  # noqa: BLE001 - whatever it is; grpcio's say nothing
            if str(error):
                end = from_exception(error).copy()
        self._calls.note_end(end)
        answers.end(end)

    def _download(
        self, requests: Iterator[bytes], context: grpc.ServicerContext
    ) -> Iterator[bytes]:
        try:
            call = _PublicCall(context)
            raw = _request(requests, call, self._calls.late_downloads)
            yield from self._calls.download(raw, call)
        except StatusError as error:
            _abort(context, error)

    def _serve(
        self,
        served_by: Callable[[Mapping[str, Any]], Served],
        requests: Iterator[bytes],
        context: grpc.ServicerContext,
    ) -> Iterator[bytes]:
        outbox = _Outbox()
        if not context.add_callback(outbox.end):
            return
        try:
            served = served_by(_PublicCall(context).metadata)
            with served.attached(outbox):
                reader = threading.Thread(
                    target=_read_messages,
                    args=(requests, served.receive, outbox),
                    name="messages",
                    daemon=True,
                )
                reader.start()
                try:
                    yield from outbox.messages()
                finally:
                    context.cancel()
                    reader.join()
        except StatusError as error:
            _abort(context, error)

    def _with_request(
        self, answer: Callable[[bytes, Call], bytes]
    ) -> Callable[[Iterator[bytes], Call], bytes]:
        return lambda requests, call: answer(_request(requests, call, self._calls.late), call)


def _request(requests: Iterator[bytes], call: Call, late: LateRequests) -> bytes:
    def give_up(reason: str) -> None:
        # gRPC cannot end a call with a status while its thread waits for a message.
        glog("W", reason)
        call.cancel()

    with late.awaited(give_up) as awaited:
        for raw in requests:
            awaited.has_arrived = True
            return raw
    raise invalid_argument("the call has no request")


def _on_pool(behave: Callable[..., Any], pool: futures.ThreadPoolExecutor) -> Callable[..., Any]:
    """Returns a function that gRPC runs on the threads of this pool."""

    def on_pool(*arguments: Any) -> Any:
        return behave(*arguments)

    on_pool.experimental_thread_pool = pool  # type: ignore[attr-defined]
    return on_pool


class _PublicCall:
    def __init__(self, context: grpc.ServicerContext) -> None:
        pairs: Any = context.invocation_metadata()
        self.metadata: Mapping[str, Any] = dict(pairs)
        self._context = context
        self._woken = threading.Event()
        self.wake = self._woken.set

    def wait(self, timeout_s: float) -> None:
        if self._context.add_callback(self.wake):
            self._woken.wait(timeout_s)

    def cancel(self) -> None:
        self._context.cancel()


class _Outbox:
    """Messages to the client, until either side ends the stream."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[bytes, HostCharge | None] | None]
        self._queue = queue.SimpleQueue()

    def put(self, message: bytes, charge: HostCharge | None) -> None:
        self._queue.put((message, charge))

    def end(self) -> None:
        self._queue.put(None)

    def messages(self) -> Iterator[bytes]:
        while (item := self._queue.get()) is not None:
            # (Its memory is held until gRPC asks for the next.)
            yield item[0]
            del item


def _read_messages(
    requests: Iterator[bytes], receive: Callable[[bytes], None], outbox: _Outbox
) -> None:
    try:
        for raw in requests:
            receive(raw)
    except Exception as error:  # noqa: BLE001 - the stream ends with it
        if str(error):
            glog("W", f"Ending a stream of messages: {error}")
    outbox.end()


class _Handlers(grpc.GenericRpcHandler):
    """Finds the handler of a method by its whole path."""

    def __init__(self, handlers: Mapping[str, Any]) -> None:
        self._handlers = handlers

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        return self._handlers.get(handler_call_details.method)


def _plain(answer: Callable[[Any, Call], bytes]) -> Any:
    def behave(request: Any, context: grpc.ServicerContext) -> bytes:
        try:
            return answer(request, _PublicCall(context))
        except StatusError as error:
            _abort(context, error)

    return behave


def _abort(context: grpc.ServicerContext, error: StatusError) -> NoReturn:
    context.abort(_STATUS[error.code.value], error.message)
    raise AssertionError("abort returned")
