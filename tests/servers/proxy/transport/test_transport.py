"""By which server a proxy is served, and that calls leave nothing, however they end.

What a client is promised by both: `test_sessions` and `test_limits`.
"""

from __future__ import annotations

import contextlib
import gc
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from harness.processes import DEADLINE_S
from harness.proxy.raw import single
from shared_pathways_service.protocol import ifrt
from shared_pathways_service.protocol.ifrt import proxy_pb2
from shared_pathways_service.servers.proxy.status_errors import Code, StatusError
from shared_pathways_service.servers.proxy.transport.call_threads import CallThreads
from shared_pathways_service.servers.proxy.transport.grpc_core import core_check
from shared_pathways_service.servers.proxy.transport.grpc_core.core_call import CoreCall
from shared_pathways_service.servers.proxy.transport.grpc_core.core_server import CoreServer, Route
from tests.servers.proxy.conftest import LocalProxy, MakeClient, MakeProxy, StartProxy
from tests.servers.proxy.session.test_sessions import wait_until

FOUR = np.arange(4, dtype=np.float32)


@pytest.fixture
def check_anew() -> Iterator[None]:
    """The check is made anew, and what it finds is forgotten."""
    core_check.fault.cache_clear()
    yield
    core_check.fault.cache_clear()


# ---- which server


def test_the_installed_grpcio_is_fit(check_anew: None) -> None:
    assert core_check.fault() == ""


def lost(*_arguments: Any, **_named: Any) -> None:
    """What an operation of another grpcio might do."""


def ended(*_arguments: Any) -> None:
    raise TypeError("start_server_batch() takes 4 positional arguments")


@pytest.mark.parametrize(
    ("name", "instead", "fault"),
    [
        ("send", lost, "messages are lost"),
        ("wait", ended, "StatusCode.INTERNAL"),
        ("begin", ended, "takes 4 positional arguments"),
        ("receive_soon", ended, "takes 4 positional arguments"),
    ],
)
def test_a_core_that_is_otherwise_is_not_used(
    make_proxy: MakeProxy,
    connect: MakeClient,
    check_anew: None,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    name: str,
    instead: Callable[..., None],
    fault: str,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(CoreCall, name, instead)
        patch.setattr(core_check, "_DEADLINE_S", 1.0)
        assert fault in core_check.fault()
        proxy = make_proxy(transport="auto")
    client = connect(proxy.address)
    np.testing.assert_array_equal(client.fetch(client.put(FOUR, single(0))), FOUR)
    assert "Not using the core of grpcio" in capfd.readouterr().err
    gc.collect()
    # The session's is none.
    assert not calls()


def test_the_core_is_used_where_it_is_fit(
    make_proxy: MakeProxy, connect: MakeClient, capfd: pytest.CaptureFixture[str]
) -> None:
    client = connect(make_proxy(transport="auto").address)
    np.testing.assert_array_equal(client.fetch(client.put(FOUR, single(0))), FOUR)
    assert "Not using the core of grpcio" not in capfd.readouterr().err
    assert calls()


@pytest.mark.parametrize("kind", ["auto", "public"])
def test_a_process_is_told_which(start_proxy: StartProxy, connect: MakeClient, kind: str) -> None:
    proxy = start_proxy(f"--transport={kind}")
    assert proxy.ready is not None, "\n".join(proxy.lines)
    client = connect(f"unix:{proxy.ready['socket']}")
    np.testing.assert_array_equal(client.fetch(client.put(FOUR, single(0))), FOUR)
    assert any("Serving with grpcio's public API" in line for line in proxy.lines) == (
        kind == "public"
    )


# ---- what calls leave


def calls() -> list[CoreCall]:
    gc.collect()
    return [thing for thing in gc.get_objects() if type(thing) is CoreCall]


def upload(session: int, handle: int, requests: Iterator[bytes], channel: grpc.Channel) -> Any:
    header = proxy_pb2.GrpcHostBufferStoreMetadata(
        session_id=session, handle=handle, buffer_size=1 << 20
    )
    store: Any = channel.stream_unary(f"/{ifrt.SERVICE}/HostBufferStore")
    return store.future(
        requests, metadata=[(ifrt.HOST_BUFFER_METADATA, header.SerializeToString())]
    )


def test_calls_that_are_broken_off_leave_nothing(proxy: LocalProxy, connect: MakeClient) -> None:
    client = connect(proxy.address)
    release = threading.Event()

    def part(number: int) -> Iterator[bytes]:
        for _ in range(number % 4):
            yield proxy_pb2.GrpcHostBufferStoreRequest(data=bytes(1000)).SerializeToString()
        release.wait(DEADLINE_S)

    session = client.session_id
    lookup: Any = client.channel.unary_stream(f"/{ifrt.SERVICE}/HostBufferLookup")
    broken_off = [upload(session, 100 + i, part(i), client.channel) for i in range(40)]
    for i in range(40):
        request = proxy_pb2.GrpcHostBufferLookupRequest(session_id=session, handle=1000 + i)
        broken_off.append(lookup(request.SerializeToString()))
    # Some are being served, some not yet.
    wait_until(lambda: len(calls()) > 1)
    for call in broken_off:
        call.cancel()
    release.set()
    wait_until(lambda: len(calls()) == 1)
    assert proxy.service.host_memory.held == 0
    np.testing.assert_array_equal(client.fetch(client.put(FOUR, single(0))), FOUR)


def test_a_server_that_stops_ends_its_calls(make_proxy: MakeProxy, connect: MakeClient) -> None:
    proxy = make_proxy()
    client = connect(proxy.address)
    release = threading.Event()

    def nothing() -> Iterator[bytes]:
        release.wait(DEADLINE_S)
        yield from ()

    under_way = upload(client.session_id, 1, nothing(), client.channel)
    wait_until(lambda: len(calls()) == 2)
    proxy.transport.stop()
    proxy.transport.stop()
    assert client.status()[0] in {grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE}
    assert under_way.exception(DEADLINE_S) is not None
    release.set()
    wait_until(lambda: not calls())
    assert not proxy.service.sessions


def test_methods_that_there_are_not(proxy: LocalProxy, connect: MakeClient) -> None:
    client = connect(proxy.address)
    unknown: Any = client.channel.unary_unary(f"/{ifrt.SERVICE}/Unheard")
    with pytest.raises(grpc.RpcError) as raised:
        unknown(b"", timeout=DEADLINE_S)
    assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED
    empty: Any = client.channel.stream_unary(f"/{ifrt.SERVICE}/GetVersion")
    with pytest.raises(grpc.RpcError) as raised:
        empty(iter(()), timeout=DEADLINE_S)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    np.testing.assert_array_equal(client.fetch(client.put(FOUR, single(0))), FOUR)


class Relay:
    """Connections to a proxy's socket, whose answers stand still until `flow` is set."""

    def __init__(self, path: Path, target: str) -> None:
        self.address = f"unix:{path}"
        self.flow = threading.Event()
        self._target = target.removeprefix("unix:")
        self._sockets = [socket.socket(socket.AF_UNIX)]
        self._sockets[0].bind(str(path))
        self._sockets[0].listen()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        self.flow.set()
        for end in self._sockets:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for end in self._sockets:
            end.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            near, _ = self._sockets[0].accept()
            far = socket.socket(socket.AF_UNIX)
            far.connect(self._target)
            self._sockets += [near, far]
            there = threading.Thread(target=self._pump, args=(near, far, None))
            back = threading.Thread(target=self._pump, args=(far, near, self.flow))
            self._threads += [there, back]
            there.start()
            back.start()

    @staticmethod
    def _pump(source: socket.socket, sink: socket.socket, flow: threading.Event | None) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if flow is not None:
                    flow.wait()
                sink.sendall(data)


def test_a_client_may_take_long_to_read_the_last_of_a_call(
    make_proxy: MakeProxy, connect: MakeClient, own_directories: Path
) -> None:
    proxy = make_proxy()
    relay = Relay(own_directories / "relay", proxy.address)
    with contextlib.ExitStack() as stack:
        stack.callback(relay.close)
        relay.flow.set()
        client = connect(relay.address)
        value = np.arange(15_000, dtype=np.float32)
        pending, buffer = client.begin_fetch(client.put(value, single(0)))
        pending.result()
        request = proxy_pb2.GrpcHostBufferLookupRequest(session_id=client.session_id, handle=buffer)
        lookup: Any = client.channel.unary_unary(f"/{ifrt.SERVICE}/HostBufferLookup")
        relay.flow.clear()
        under_way = [lookup.future(request.SerializeToString()) for _ in range(200)]
        # All are answered as far as the connection takes it, and their threads are free.
        transfers = proxy.transport._calls.transfers
        wait_until(lambda: len(calls()) > 100 and not transfers._under_way)
        wait_until(lambda: len(transfers.pool._idle) == len(transfers.pool._running))
        other = connect(proxy.address)
        np.testing.assert_array_equal(other.fetch(other.put(FOUR, single(0))), FOUR)
        relay.flow.set()
        for call in under_way:
            answer = proxy_pb2.GrpcHostBufferLookupResponse.FromString(call.result(DEADLINE_S))
            assert answer.data == value.tobytes()
        wait_until(lambda: len(calls()) == 2)
        client.close()


# ---- a server on its own


@pytest.fixture
def serve() -> Iterator[Callable[[Callable[[CoreCall], bytes | None]], Any]]:
    """Serves one method; returns a call of it."""
    with contextlib.ExitStack() as stack:

        def start(behave: Callable[[CoreCall], bytes | None]) -> Any:
            pool = CallThreads(2, "one")
            stack.callback(pool.shutdown)
            server = CoreServer((), {"/x/One": Route(pool, behave)}, pool)
            stack.callback(server.stop)
            port = server.add_insecure_port("127.0.0.1:0")
            server.start()
            channel = stack.enter_context(
                grpc.insecure_channel(f"127.0.0.1:{port}", [("grpc.enable_http_proxy", 0)])
            )
            return channel.unary_unary("/x/One")

        yield start


def failure_of(call: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as raised:
        call(b"", timeout=DEADLINE_S)
    code: grpc.StatusCode = raised.value.code()
    return code


def refused_by_core(call: CoreCall) -> None:
    call.receive_soon()
    call.receive_soon()


def with_a_text_that_is_none(_call: CoreCall) -> None:
    raise StatusError(Code.ABORTED, "\ud800")


@pytest.mark.parametrize(
    ("behave", "code"),
    [
        (refused_by_core, grpc.StatusCode.INTERNAL),
        (with_a_text_that_is_none, grpc.StatusCode.ABORTED),
    ],
)
def test_a_call_that_goes_wrong_is_ended_and_frees_its_thread(
    serve: Callable[..., Any], behave: Callable[[CoreCall], None], code: grpc.StatusCode
) -> None:
    call = serve(behave)
    for _ in range(5):
        assert failure_of(call) is code
    wait_until(lambda: not calls())


def test_a_call_that_cannot_be_ended_is_cancelled(
    serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    call = serve(lambda _call: b"well")
    with monkeypatch.context() as patch:
        patch.setattr(CoreCall, "end", ended)
        assert failure_of(call) is grpc.StatusCode.CANCELLED
    assert call(b"", timeout=DEADLINE_S) == b"well"
    wait_until(lambda: not calls())


def test_a_call_that_cannot_be_taken_is_not_the_last(
    serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    call = serve(lambda _call: b"well")
    dispatch = CoreServer._dispatch
    failed = threading.Event()

    def fail_once(server: CoreServer, event: Any, events: Any) -> None:
        if not failed.is_set():
            failed.set()
            raise MemoryError
        dispatch(server, event, events)

    monkeypatch.setattr(CoreServer, "_dispatch", fail_once)
    lost = call.future(b"", timeout=DEADLINE_S)
    assert failed.wait(DEADLINE_S)
    assert call(b"", timeout=DEADLINE_S) == b"well"
    lost.cancel()


def test_a_failure_that_comes_after_the_message_ends_no_other_wait(
    serve: Callable[..., Any],
) -> None:
    order: list[str] = []

    def wake(call: CoreCall) -> None:
        order.append("woken")
        call.wake()

    def behave(call: CoreCall) -> bytes:
        call.receive()
        # As the watch over late requests does that finds one late which comes just then.
        call.fail(StatusError(Code.DEADLINE_EXCEEDED, "the request is late"))
        waker = threading.Timer(0.2, wake, (call,))
        waker.start()
        call.wait(DEADLINE_S)
        order.append("waited")
        waker.join()
        return b"well"

    assert serve(behave)(b"", timeout=DEADLINE_S) == b"well"
    assert order == ["woken", "waited"]


def test_a_call_that_cannot_even_be_turned_away_does_not_count(
    serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    call = serve(lambda _call: b"well")
    servers: list[CoreServer] = []

    def no_thread(*_arguments: Any) -> None:
        raise RuntimeError("can't start new thread")

    def reject(server: CoreServer, *_arguments: Any) -> None:
        servers.append(server)
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(CallThreads, "submit", no_thread)
        patch.setattr(CoreServer, "_reject", reject)
        lost = call.future(b"", timeout=DEADLINE_S)
        wait_until(lambda: bool(servers))
    wait_until(lambda: not servers[0]._open)
    assert call(b"", timeout=DEADLINE_S) == b"well"
    lost.cancel()


# ---- threads for calls


@pytest.fixture
def two_threads() -> Iterator[CallThreads]:
    """An executor whose threads have ended at the test's end."""
    threads = CallThreads(2, "two")
    yield threads
    threads.shutdown(cancel_futures=True)
    assert not [t for t in threading.enumerate() if t.name.startswith("two_")]


def test_calls_beyond_the_threads_wait(two_threads: CallThreads) -> None:
    release = threading.Event()
    first = [two_threads.submit(release.wait, DEADLINE_S) for _ in range(2)]
    third = two_threads.submit(threading.current_thread)
    assert two_threads.waiting == 1
    release.set()
    assert all(future.result(DEADLINE_S) for future in first)
    assert third.result(DEADLINE_S).name.startswith("two_")
    wait_until(lambda: two_threads.waiting == 0)
    # One that is idle takes what comes.
    assert two_threads.submit(threading.current_thread).result(DEADLINE_S).name.startswith("two_")


def test_what_fails_is_told_and_the_thread_goes_on(two_threads: CallThreads) -> None:
    with pytest.raises(ZeroDivisionError):
        two_threads.submit(lambda: 1 // 0).result(DEADLINE_S)
    assert two_threads.submit(lambda: 2).result(DEADLINE_S) == 2


def test_what_no_thread_could_be_had_for_is_not_kept(
    two_threads: CallThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            two_threads.submit(seen.append, "refused")
    for name in ("a", "b", "c"):
        two_threads.submit(seen.append, name).result(DEADLINE_S)
    assert seen == ["a", "b", "c"]


def test_what_waits_is_cancelled_at_the_end(two_threads: CallThreads) -> None:
    release = threading.Event()
    running = [two_threads.submit(release.wait, DEADLINE_S) for _ in range(2)]
    waiting = two_threads.submit(release.wait, DEADLINE_S)
    two_threads.shutdown(wait=False, cancel_futures=True)
    assert waiting.cancelled()
    with pytest.raises(RuntimeError, match="no more calls"):
        two_threads.submit(release.wait)
    release.set()
    assert futures.wait(running, DEADLINE_S).not_done == set()
