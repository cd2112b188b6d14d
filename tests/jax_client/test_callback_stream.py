"""The client's end of the stream of callbacks, on a real gRPC server."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path

import grpc
import numpy as np
import pytest

from harness.deadlines import deadline
from shared_pathways_service.jax_client.plugin import callback_wire as wire
from shared_pathways_service.jax_client.plugin.callback_stream import CallbackStream, NotServed
from shared_pathways_service.protocol import callbacks_pb2 as pb
from shared_pathways_service.servers.proxy.callbacks.callback_messages import call_messages
from shared_pathways_service.servers.proxy.transport.calls import CALLBACKS

DEADLINE_S = deadline(60.0)


class Server(grpc.GenericRpcHandler):
    """Says that it serves callbacks, then sends what the test puts."""

    def __init__(self, address: str) -> None:
        self.sends: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.received: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._pool = futures.ThreadPoolExecutor(4)
        self._readers: list[threading.Thread] = []
        self._server = grpc.server(self._pool, handlers=[self])
        self._server.add_insecure_port(address)
        self._server.start()

    def service(
        self, details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        if details.method != CALLBACKS:
            return None
        return grpc.stream_stream_rpc_method_handler(self._serve)

    def _serve(self, requests: Iterator[bytes], _context: object) -> Iterator[bytes]:
        reader = threading.Thread(target=self._read, args=(requests,))
        self._readers.append(reader)
        reader.start()
        yield pb.CallbackProxyMessage(ready=pb.CallbackReady(version=1)).SerializeToString()
        yield from iter(self.sends.get, None)

    def _read(self, requests: Iterator[bytes]) -> None:
        with contextlib.suppress(Exception):
            for raw in requests:
                self.received.put(raw)

    def close(self) -> None:
        assert self._server.stop(None).wait(DEADLINE_S)
        for _ in self._readers:
            self.sends.put(None)
        for reader in self._readers:
            reader.join()
        self._pool.shutdown()


@pytest.fixture
def address(own_directories: Path) -> str:
    return f"unix:{own_directories / 's'}"


@pytest.fixture
def server(address: str) -> Iterator[Server]:
    serving = Server(address)
    yield serving
    serving.close()


def opened(
    address: str, called: Callable[[wire.Invocation], None], ended: Callable[[], None]
) -> CallbackStream:
    def receive(raw: bytes) -> Callable[[], object] | None:
        message = wire.read(raw)
        assert isinstance(message, wire.Invocation)
        return lambda: called(message)

    return CallbackStream(address, None, bytes(16), receive, ended)


def send(server: Server, call: int) -> None:
    for message in call_messages(call, 1, 0, [np.float32(call)]):
        server.sends.put(message)


def test_calls_run_at_the_same_time(server: Server, address: str) -> None:
    together = threading.Barrier(3)
    seen: queue.SimpleQueue[int] = queue.SimpleQueue()

    def meet(call: wire.Invocation) -> None:
        together.wait(DEADLINE_S)
        seen.put(call.call)

    stream = opened(address, meet, lambda: None)
    for call in (1, 2, 3):
        send(server, call)
    assert sorted(seen.get(timeout=DEADLINE_S) for _ in range(3)) == [1, 2, 3]
    stream.close()


def test_calls_are_made_where_python_gives_no_thread(
    server: Server, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at the end of a process, from Python 3.12 on."""
    seen: queue.SimpleQueue[int] = queue.SimpleQueue()
    stream = opened(address, lambda call: seen.put(call.call), lambda: None)

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        for call in (1, 2, 3):
            send(server, call)
            assert seen.get(timeout=DEADLINE_S) == call
    stream.close()


def test_the_end_of_the_stream_is_reported_unless_it_was_closed(
    server: Server, address: str
) -> None:
    ended = threading.Event()
    opened(address, lambda _: None, lambda: None).close()
    stream = opened(address, lambda _: None, ended.set)
    # One for each stream.
    server.sends.put(None)
    server.sends.put(None)
    assert ended.wait(DEADLINE_S)
    stream.close()


def test_a_server_without_callbacks_says_why(address: str, own_directories: Path) -> None:
    del own_directories
    pool = futures.ThreadPoolExecutor(1)
    server = grpc.server(pool)
    server.add_insecure_port(address)
    server.start()
    with pytest.raises(NotServed, match="older version"):
        opened(address, lambda _: None, lambda: None)
    assert server.stop(None).wait(DEADLINE_S)
    pool.shutdown()


def test_what_is_written_without_protobuf_is_what_protobuf_reads() -> None:
    arrays = [np.arange(6, dtype=np.int16).reshape(2, 3), None, np.ones((), bool)]
    (raw,) = wire.answer(300, arrays)
    answer = pb.CallbackClientMessage.FromString(raw).answer
    told = [(a.dtype, list(a.shape)) for a in answer.results]
    assert told == [("int16", [2, 3]), ("token", []), ("bool", [])]
    assert (answer.call, answer.data) == (300, arrays[0].tobytes() + b"\1")  # type: ignore[union-attr]
    large = np.arange((1 << 18) + 1, dtype=np.float32)
    first, second = map(pb.CallbackClientMessage.FromString, wire.answer(1, [large]))
    assert first.answer.data + second.piece.data == large.tobytes()
    try:
        raise ValueError("no such thing")
    except ValueError as raised:
        error = pb.CallbackClientMessage.FromString(wire.failure(5, raised)).answer.error
    assert (error.type, error.text) == ("ValueError", "no such thing")


class UnshowableError(Exception):
    def __str__(self) -> str:
        raise KeyError


class UnformattableError(SyntaxError):
    def __init__(self) -> None:
        super().__init__("no", ("f", 1, "x", "y"))  # type: ignore[arg-type]


@pytest.mark.parametrize("error", [UnshowableError(), UnformattableError()])
def test_an_error_that_cannot_be_shown_is_an_answer_all_the_same(error: Exception) -> None:
    found = pb.CallbackClientMessage.FromString(wire.failure(5, error)).answer
    assert (found.call, found.error.type) == (5, type(error).__name__)
    assert type(error).__name__ in found.error.traceback


def test_a_long_error_keeps_its_beginning_and_its_end() -> None:
    try:
        raise ValueError("begins " + "x" * 1_000_000 + " ends")
    except ValueError as raised:
        error = pb.CallbackClientMessage.FromString(wire.failure(5, raised)).answer.error
    assert error.text.startswith("begins x")
    assert "ValueError: begins x" in error.traceback
    for text in (error.text, error.traceback):
        assert text.endswith("x ends")
        assert " characters omitted]" in text
        assert len(text) < 100_000


def test_what_protobuf_writes_is_read_without_it() -> None:
    array = np.arange(1 << 19, dtype=np.float32).reshape(2, -1)
    first, *rest = call_messages(1 << 40, 7, 3, [None, array, np.zeros((0, 3), np.int8)])
    call = wire.read(first)
    assert isinstance(call, wire.Invocation)
    assert (call.call, call.program, call.callback, call.is_whole) == (1 << 40, 7, 3, False)
    for raw in rest:
        piece = wire.read(raw)
        assert isinstance(piece, wire.Piece)
        call.add(piece.data)
    token, got, empty = call.arguments()
    assert (token, empty.shape, got.flags.writeable) == (None, (0, 3), False)
    np.testing.assert_array_equal(got, array)
    for message, wanted in (
        (pb.CallbackProxyMessage(ready=pb.CallbackReady(version=1)), wire.Ready()),
        (pb.CallbackProxyMessage(cancelled=pb.CallbackCancelled(call=4)), wire.Cancelled(4)),
        (pb.CallbackProxyMessage(dropped=pb.CallbackDropped(program=9)), wire.Dropped(9)),
    ):
        assert wire.read(message.SerializeToString()) == wanted
    assert wire.read(b"\xf2\x01\x00") is None  # of a newer protocol
