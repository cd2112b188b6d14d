"""Streams to executors, on grpcio's core and on its public API, against a server that echoes."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from typing import Any

import grpc
import pytest

from harness.processes import DEADLINE_S
from shared_pathways_service.constants import LOOPBACK
from shared_pathways_service.servers.proxy.executors import executor_streams
from shared_pathways_service.servers.proxy.executors.core_stream import CoreStream
from shared_pathways_service.servers.proxy.executors.executor_streams import OpenStream
from shared_pathways_service.servers.proxy.executors.public_stream import (
    PublicStream,
    StreamBrokenError,
)

KINDS: Mapping[str, OpenStream] = {"core": CoreStream, "public": PublicStream}


class Server:
    """Answers each message with itself, and `end` with an error."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        handler: Any = grpc.stream_stream_rpc_method_handler(self._echo)
        service = grpc.method_handlers_generic_handler("test", {"Echo": handler})
        self._pool = futures.ThreadPoolExecutor(4)
        self._server = grpc.server(
            self._pool, handlers=[service], options=[("grpc.max_receive_message_length", -1)]
        )
        self.address = f"{LOOPBACK}:{self._server.add_insecure_port(f'{LOOPBACK}:0')}"
        self._server.start()

    def close(self) -> None:
        assert self._server.stop(None).wait(DEADLINE_S)
        self._pool.shutdown()

    def _echo(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        context.add_callback(self.ended.set)
        for request in requests:
            if request == b"end":
                context.abort(grpc.StatusCode.ABORTED, "as the client wanted")
            yield request


class Peer:
    """A stream with a queue, and a thread that reads it to its end."""

    def __init__(self, kind: str, address: str) -> None:
        self.items: deque[bytes] = deque()
        self.received: list[bytes] = []
        self.error: StreamBrokenError | None = None
        options = [("grpc.max_receive_message_length", -1), ("grpc.enable_http_proxy", 0)]
        self.stream = KINDS[kind](
            address,
            "/test/Echo",
            (("key", "value"),),
            options,
            lambda: self.items.popleft() if self.items else None,
        )
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def send(self, *messages: bytes) -> None:
        self.items.extend(messages)
        self.stream.wake()

    def wait_for(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.received) >= count, DEADLINE_S)

    def join(self) -> None:
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()

    def _read(self) -> None:
        try:
            for message in self.stream.receive():
                with self._changed:
                    self.received.append(message)
                    self._changed.notify_all()
        except StreamBrokenError as error:
            self.error = error
        self.stream.close()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture(params=KINDS)
def connect(request: pytest.FixtureRequest) -> Iterator[Callable[[str], Peer]]:
    peers: list[Peer] = []

    def connect(address: str) -> Peer:
        peers.append(Peer(request.param, address))
        return peers[-1]

    yield connect
    for peer in peers:
        peer.stream.cancel()
        peer.join()


def test_messages_of_several_threads_all_arrive(
    server: Server, connect: Callable[[str], Peer]
) -> None:
    peer = connect(server.address)
    of_thread = [[b"%d-%d" % (thread, i) for i in range(300)] for thread in range(4)]

    def send_each(messages: list[bytes]) -> None:
        for message in messages:
            peer.send(message)

    threads = [threading.Thread(target=send_each, args=(messages,)) for messages in of_thread]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    peer.wait_for(4 * 300)
    assert sorted(peer.received) == sorted(itertools.chain.from_iterable(of_thread))
    for messages in of_thread:
        assert [message for message in peer.received if message in messages] == messages


def test_large_and_empty_messages_arrive(server: Server, connect: Callable[[str], Peer]) -> None:
    peer = connect(server.address)
    messages = [b"", bytes(20 << 20), b"last"]
    peer.send(*messages)
    peer.wait_for(3)
    assert peer.received == messages


def test_the_servers_error_comes_after_its_messages(
    server: Server, connect: Callable[[str], Peer]
) -> None:
    peer = connect(server.address)
    peer.send(b"one", b"end", b"never read")
    peer.join()
    assert (peer.received, str(peer.error)) == ([b"one"], "as the client wanted")
    peer.send(b"too late")


def test_a_cancelled_stream_ends_on_both_sides(
    server: Server, connect: Callable[[str], Peer]
) -> None:
    peer = connect(server.address)
    peer.send(b"one")
    peer.wait_for(1)
    peer.stream.cancel()
    peer.join()
    assert peer.error is not None
    assert server.ended.wait(DEADLINE_S)


def test_a_server_that_is_not_there_breaks_the_stream(
    server: Server, connect: Callable[[str], Peer]
) -> None:
    server.close()
    peer = connect(server.address)
    peer.send(b"one")
    peer.join()
    assert peer.received == []
    assert server.address.rpartition(":")[2] in str(peer.error)


def test_the_installed_core_is_used_unless_it_is_excluded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert executor_streams.stream_opener() is CoreStream
    assert executor_streams.stream_opener("core") is CoreStream
    assert executor_streams.stream_opener("public") is PublicStream
    monkeypatch.setattr(executor_streams, "_fault", lambda: "messages are lost")
    executor_streams._core_is_fit.cache_clear()
    assert executor_streams.stream_opener() is PublicStream
    executor_streams._core_is_fit.cache_clear()
