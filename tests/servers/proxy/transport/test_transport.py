"""Which gRPC server serves a proxy, and that calls leave nothing behind, however they end.

Behaviour that clients rely on with both servers: `test_sessions` and `test_limits`."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from harness.processes import DEADLINE_S
from harness.proxy.raw import single
from shared_pathways_service.protocol import ifrt
from shared_pathways_service.protocol.ifrt import proxy_pb2
from shared_pathways_service.servers.grpc_core import core_check
from shared_pathways_service.servers.grpc_core.core_call import CoreCall
from tests.servers.proxy.conftest import LocalProxy, MakeClient, MakeProxy, StartProxy, wait_until
from tests.servers.proxy.transport.calls import calls, ended, lost

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


@pytest.mark.parametrize(
    ("name", "instead", "fault"),
    [
        ("send", lost, "messages are lost"),
        ("wait", ended, "StatusCode.INTERNAL"),
        ("begin", ended, "takes 4 positional arguments"),
        ("receive_soon", ended, "takes 4 positional arguments"),
    ],
)
def test_an_unfit_core_of_grpcio_is_not_used(
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
        assert fault in core_check.fault()
        proxy = make_proxy(transport="auto")
    client = connect(proxy.address)
    np.testing.assert_array_equal(client.fetch(client.put(FOUR, single(0))), FOUR)
    assert "Not using the core of grpcio" in capfd.readouterr().err
    # The session's is none.
    wait_until(lambda: not calls())


def test_the_core_is_used_where_it_is_fit(
    make_proxy: MakeProxy, connect: MakeClient, capfd: pytest.CaptureFixture[str]
) -> None:
    client = connect(make_proxy(transport="auto").address)
    np.testing.assert_array_equal(client.fetch(client.put(FOUR, single(0))), FOUR)
    assert "Not using the core of grpcio" not in capfd.readouterr().err
    assert calls()


@pytest.mark.parametrize("kind", ["auto", "public"])
def test_a_flag_chooses_the_server(start_proxy: StartProxy, connect: MakeClient, kind: str) -> None:
    proxy = start_proxy(f"--transport={kind}")
    assert proxy.ready is not None, "\n".join(proxy.lines)
    client = connect(f"unix:{proxy.ready['socket']}")
    np.testing.assert_array_equal(client.fetch(client.put(FOUR, single(0))), FOUR)
    assert any("Serving with grpcio's public API" in line for line in proxy.lines) == (
        kind == "public"
    )


def upload(session: int, handle: int, requests: Iterator[bytes], channel: grpc.Channel) -> Any:
    header = proxy_pb2.GrpcHostBufferStoreMetadata(
        session_id=session, handle=handle, buffer_size=1 << 20
    )
    store: Any = channel.stream_unary(f"/{ifrt.SERVICE}/HostBufferStore")
    return store.future(
        requests, metadata=[(ifrt.HOST_BUFFER_METADATA, header.SerializeToString())]
    )


def test_aborted_calls_leave_nothing(proxy: LocalProxy, connect: MakeClient) -> None:
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


def test_unknown_methods_are_refused(proxy: LocalProxy, connect: MakeClient) -> None:
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
        with contextlib.suppress(OSError):
            self._sockets[0].shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        for end in self._sockets[1:]:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads[1:]:
            thread.join()
        for end in self._sockets:
            end.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._sockets[0].accept()
                far = socket.socket(socket.AF_UNIX)
                self._sockets += [near, far]
                far.connect(self._target)
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


def test_a_client_may_read_the_end_of_a_call_slowly(
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
