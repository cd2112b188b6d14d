"""One client's session: its handles, and the handling of its requests in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from google.protobuf.message import DecodeError

from shared_pathways_service.protocol.ifrt import core_pb2, proxy_pb2
from shared_pathways_service.runtime.glog import glog
from shared_pathways_service.servers.devices.dtypes import dtype_of
from shared_pathways_service.servers.devices.status_errors import (
    Code,
    StatusError,
    from_exception,
    invalid_argument,
)
from shared_pathways_service.servers.proxy.callbacks.callbacks import SessionCallbacks
from shared_pathways_service.servers.proxy.colocated.session_python import SessionPython
from shared_pathways_service.servers.proxy.engine.compiled_program import Program
from shared_pathways_service.servers.proxy.engine.engine import Engine
from shared_pathways_service.servers.proxy.execution.operations import Operation
from shared_pathways_service.servers.proxy.execution.settling import Countdown
from shared_pathways_service.servers.proxy.execution.values import Spec, Value
from shared_pathways_service.servers.proxy.execution.virtual_slices import Epoch, Work
from shared_pathways_service.servers.proxy.limits import Limits
from shared_pathways_service.servers.proxy.memory import HostMemory
from shared_pathways_service.servers.proxy.session.answers import Answers
from shared_pathways_service.servers.proxy.session.buffers import BufferStore
from shared_pathways_service.servers.proxy.session.user_contexts import UserContexts

__all__ = ["Call", "Handler", "Session"]

#: The server's handles start here; those below are the client's.
_FIRST_SERVER_HANDLE = 1 << 63
#: These make a future only for the moment until it is requested.
_DELETIONS = frozenset({"delete_array_request", "loaded_executable_delete_request"})
#: The host buffers that a request would have used.
_BUFFERS: dict[str, Callable[[Any], Sequence[int]]] = {
    "make_array_from_host_buffer_request": lambda r: [r.host_buffer_handle],
    "make_arrays_from_host_buffer_shards_request": lambda r: [
        buffer.host_buffer_handle for item in r.specs for buffer in item.host_buffers
    ],
}


class Call:
    """One request and its answer, which is given once, now or later, on any thread."""

    __slots__ = ("_context", "_contexts", "_send", "response")

    def __init__(
        self, op_id: int, send: Callable[[bytes], None], contexts: UserContexts, context: int
    ) -> None:
        self._send = send
        self._contexts: UserContexts | None = contexts
        self._context = context
        self.response = proxy_pb2.IfrtResponse()
        self.response.response_metadata.op_id = op_id

    def answer(self) -> None:
        """Sends the response; an error instead if too many answers are unread."""
        contexts, response = self._contexts, self.response
        if contexts is not None:
            contexts.give_back(response, self._context)
        try:
            self._send(response.SerializeToString())
        except StatusError as error:
            if contexts is not None:
                contexts.undo(response)
                self._contexts = None
            self.fail(error)

    def fail(self, error: StatusError) -> None:
        """Sends an error instead of the response."""
        if self._contexts is not None:
            self._contexts.owe(self._context)
            self._contexts = None
        op_id = self.response.response_metadata.op_id
        self.response.Clear()
        self.response.response_metadata.op_id = op_id
        error.fill(self.response.response_metadata.status)
        self.answer()

    def finish(self, error: StatusError | None) -> None:
        """Sends the response, or the error if there is one."""
        if error is None:
            self.answer()
        else:
            self.fail(error)


#: Handles one kind of request; returns True if the answer is given later.
Handler = Callable[["Session", Any, Call], bool | None]


class Session:
    """The state of one client.

    Args:
      session_id: Unguessable; the client's host-buffer streams name it.
      engine: The engine that computes.
      handlers: The handlers by the name of the request's field in IfrtRequest.
      named_results: By the same name, the handles that such a request names for its results: each
        gets the error of a failed request.
      version: The agreed version of the protocol.
      answers: Takes serialised responses.
      limits: The limits of the proxy.
      host_memory: The memory to which host buffers are charged.
    """

    def __init__(
        self,
        session_id: int,
        engine: Engine,
        *,
        handlers: dict[str, Handler],
        named_results: dict[str, Callable[[Any], Sequence[int]]],
        version: int,
        answers: Answers,
        limits: Limits,
        host_memory: HostMemory,
    ) -> None:
        self.session_id = session_id
        self.engine = engine
        self.version = version
        self.buffers = BufferStore(host_memory, limits.handles)
        #: The client's directory for large buffers; None if it has none.
        self.transfer_dir: Path | None = None
        #: Calls functions of the client; None if it serves no callbacks.
        self.callbacks: SessionCallbacks | None = None
        self.python = SessionPython(len(engine.devices))
        self.arrays: dict[int, Value] = {}
        self.programs: dict[int, Program] = {}
        #: Programs that are still compiled, by the handles that they will have.
        self.compiling: set[int] = set()
        self.executions: dict[int, Operation] = {}
        #: Ended futures, each with its error if it has one.
        self.futures: dict[int, StatusError | None] = {}
        #: Whether the log has named its ignored compile options.
        self.logged_ignored_options = False
        self._handlers = handlers
        self._named_results = named_results
        self.answers = answers
        self.counts = answers.counts
        self._send = answers.sender(1)
        self._limits = limits
        self._last_requests = engine.last_requests
        self._contexts = UserContexts()
        self._last_handle = _FIRST_SERVER_HANDLE - 1

    def handle(self, raw: bytes) -> None:
        """Handles one request; waits first while too many are open.

        After an error that this raises the session cannot continue.
        """
        units = self.answers.admit(len(raw))
        began_ns = perf_counter_ns()
        try:
            request = proxy_pb2.IfrtRequest.FromString(raw)
        except DecodeError as error:
            raise invalid_argument(f"not an IfrtRequest: {error}") from error
        send = self._send if units == 1 else self.answers.sender(units)
        asked = request.request_metadata
        call = Call(asked.op_id, send, self._contexts, asked.user_context_id)
        kind = request.WhichOneof("request")
        handler = self._handlers.get(kind or "")
        if kind is None or handler is None:
            error_text = f"{kind or 'a request unknown to this server'} is not supported"
            self._refuse(kind, request, call, StatusError(Code.UNIMPLEMENTED, error_text))
            self.counts.add(kind or "unknown", began_ns, len(raw))
            return
        self._note(kind, request)
        try:
            if units > 1 and len(raw) > self._limits.message_bytes:
                raise _too_long(kind, len(raw), self._limits.message_bytes)
            if self.open_handles >= self._limits.handles:
                self._check_handles(kind)
            later = handler(self, getattr(request, kind), call)
        except StatusError as error:
            self._refuse(kind, request, call, error)
        except Exception as error:  # noqa: BLE001 - a bad request must not end the session
            glog("E", f"{kind} failed: {type(error).__name__}: {error}")
            self._refuse(kind, request, call, from_exception(error))
        else:
            if not later:
                call.answer()
        self.counts.add(kind, began_ns, len(raw))

    def free_lost(self, epoch: Epoch) -> None:
        """Frees the memory of all arrays on a lost placement."""
        for value in list(self.arrays.values()):
            if epoch in value.epochs:
                value.free()

    def close(self) -> Sequence[Work]:
        """Drops everything; open operations settle with an error. Returns those that still run."""
        self.buffers.close()
        self.engine.compilations.drop(self.session_id)
        error = StatusError(Code.CANCELLED, "the session has ended")
        # Not by handles: a client may have dropped those of operations that it waits for no more.
        running = [operation for operation in self._operations() if operation.abandon(error)]
        if self.callbacks is not None:
            self.callbacks.close()
        self.python.close()
        for table in (self.arrays, self.programs, self.executions, self.futures):
            table.clear()
        return running

    # ---- for handlers

    def check_room(self, count: int) -> None:
        """Refuses a request with more results than the session has free handles."""
        if len(self.arrays) + count > 2 * self._limits.handles:
            # One request may name very many: what it does is not undone, but ends at the limit.
            raise self._too_many_handles("more")

    def new_handle(self) -> int:
        """Returns a new handle of the server."""
        self._last_handle += 1
        return self._last_handle

    def store(self, value: Value, handle: int = 0) -> int:
        """Stores a value under the client's handle, or under one of the server's."""
        self.check_room(1)
        handle = handle or self.new_handle()
        self.arrays[handle] = value
        return handle

    def value(self, handle: int) -> Value:
        """Returns the value of a handle."""
        value = self.arrays.get(handle)
        if value is None:
            raise StatusError(Code.NOT_FOUND, f"Unknown array handle: {handle}")
        return value

    def program(self, handle: int) -> Program:
        """Returns a compiled program."""
        program = self.programs.get(handle)
        if program is None:
            raise StatusError(Code.NOT_FOUND, f"Unknown loaded executable handle: {handle}")
        return program

    def spec(
        self,
        dtype: core_pb2.DTypeProto,
        shape: core_pb2.ShapeProto,
        sharding: core_pb2.ShardingProto,
    ) -> Spec:
        """Reads what a request says of an array."""
        dims = tuple(shape.dims)
        if min(dims, default=0) < 0:
            raise invalid_argument(f"shape {dims} has a negative dimension")
        placing = self.engine.placings.from_wire(sharding)
        return Spec(dtype.kind, dtype_of(dtype.kind), dims, placing)

    def when_idle(self, callback: Callable[[], None]) -> None:
        """Calls `callback` once all operations that were started before have settled."""
        operations = self._operations()
        settled = Countdown(len(operations) + 1, callback)
        for operation in operations:
            if not operation.add_callback(settled):
                settled()
        settled()

    def _operations(self) -> list[Work]:
        """Returns the open operations, each once."""
        found = {
            operation: None
            for epoch in self.engine.slices.current()
            for operation in list(epoch.operations)
            if operation.session_id == self.session_id
        }
        return list(found)

    def new_value(self, spec: Spec) -> Value:
        """Returns a value for the current placements of its slices."""
        return Value(spec, self.engine.slices.epochs(spec.placing.slices))

    def _note(self, kind: str, request: proxy_pb2.IfrtRequest) -> None:
        """Records the request's kind, and its program's name, for a report after a crash."""
        about = ""
        if kind == "loaded_executable_execute_request":
            handle = request.loaded_executable_execute_request.loaded_executable_handle
            program = self.programs.get(handle)
            about = "" if program is None else program.name
        self._last_requests.add(kind, about)

    def _refuse(self, kind: str | None, request: Any, call: Call, error: StatusError) -> None:
        self.counts.refuse(kind or "unknown")
        named = self._named_results.get(kind or "")
        if kind is not None and named is not None:
            for handle in named(getattr(request, kind)):
                # Beyond the limit errors get handles too, so that a client which dropped the answer
                # learns of it; but not without end.
                if handle and len(self.arrays) < 2 * self._limits.handles:
                    self.arrays[handle] = Value.failed(error)
        if kind in _BUFFERS:
            for handle in _BUFFERS[kind](getattr(request, kind)):
                # It may still be on its way, and has no other user.
                self.buffers.discard(handle)
        call.fail(error)

    @property
    def open_handles(self) -> int:
        """The number of arrays, programs, executions and futures, with those that are errors."""
        return (
            len(self.arrays)
            + len(self.programs)
            + len(self.executions)
            + len(self.futures)
            + len(self.compiling)
        )

    def _check_handles(self, kind: str) -> None:
        """Refuses a request that makes handles at the limit, or at twice it if it frees memory."""
        if kind in self._named_results or kind == "compile_request":
            raise self._too_many_handles(f"a {kind.removesuffix('_request')}")
        if kind in _DELETIONS and self.open_handles >= 2 * self._limits.handles:
            raise self._too_many_handles("a deletion")

    def _too_many_handles(self, what: str) -> StatusError:
        return StatusError(
            Code.RESOURCE_EXHAUSTED,
            f"{what} needs handles; the limit (--max_handles) is {self._limits.handles} per "
            f"session, of which {len(self.arrays)} arrays, {len(self.programs)} programs, "
            f"{len(self.executions)} executions and {len(self.futures)} futures are held, and "
            f"{len(self.compiling)} for programs that are being compiled",
        )


def _too_long(kind: str, nbytes: int, limit: int) -> StatusError:
    return StatusError(
        Code.RESOURCE_EXHAUSTED,
        f"a {kind} needs {nbytes} bytes in one message; the limit (--max_message_bytes) is {limit} "
        "bytes; pass large constants as arguments",
    )
