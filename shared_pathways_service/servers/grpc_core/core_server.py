"""A gRPC server on grpcio's core, without the layers of its public API.

The public API passes each message through several threads, which is most of the cost of a small
request. Here each call has a completion queue of its own, and one thread, which starts the call's
operations and waits for their ends. `grpc._cython.cygrpc` is private to grpcio and may change:
`core_check` tests it before use.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from typing import Any, NamedTuple, NoReturn

from grpc._cython import cygrpc  # type: ignore[attr-defined]

from shared_pathways_service.patience import timeouts
from shared_pathways_service.runtime.glog import glog
from shared_pathways_service.servers.devices.status_errors import Code, StatusError, from_exception
from shared_pathways_service.servers.grpc_core.core_call import CallOver, CoreCall
from shared_pathways_service.servers.grpc_core.slow_readers import SlowReaders
from shared_pathways_service.servers.serving.listening import STOP_S

__all__ = ["CoreServer", "Route"]

#: Seconds to wait after a failure to accept calls.
_PAUSE_S = 0.1
#: The number of queues that are kept for later calls.
_SPARE_QUEUES = 64
_CALL, _STOPPED = "call", "stopped"


class Route(NamedTuple):
    """The threads for the calls of one method, and what runs there.

    It returns the call's last message, if there is one more; an error that it raises is the call's
    status.
    """

    pool: futures.Executor
    behave: Callable[[CoreCall], bytes | None]


def _refuse(code: Code, text: str, _call: CoreCall) -> NoReturn:
    raise StatusError(code, text)


class CoreServer:
    """A server whose calls each have a thread, with nothing in between.

    Args:
      options: Options of gRPC, as `grpc.server` takes them.
      routes: The routes by the methods' paths.
      pool: The threads that refuse calls of other methods.
      slow_reader_s: The time for a client to read the last message of a call.
      max_calls: The most calls at a time; one more is refused.
    """

    def __init__(
        self,
        options: Sequence[tuple[str, int]],
        routes: Mapping[str, Route],
        pool: futures.Executor,
        *,
        slow_reader_s: float,
        max_calls: int = 1 << 16,
    ) -> None:
        self._max_calls = max_calls
        # (Adding and discarding take no lock.)
        self._open: set[CoreCall] = set()
        self._routes = {path.encode(): route for path, route in routes.items()}
        self._unknown = Route(
            pool, functools.partial(_refuse, Code.UNIMPLEMENTED, "Method not found!")
        )
        self._server = cygrpc.Server(tuple(options), False)
        self._calls = cygrpc.CompletionQueue()
        self._server.register_completion_queue(self._calls)
        self._spare: deque[Any] = deque(maxlen=_SPARE_QUEUES)
        self._thread = threading.Thread(target=self._accept, name="calls", daemon=True)
        self._serves = False
        self._slow_readers = SlowReaders(
            self._is_drained, most=max_calls, slow_reader_s=slow_reader_s
        )

    def add_insecure_port(self, address: str) -> int:
        """Binds an address; returns the port, or raises a RuntimeError."""
        port: int = self._server.add_http2_port(address.encode())
        if not port:
            raise RuntimeError(f"failed to bind to {address}")
        return port

    def start(self) -> None:
        """Starts serving."""
        self._server.start()
        self._serves = True
        self._thread.start()
        self._slow_readers.start()

    def stop(self) -> None:
        """Ends every call, and the server if it serves."""
        if not self._serves:
            return
        self._serves = False
        self._server.shutdown(self._calls, _STOPPED)
        self._server.cancel_all_calls()
        end = time.monotonic() + STOP_S
        if self._thread.ident is not None:
            self._thread.join(STOP_S)
        self._slow_readers.close(max(0.0, end - time.monotonic()))
        if not self._thread.is_alive():
            self._server.destroy()

    def _accept(self) -> None:
        wants = True
        while True:
            try:
                if wants:
                    events = self._next_queue()
                    self._server.request_call(events, self._calls, _CALL)
                    wants = False
                event = self._calls.poll()
                if event.tag is _STOPPED:
                    return
                wants = self._serves
                if event.success:
                    self._dispatch(event, events)
                # The event refers to its call.
                del event
            except Exception as error:  # noqa: BLE001 - other calls are to be taken all the same
                wants = wants and self._serves
                if self._serves:
                    glog("E", f"a call was not accepted: {type(error).__name__}: {error}")
                    time.sleep(_PAUSE_S)

    def _dispatch(self, event: Any, events: Any) -> None:
        call = CoreCall(event.call, events, event.invocation_metadata)
        route = self._routes.get(event.call_details.method, self._unknown)
        if len(self._open) >= self._max_calls:
            text = f"the limit of concurrent calls (--max_calls) is {self._max_calls}"
            self._reject(call, events, f"{text}, which are all under way")
            return
        self._open.add(call)
        try:
            route.pool.submit(self._run, call, events, route.behave)
        except RuntimeError as error:
            try:
                self._reject(call, events, f"no thread for a call: {error}")
            except BaseException:
                self._open.discard(call)  # else it would count for ever
                raise

    def _reject(self, call: CoreCall, events: Any, text: str) -> None:
        call.begin()
        call.end(StatusError(Code.RESOURCE_EXHAUSTED, text))
        self._slow_readers.put(call, events)

    def _run(self, call: CoreCall, events: Any, behave: Callable[[CoreCall], bytes | None]) -> None:
        error: StatusError | None = None
        message: bytes | None = None
        try:
            call.begin()
            message = behave(call)
        except CallOver:
            error = StatusError(Code.CANCELLED, "the call is over")
        except StatusError as raised:
            # (The error refers to this frame, and so to all that it passed through.)
            error = raised.copy()
        except Exception as raised:  # noqa: BLE001 - whatever it is, the client receives it
            glog("E", f"a call failed: {type(raised).__name__}: {raised}")
            error = from_exception(raised).copy()
        try:
            call.end(error, message)
        except Exception as raised:  # noqa: BLE001 - the client must not wait for ever
            glog("E", f"a call cannot be ended: {type(raised).__name__}: {raised}")
            call.give_up()
        if not self._is_drained(call, events, timeouts.CORE_LAST_READ.s):
            self._slow_readers.put(call, events)

    def _is_drained(self, call: CoreCall, events: Any, timeout_s: float) -> bool:
        if not call.drain(timeout_s):
            return False
        self._open.discard(call)
        self._spare.append(events)
        return True

    def _next_queue(self) -> Any:
        try:
            return self._spare.pop()
        except IndexError:
            return cygrpc.CompletionQueue()
