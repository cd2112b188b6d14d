"""A gRPC server on grpcio's core, without the layers of its public API.

The public API hands each message through several threads, which is most of what a small request
costs. Here each call has a completion queue of its own, and one thread, which starts the call's
operations and waits for their ends. `grpc._cython.cygrpc` is private to grpcio and may change:
`core_check` tries it before it is used.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any, NamedTuple, NoReturn

from grpc._cython import cygrpc  # type: ignore[attr-defined]

from shared_pathways_service.servers.glog import glog
from shared_pathways_service.servers.listening import STOP_S
from shared_pathways_service.servers.proxy.last_words import LastWords
from shared_pathways_service.servers.proxy.status import Code, StatusError, from_exception

__all__ = ["RECEIVED", "SENT", "CallOver", "CoreCall", "CoreServer", "Route", "message_of"]

#: Seconds for which a call's thread waits until its last words are taken.
_LAST_WORDS_S = 0.2
#: Seconds after a failure to take calls in.
_PAUSE_S = 0.1
#: Queues that are kept for calls to come.
_SPARE_QUEUES = 64
_NO_FLAGS = 0
#: More messages follow: core may hold this one back, to write several at once.
_MORE_FOLLOWS = 1

_CALL, _STOPPED = "call", "stopped"
#: Tags of operations: a message has come, or none will; one is sent, or could not be.
RECEIVED, SENT = "received", "sent"
_CLOSED, _ENDED, _WOKEN = "closed", "ended", "woken"


class CallOver(Exception):  # noqa: N818 - not an error: nobody waits for the call any more
    """The client has gone, or the server stops."""


class CoreCall:
    """One call; all but `send_soon`, `cancel`, `wake` and `fail` is for the call's own thread.

    Args:
      call: Of gRPC's core.
      events: The queue where the ends of its operations come; this call's alone.
      metadata: That the client sent.

    Attributes:
      metadata: The same, as pairs; values of keys that end in ``-bin`` are bytes.
      is_over: Nobody waits for it any more.
    """

    def __init__(self, call: Any, events: Any, metadata: Any) -> None:
        self._call = call
        self._events = events
        self.metadata = dict(metadata)
        self.is_over = False
        self._opened = False
        self._woken = False
        self._failure: StatusError | None = None
        # Operations: begun by the call's thread, by any thread, and ended.
        self._begun_here = 0
        self._begun = 0
        self._finished = 0
        # Messages are sent by other threads too: none may be once the call's thread has ended it.
        self._lock = threading.Lock()
        self._ended = False

    def begin(self) -> None:
        """Begins to watch for the end of the call."""
        self._begin_here(_CLOSED, cygrpc.ReceiveCloseOnServerOperation(_NO_FLAGS))

    def messages(self) -> Iterator[bytes]:
        """Brings the client's messages.

        Raises:
          CallOver: It went away amid them.
        """
        while True:
            message = self.receive()
            if message is None:
                return
            yield message

    def receive(self) -> bytes | None:
        """Returns the next message; None: the client sends no more.

        Raises:
          CallOver: It has gone.
          StatusError: As `fail` was told.
        """
        self.receive_soon()
        while (event := self.next_event()).tag is not RECEIVED:
            if self._failure is not None:
                raise self._failure
        message = message_of(event)
        if message is None and self.is_over:
            raise CallOver
        return message

    def send(self, message: bytes) -> None:
        """Sends a message; returns when core has taken it.

        Raises:
          CallOver: Nobody takes it.
        """
        self.send_soon(message, more_follows=False)
        while (event := self.next_event()).tag is not SENT:
            pass
        if not event.success or self.is_over:
            raise CallOver

    def receive_soon(self) -> None:
        """Asks for the next message; `next_event` tells of it."""
        self._begin_here(RECEIVED, cygrpc.ReceiveMessageOperation(_NO_FLAGS))

    def send_soon(self, message: bytes, *, more_follows: bool) -> bool:
        """Sends a message, on any thread, one at a time; `next_event` tells when it is sent.

        Args:
          message: Serialised.
          more_follows: Whether another one is sent for certain.

        Returns:
          False: the call has ended, and there will be no event.
        """
        flags = _MORE_FOLLOWS if more_follows else _NO_FLAGS
        with self._lock:
            if self._ended:
                return False
            self._begin(SENT, *self._opening(), cygrpc.SendMessageOperation(message, flags))
            return True

    def next_event(self, deadline: float | None = None) -> Any:
        """Waits for the end of an operation.

        Args:
          deadline: Of the clock (`time.time`); None: for ever, as a call that is over ends all.

        Returns:
          Its event; its tag tells which one.
        """
        event = self._events.poll(deadline=deadline)
        if event.completion_type == cygrpc.CompletionType.queue_timeout:
            return event
        self._finished += 1
        if event.tag is _CLOSED:
            self.is_over = self.is_over or event.batch_operations[0].cancelled()
        return event

    def wait(self, timeout_s: float) -> None:
        """Waits until `wake` is called or the call is over, for so long at most."""
        deadline = time.time() + timeout_s
        while not (self._woken or self.is_over):
            event = self.next_event(deadline)
            if event.completion_type == cygrpc.CompletionType.queue_timeout:
                return

    def wake(self) -> None:
        """Ends `wait`, on any thread."""
        self._woken = True
        self._stir()

    def fail(self, error: StatusError) -> None:
        """Has `receive`, which waits now, raise an error, on any thread.

        Where the message came first, nothing comes of it: what waits next passes the event over.
        """
        self._failure = error
        self._stir()

    def _stir(self) -> None:
        with self._lock:
            if not self._ended:
                # A batch of nothing ends at once.
                self._begin(_WOKEN)

    def cancel(self) -> None:
        """Ends the call, on any thread: what is under way fails."""
        with self._lock:
            if not self._ended:
                self._call.cancel()

    def end(self, error: StatusError | None, message: bytes | None = None) -> None:
        """Gives the call its status, once; nothing else can be begun from then on.

        Args:
          error: The status; None: it went well.
          message: The last one of those that it sends.
        """
        code, details = (0, "") if error is None else (error.code.value, error.message)
        with self._lock:
            operations = self._opening()
            if message is not None:
                operations.append(cygrpc.SendMessageOperation(message, _NO_FLAGS))
            operations.append(
                cygrpc.SendStatusFromServerOperation(
                    (), code, details.encode(errors="replace"), _NO_FLAGS
                )
            )
            self._ended = True
            self._begin(_ENDED, *operations)

    def give_up(self) -> None:
        """Ends the call without a status."""
        with self._lock:
            self._ended = True
            self._call.cancel()

    def drain(self, timeout_s: float) -> bool:
        """Waits until nothing is under way of a call that was ended; returns whether that is so.

        It takes as long as the client takes to read.
        """
        # (A deadline of now would be waited for, for a millisecond.)
        deadline = time.time() + timeout_s if timeout_s else 0.0
        while self._under_way():
            event = self.next_event(deadline)
            if event.completion_type == cygrpc.CompletionType.queue_timeout:
                return False
        return True

    def _under_way(self) -> int:
        with self._lock:
            return self._begun_here + self._begun - self._finished

    def _opening(self) -> list[Any]:
        """Returns what has to go before the first message or status."""
        if self._opened:
            return []
        self._opened = True
        return [cygrpc.SendInitialMetadataOperation((), _NO_FLAGS)]

    def _begin_here(self, tag: str, operation: Any) -> None:
        self._start(tag, operation)
        self._begun_here += 1

    def _begin(self, tag: str, *operations: Any) -> None:
        """Begins operations; the lock is held."""
        self._start(tag, *operations)
        self._begun += 1

    def _start(self, tag: str, *operations: Any) -> None:
        refusal = self._call.start_server_batch(operations, tag)
        if refusal:
            raise RuntimeError(f"grpcio's core refuses what should be {tag}: error {refusal}")


def message_of(event: Any) -> bytes | None:
    """Returns the message that was received; None: there are no more."""
    message: bytes | None = event.batch_operations[-1].message()
    return message


class Route(NamedTuple):
    """What becomes of the calls of one method.

    Attributes:
      pool: Of which a call takes one thread.
      behave: Runs there; returns the call's last message, if there is one more. What it raises is
        the call's status.
    """

    pool: futures.Executor
    behave: Callable[[CoreCall], bytes | None]


def _refuse(code: Code, text: str, _call: CoreCall) -> NoReturn:
    raise StatusError(code, text)


class CoreServer:
    """A server whose calls each have a thread, and nothing in between.

    Args:
      options: Of gRPC, as `grpc.server` takes them.
      routes: By the methods' paths.
      pool: Where calls of other methods are refused.
      max_calls: At a time; one more is refused.
      slow_reader_s: Seconds that a client has to take the last of a call.
    """

    def __init__(
        self,
        options: Sequence[tuple[str, int]],
        routes: Mapping[str, Route],
        pool: futures.Executor,
        *,
        max_calls: int = 1 << 16,
        slow_reader_s: float = 600.0,
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
        self._last_words = LastWords(self._is_drained, most=max_calls, slow_reader_s=slow_reader_s)

    def add_insecure_port(self, address: str) -> int:
        """Binds; returns the port.

        Raises:
          RuntimeError: It cannot be bound.
        """
        port: int = self._server.add_http2_port(address.encode())
        if not port:
            raise RuntimeError(f"failed to bind to {address}")
        return port

    def start(self) -> None:
        """Serves."""
        self._server.start()
        self._serves = True
        self._thread.start()
        self._last_words.start()

    def stop(self) -> None:
        """Ends every call, and the server, if it serves."""
        if not self._serves:
            return
        self._serves = False
        self._server.shutdown(self._calls, _STOPPED)
        self._server.cancel_all_calls()
        end = time.monotonic() + STOP_S
        if self._thread.ident is not None:
            self._thread.join(STOP_S)
        self._last_words.close(max(0.0, end - time.monotonic()))
        if not self._thread.is_alive():
            self._server.destroy()

    def _accept(self) -> None:
        wants = True
        while True:
            try:
                if wants:
                    events = self._take_queue()
                    self._server.request_call(events, self._calls, _CALL)
                    wants = False
                event = self._calls.poll()
                if event.tag is _STOPPED:
                    return
                wants = self._serves
                if event.success:
                    self._hand_on(event, events)
                # What ended refers to its call.
                del event
            except Exception as error:  # noqa: BLE001 - other calls are to be taken all the same
                wants = wants and self._serves
                if self._serves:
                    glog("E", f"a call was not taken: {type(error).__name__}: {error}")
                    time.sleep(_PAUSE_S)

    def _hand_on(self, event: Any, events: Any) -> None:
        call = CoreCall(event.call, events, event.invocation_metadata)
        route = self._routes.get(event.call_details.method, self._unknown)
        if len(self._open) >= self._max_calls:
            text = f"the limit of calls at a time (--max_calls) is {self._max_calls}"
            self._turn_away(call, events, f"{text}, all of them under way")
            return
        self._open.add(call)
        try:
            route.pool.submit(self._run, call, events, route.behave)
        except RuntimeError as error:
            try:
                self._turn_away(call, events, f"no thread for a call: {error}")
            except BaseException:
                self._open.discard(call)  # else it would count for ever
                raise

    def _turn_away(self, call: CoreCall, events: Any, text: str) -> None:
        call.begin()
        call.end(StatusError(Code.RESOURCE_EXHAUSTED, text))
        self._last_words.put(call, events)

    def _run(self, call: CoreCall, events: Any, behave: Callable[[CoreCall], bytes | None]) -> None:
        error: StatusError | None = None
        message: bytes | None = None
        try:
            call.begin()
            message = behave(call)
        except CallOver:
            error = StatusError(Code.CANCELLED, "the call is over")
        except StatusError as raised:
            # (What was raised refers to this frame: kept here, it would keep all that it passed.)
            error = raised.anew()
        except Exception as raised:  # noqa: BLE001 - whatever it is, the client receives it
            glog("E", f"a call failed: {type(raised).__name__}: {raised}")
            error = from_exception(raised).anew()
        try:
            call.end(error, message)
        except Exception as raised:  # noqa: BLE001 - the client must not wait for ever
            glog("E", f"a call cannot be ended: {type(raised).__name__}: {raised}")
            call.give_up()
        if not self._is_drained(call, events, _LAST_WORDS_S):
            self._last_words.put(call, events)

    def _is_drained(self, call: CoreCall, events: Any, timeout_s: float) -> bool:
        if not call.drain(timeout_s):
            return False
        self._open.discard(call)
        self._spare.append(events)
        return True

    def _take_queue(self) -> Any:
        try:
            return self._spare.pop()
        except IndexError:
            return cygrpc.CompletionQueue()
