"""Sessions: the negotiated version, tokens, isolation from each other, and their end."""

from __future__ import annotations

import gc
import socket
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import jaxlib.version
import numpy as np
import pytest

from harness.processes import DEADLINE_S
from harness.proxy.programs import DOUBLE
from harness.proxy.raw import F32, Failed, RawClient, single, split
from shared_pathways_service.api.jax_releases import newest_served
from shared_pathways_service.protocol import ifrt
from shared_pathways_service.protocol.ifrt import proxy_pb2
from tests.servers.proxy import transports
from tests.servers.proxy.conftest import LocalProxy, MakeClient, MakeProxy, wait_until

transport = transports.both

NEWEST = newest_served(jaxlib.version.__version__)
FOUR = np.arange(4, dtype=np.float32)


def get_version(
    proxy: LocalProxy, low: int, high: int, serdes: tuple[int, int] = (0, NEWEST)
) -> proxy_pb2.IfrtProxyVersion:
    request = proxy_pb2.GrpcGetVersionRequest()
    request.min_version.protocol_version = low
    request.max_version.protocol_version = high
    request.min_version.ifrt_serdes_version_number = serdes[0]
    request.max_version.ifrt_serdes_version_number = serdes[1]
    with grpc.insecure_channel(proxy.address) as channel:
        call: Any = channel.unary_unary(f"/{ifrt.SERVICE}/GetVersion")
        raw = call(request.SerializeToString(), timeout=DEADLINE_S)
    return proxy_pb2.GrpcGetVersionResponse.FromString(raw).version


@pytest.mark.parametrize(
    ("low", "high", "agreed"), [(16, 25, 25), (1, 16, 16), (25, 99, 25), (18, 20, 20)]
)
def test_the_newest_common_version(proxy: LocalProxy, low: int, high: int, agreed: int) -> None:
    version = get_version(proxy, low, high, (0, 9))
    assert (version.protocol_version, version.ifrt_serdes_version_number) == (agreed, NEWEST)


@pytest.mark.parametrize(
    ("low", "high", "agreed"), [(0, 0, 0), (0, 1, 1), (1, NEWEST, NEWEST), (1, 9, NEWEST)]
)
def test_the_newest_common_version_of_serialised_values(
    proxy: LocalProxy, low: int, high: int, agreed: int
) -> None:
    assert get_version(proxy, 16, 25, (low, high)).ifrt_serdes_version_number == agreed


@pytest.mark.parametrize(
    ("low", "high", "serdes"),
    [(1, 15, (3, 3)), (26, 30, (3, 3)), (16, 25, (7, 8))],
)
def test_no_common_version_names_both_ranges(
    proxy: LocalProxy, low: int, high: int, serdes: tuple[int, int]
) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        get_version(proxy, low, high, serdes)
    assert raised.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert f"protocol {low} to {high}" in (raised.value.details() or "")
    assert f"protocol 16 to 25 and serdes 0 to {NEWEST}" in (raised.value.details() or "")


@pytest.mark.parametrize("version", [16, 17, 18, 20, 22, 24, 25])
def test_every_version_computes(proxy: LocalProxy, connect: MakeClient, version: int) -> None:
    client = connect(proxy.address, version=version)
    array = client.put(FOUR, single(1))
    program = client.compile(DOUBLE, [1])
    for _ in range(2):
        response = client.call(
            "loaded_executable_execute", loaded_executable_handle=program, args_handles=[array]
        )
        # Who names no handles is told of the outputs every time.
        (output,) = response.outputs
        assert (output.dtype.kind, list(output.shape.dims)) == (F32, [4])
        assert output.array_handle >= 1 << 63
        np.testing.assert_array_equal(client.fetch(output.array_handle), 2 * FOUR)


def test_result_types_are_sent_once_if_the_client_names_handles(client: RawClient) -> None:
    array = client.put(FOUR, single(0))
    program = client.compile(DOUBLE, [0])
    told = [
        len(
            client.call(
                "loaded_executable_execute",
                loaded_executable_handle=program,
                args_handles=[array],
                result_array_handle=[handle],
            ).outputs
        )
        for handle in (700, 701, 702)
    ]
    assert told == [1, 0, 0]


def test_a_session_of_an_unknown_version_is_refused(proxy: LocalProxy, connect: MakeClient) -> None:
    code, details = connect(proxy.address, version=26, send_init=False).status()
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert "26" in details


@pytest.mark.parametrize(
    ("shown", "code"),
    [
        ({}, grpc.StatusCode.UNAUTHENTICATED),
        ({"sps_token": b"wrong"}, grpc.StatusCode.PERMISSION_DENIED),
        ({"sps_token": b"secret "}, grpc.StatusCode.PERMISSION_DENIED),
    ],
)
def test_a_session_without_the_token_is_refused(
    make_proxy: MakeProxy,
    connect: MakeClient,
    shown: dict[str, bytes],
    code: grpc.StatusCode,
) -> None:
    proxy = make_proxy(token="secret")
    client = connect(proxy.address, initialization_data=shown, send_init=False)
    assert client.status()[0] is code
    assert "secret" not in client.status()[1]
    # The version is no secret: a probe asks for it.
    assert get_version(proxy, 16, 25).protocol_version == 25


def test_a_session_with_the_token_is_accepted(make_proxy: MakeProxy, connect: MakeClient) -> None:
    proxy = make_proxy(token="secret")
    client = connect(proxy.address, initialization_data={"sps_token": b"secret"})
    np.testing.assert_array_equal(client.fetch(client.put(FOUR, single(0))), FOUR)


def test_another_jaxlib_is_a_warning(
    proxy: LocalProxy, connect: MakeClient, capfd: pytest.CaptureFixture[str]
) -> None:
    connect(proxy.address, initialization_data={"sps_jaxlib_version": b"0.0.1\nforged"})
    (line,) = [ln for ln in capfd.readouterr().err.splitlines() if "0.0.1" in ln]
    assert line.startswith("W")
    assert "forged" in line


def test_sessions_do_not_see_each_others_handles(proxy: LocalProxy, connect: MakeClient) -> None:
    first, second = connect(proxy.address), connect(proxy.address)
    assert first.session_id != second.session_id
    assert 0 < first.session_id < 1 << 63
    array = first.put(FOUR, single(0))
    with pytest.raises(Failed, match="Unknown"):
        second.fetch(array)
    # The same handle stands for something else there.
    second.call(
        "copy_arrays", array_handles=[second.put(FOUR + 1, single(0))], result_handles=[array]
    )
    np.testing.assert_array_equal(first.fetch(array), FOUR)
    np.testing.assert_array_equal(second.fetch(array), FOUR + 1)


def test_host_buffers_need_a_live_sessions_id(proxy: LocalProxy, connect: MakeClient) -> None:
    client, stranger = connect(proxy.address), connect(proxy.address)
    stranger.session_id = client.session_id + 1
    for attempt in (
        lambda: stranger.store(1, b"1234"),
        lambda: stranger.lookup(1),
        lambda: stranger.unary(
            "HostBufferDelete",
            proxy_pb2.GrpcHostBufferDeleteRequest(session_id=stranger.session_id, handle=1),
        ),
    ):
        with pytest.raises(grpc.RpcError) as raised:
            attempt()
        assert raised.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize(
    ("data", "size"), [(b"12345678", 4), (b"12", 4), (b"", 4), (b"1234", -1), (b"12", 1 << 60)]
)
def test_host_buffers_of_a_wrong_size_are_refused(
    client: RawClient, data: bytes, size: int
) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        client.store(7, data, size=size)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    # Who waits for the buffer hears of it.
    client.make(8, 7, [1], single(0))
    with pytest.raises(Failed, match="host buffer"):
        client.ready(8)


def test_waiters_for_an_aborted_upload_fail(client: RawClient) -> None:
    client.make(8, 7, [4], single(0))
    wait = client.begin_ready(8)
    header = proxy_pb2.GrpcHostBufferStoreMetadata(
        session_id=client.session_id, handle=7, buffer_size=16
    )
    sent = threading.Event()
    rest = threading.Event()

    def messages() -> Iterator[bytes]:
        yield proxy_pb2.GrpcHostBufferStoreRequest(data=b"1234").SerializeToString()
        sent.set()
        rest.wait()

    method: Any = client.channel.stream_unary(f"/{ifrt.SERVICE}/HostBufferStore")
    upload = method.future(
        messages(), metadata=[(ifrt.HOST_BUFFER_METADATA, header.SerializeToString())]
    )
    assert sent.wait(DEADLINE_S)
    upload.cancel()
    rest.set()
    # gRPC may show the server a cancelled stream as an error, or as one that just ends early.
    with pytest.raises(Failed, match=r"was broken off|of 16 bytes that ended"):
        wait.result()


def test_the_end_of_a_stream_frees_the_sessions_memory(
    make_proxy: MakeProxy, connect: MakeClient
) -> None:
    proxy = make_proxy(memory_limit=1 << 20)
    with RawClient(proxy.address) as client:
        client.put(np.zeros(1024, np.float32), split(range(4)))
        program = client.compile(DOUBLE, [5])
        client.ready(*client.execute(program, [client.put(FOUR, single(5))]))
        assert [proxy.engine.memory.held(i) for i in (0, 5, 6)] == [1024, 32, 0]
    memory = proxy.engine.memory
    wait_until(lambda: gc.collect() is not None and not any(memory.held(i) for i in range(8)))
    # Others go on.
    other = connect(proxy.address)
    np.testing.assert_array_equal(other.fetch(other.put(FOUR, single(0))), FOUR)


def test_random_bytes_end_only_their_own_session(proxy: LocalProxy, connect: MakeClient) -> None:
    good, bad = connect(proxy.address), connect(proxy.address)
    array = good.put(FOUR, single(0))
    bad.send_raw(b"\xff" * 100)
    assert bad.status()[0] is grpc.StatusCode.INVALID_ARGUMENT
    np.testing.assert_array_equal(good.fetch(array), FOUR)


def test_an_unknown_request_is_answered(client: RawClient) -> None:
    op_id = 1 << 50
    request = proxy_pb2.IfrtRequest()
    request.request_metadata.op_id = op_id
    # Field 100 of a newer protocol.
    client.send_raw(request.SerializeToString() + b"\xa2\x06\x00")
    wait_until(lambda: op_id in client.answered or client.ended.is_set())


def test_random_bytes_on_the_socket_end_only_that_connection(
    proxy: LocalProxy, connect: MakeClient
) -> None:
    client = connect(proxy.address)
    for data in (b"GET / HTTP/1.0\r\n\r\n", bytes(range(256)) * 64, b"\x16\x03\x01" + b"\0" * 500):
        with socket.socket(socket.AF_UNIX) as raw:
            raw.settimeout(DEADLINE_S)
            raw.connect(proxy.address.removeprefix("unix:"))
            try:
                raw.sendall(data)
                raw.shutdown(socket.SHUT_WR)
                while raw.recv(4096):
                    pass
            except ConnectionError:
                pass
    np.testing.assert_array_equal(client.fetch(client.put(FOUR, single(0))), FOUR)


def test_a_client_before_its_placement_waits_for_it(proxy: LocalProxy, connect: MakeClient) -> None:
    class Late(threading.Event):
        """Is set as soon as it is waited for, and then the slices are placed."""

        def wait(self, timeout: float | None = None) -> bool:
            for index in range(2):
                assert proxy.slices.place(index, 10 + index, f"slice-{index}")
            self.set()
            return super().wait(timeout)

    for index in range(2):
        proxy.lose(index)
    proxy.slices.granted = Late()
    client = connect(proxy.address)
    np.testing.assert_array_equal(client.fetch(client.put(FOUR, single(0))), FOUR)
