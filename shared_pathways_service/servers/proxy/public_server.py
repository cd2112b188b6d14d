"""A proxy's calls on grpcio's public synchronous API."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any, NoReturn

import grpc

from shared_pathways_service.servers.proxy.answers import QueuedAnswers
from shared_pathways_service.servers.proxy.calls import DOWNLOAD, SESSION, UPLOAD, Call, Calls
from shared_pathways_service.servers.proxy.session import Session
from shared_pathways_service.servers.proxy.status import Code, StatusError, from_exception

__all__ = ["PublicServer"]

_STATUS = {code.value[0]: code for code in grpc.StatusCode}


class PublicServer:
    """A gRPC server for one proxy.

    Args:
      options: Of gRPC.
      calls: What it serves.
      pool: Where sessions and plain calls run.
    """

    def __init__(
        self, options: Sequence[tuple[str, int]], calls: Calls, pool: futures.ThreadPoolExecutor
    ) -> None:
        self._calls = calls
        self._server = grpc.server(pool, options=list(options))
        self.add_insecure_port = self._server.add_insecure_port
        self.start = self._server.start
        handlers: dict[str, Any] = {
            path: grpc.unary_unary_rpc_method_handler(_plain(answer))
            for path, answer in calls.plain.items()
        }
        handlers[DOWNLOAD] = grpc.unary_stream_rpc_method_handler(self._on_pool(self._download))
        handlers[UPLOAD] = grpc.stream_unary_rpc_method_handler(self._on_pool(_plain(calls.upload)))
        handlers[SESSION] = grpc.stream_stream_rpc_method_handler(self._session)
        self._server.add_generic_rpc_handlers((_Handlers(handlers),))

    def stop(self) -> None:
        """Ends every call, and the server."""
        self._server.stop(None).wait()

    def _session(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        service = self._calls.service
        answers = QueuedAnswers(service.limits)
        # Called also when the client goes away, which alone would not wake this thread.
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
                # The next one is asked for when gRPC has taken this one, which it does as fast as
                # the client reads.
                yield answer
        finally:
            # The call is over, and with it its requests: none may be begun after the session's end.
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
                # It may be long until the next one comes.
                del raw
        except Exception as error:  # noqa: BLE001 - whatever it is; grpcio's say nothing
            if str(error):
                end = from_exception(error).anew()
        self._calls.note_end(end)
        answers.end(end)

    def _download(self, raw: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        try:
            yield from self._calls.download(raw, _PublicCall(context))
        except StatusError as error:
            _abort(context, error)

    def _on_pool(self, behave: Callable[..., Any]) -> Callable[..., Any]:
        """Returns what gRPC runs on the threads of transfers."""

        def on_pool(*arguments: Any) -> Any:
            return behave(*arguments)

        on_pool.experimental_thread_pool = self._calls.transfers.pool  # type: ignore[attr-defined]
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
