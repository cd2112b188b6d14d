"""Clients that do not read or send: what they hold up, and for how long."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any, Self

import grpc
import jaxlib.version
import numpy as np
import pytest

from harness.processes import DEADLINE_S
from harness.proxy.raw import F32, RawClient, single
from shared_pathways_service.api.jax_releases import newest_served
from shared_pathways_service.patience.factor import Timeout
from shared_pathways_service.protocol import ifrt
from shared_pathways_service.protocol.ifrt import proxy_pb2
from shared_pathways_service.servers.devices.status_errors import StatusError
from shared_pathways_service.servers.proxy.limits import Limits
from shared_pathways_service.servers.proxy.session import buffer_streams
from shared_pathways_service.servers.proxy.session.answers import QueuedAnswers
from shared_pathways_service.servers.proxy.session.buffers import HostBuffer
from shared_pathways_service.servers.proxy.transport import transfers
from tests.servers.proxy import transports
from tests.servers.proxy.conftest import MakeClient, MakeProxy, wait_until
from tests.servers.proxy.session.counting import counters
from tests.servers.proxy.session.limited import FOUR, begin_lookup, limited, live

transport = transports.both


def test_stalled_transfers_delay_others_only_for_a_while(
    make_proxy: MakeProxy, connect: MakeClient
) -> None:
    proxy = make_proxy(limits=Limits(transfers=4, stalled_transfer=Timeout(1.0)))
    stopped, other = connect(proxy.address), connect(proxy.address)
    array = stopped.put(np.zeros(4 << 20, np.float32), single(0))
    pending, buffer = stopped.begin_fetch(array)
    pending.result()
    upload: Any = stopped.channel.stream_unary(f"/{ifrt.SERVICE}/HostBufferStore")
    resume = threading.Event()

    def nothing() -> Iterator[bytes]:
        resume.wait()
        yield from ()

    def store(handle: int) -> Any:
        header = proxy_pb2.GrpcHostBufferStoreMetadata(
            session_id=stopped.session_id, handle=handle, buffer_size=4
        )
        metadata = [(ifrt.HOST_BUFFER_METADATA, header.SerializeToString())]
        return upload.future(nothing(), metadata=metadata)

    under_way = proxy.transport.transfers._under_way
    calls = [store(1001), store(1002), store(1003)]
    wait_until(lambda: len(under_way) == 3)
    # (Last, so that it is not ended alone: the client learns of its end with the data.)
    calls.append(begin_lookup(stopped, buffer))
    wait_until(lambda: len(under_way) == 4)
    # All four threads are taken by transfers that stand still: this one waits for their end.
    np.testing.assert_array_equal(other.fetch(other.put(FOUR, single(0))), FOUR)
    wait_until(lambda: any(call.done() for call in calls))
    assert {call.code() for call in calls if call.done()} == {grpc.StatusCode.CANCELLED}
    resume.set()
    # The session itself lives.
    np.testing.assert_array_equal(stopped.fetch(stopped.put(FOUR, single(0))), FOUR)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What lookups do, which wait for far longer than a test."""
    seen: list[str] = []
    wait_for = buffer_streams.wait_for

    def wait_and_tell(*arguments: Any) -> HostBuffer:
        seen.append("waits")
        try:
            return wait_for(*arguments)
        finally:
            seen.append("ends")

    monkeypatch.setattr(buffer_streams, "wait_for", wait_and_tell)
    monkeypatch.setenv("SPS_PATIENCE", "10")
    return seen


def test_pending_lookups_delay_others_only_for_a_while(
    make_proxy: MakeProxy, connect: MakeClient, waits: list[str]
) -> None:
    proxy = make_proxy(limits=Limits(transfers=2, stalled_transfer=Timeout(1.0)))
    waiting, other = connect(proxy.address), connect(proxy.address)
    calls = [begin_lookup(waiting, handle) for handle in (9001, 9002)]
    wait_until(lambda: waits == ["waits"] * 2)
    np.testing.assert_array_equal(other.fetch(other.put(FOUR, single(0))), FOUR)
    # (Of both, where they began within the same moment.)
    wait_until(lambda: any(call.done() for call in calls))
    assert {call.code() for call in calls if call.done()} == {grpc.StatusCode.CANCELLED}


def test_a_lookup_ends_with_its_call(
    make_proxy: MakeProxy, connect: MakeClient, waits: list[str]
) -> None:
    client = connect(make_proxy().address)
    call = begin_lookup(client, 9001)
    wait_until(lambda: waits == ["waits"])
    call.cancel()
    wait_until(lambda: waits == ["waits", "ends"])


def test_a_transfer_is_ended_once(capfd: pytest.CaptureFixture[str]) -> None:
    under_way = transfers.Transfers(1, Timeout(0.1))
    release = threading.Event()
    work = [under_way.pool.submit(release.wait), under_way.pool.submit(release.wait)]
    told: list[str] = []
    with under_way.begin(lambda: told.append("first")):
        wait_until(lambda: told == ["first"])
        # The watch has looked at the first several times more when it tells the second.
        with under_way.begin(lambda: told.append("second")):
            wait_until(lambda: len(told) > 1)
    release.set()
    futures.wait(work)
    under_way.close()
    assert told == ["first", "second"]
    assert len(capfd.readouterr().err.splitlines()) == 2


# ---- requests, and clients that do not read


class SilentClient:
    """A session that sends requests and reads no answer until it is told to."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.insecure_channel(address)
        metadata = proxy_pb2.GrpcIfrtSessionMetadata()
        metadata.version.protocol_version = ifrt.PROTOCOL_MAX
        metadata.version.ifrt_serdes_version_number = newest_served(jaxlib.version.__version__)
        self.sent = 0
        self._stop = threading.Event()
        self._more = threading.Semaphore(0)
        method: Any = self.channel.stream_stream(f"/{ifrt.SERVICE}/IfrtSession")
        self.stream = method(
            self._requests(), metadata=[(ifrt.SESSION_METADATA, metadata.SerializeToString())]
        )
        self._make: Callable[[int], proxy_pb2.IfrtRequest] = echoed_request

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stop.set()
        self._more.release()
        self.stream.cancel()
        self.channel.close()

    def send(self, count: int, make: Callable[[int], proxy_pb2.IfrtRequest]) -> None:
        self._make = make
        self._more.release(count)

    def _requests(self) -> Iterator[bytes]:
        while True:
            self._more.acquire()
            if self._stop.is_set():
                return
            self.sent += 1
            request = self._make(self.sent)
            request.request_metadata.op_id = self.sent
            yield request.SerializeToString()


def echoed_request(_number: int) -> proxy_pb2.IfrtRequest:
    """A request whose answer is as long as itself: it names what it asked for in vain."""
    request = proxy_pb2.IfrtRequest()
    wanted = request.make_array_from_host_buffer_request
    wanted.dtype.kind = F32
    wanted.sharding.serialized_sharding.type_name = "x" * 3000
    return request


def test_a_client_that_never_reads_is_throttled(make_proxy: MakeProxy, connect: MakeClient) -> None:
    proxy = limited(make_proxy, requests=50)
    other = connect(proxy.address)
    with SilentClient(proxy.address) as silent:
        # The first answers fill what HTTP/2 takes.
        silent.send(10_000, echoed_request)
        wait_until(lambda: counters(proxy)["sps_proxy_held_back_sessions"] == 1)
        # (One more is the other session's, whose last answer is under way.)
        assert counters(proxy)["sps_proxy_unanswered_requests"] <= 51
        # Nobody else is.
        np.testing.assert_array_equal(other.fetch(other.put(FOUR, single(0))), FOUR)
        # Once it reads, all is answered, in order.
        for seen, raw in zip(range(1, 9_000), silent.stream, strict=False):
            assert proxy_pb2.IfrtResponse.FromString(raw).response_metadata.op_id == seen
    wait_until(lambda: len(proxy.service.sessions) == 1)


def test_a_throttled_client_that_disconnects_leaves_nothing(make_proxy: MakeProxy) -> None:
    proxy = make_proxy(memory_limit=1 << 30, limits=Limits(requests=5))

    def wait_in_vain(number: int) -> proxy_pb2.IfrtRequest:
        request = proxy_pb2.IfrtRequest()
        if number == 1:
            make = request.make_array_from_host_buffer_request
            make.dtype.kind = F32
            make.shape.dims.append(4)
            make.sharding.CopyFrom(single(0))
            make.host_buffer_handle = 7
            make.array_handle = 8
        else:
            request.check_value_ready_request.value_handles.append(8)
        return request

    with SilentClient(proxy.address) as silent:
        silent.send(100, wait_in_vain)
        wait_until(lambda: counters(proxy)["sps_proxy_held_back_sessions"] == 1)
        left = live(proxy)
        assert all(left[kind] for kind in ("Session", "Value", "Operation", "Answers")), left
    wait_until(lambda: not proxy.service.sessions)
    wait_until(lambda: not any(live(proxy).values()))
    with RawClient(proxy.address) as other:
        np.testing.assert_array_equal(other.fetch(other.put(FOUR, single(0))), FOUR)


def test_large_answers_are_bounded_by_their_bytes() -> None:
    answers = QueuedAnswers(Limits(unread_bytes=100_000))
    send = answers.sender(answers.admit(100))
    send(b"\0" * 90_000)
    with pytest.raises(StatusError, match=r"needs 20000 bytes.* is 100000 bytes, of which 90000"):
        send(b"\0" * 20_000)
    send(b"small")
    # A single one always has its way.
    assert answers.next() == b"\0" * 90_000
    assert answers.next() == b"small"
    send(b"\0" * 300_000)
    assert answers.next() == b"\0" * 300_000


def test_the_reader_waits_for_room_and_no_longer() -> None:
    answers = QueuedAnswers(Limits(requests=4))
    # A long request counts for several, and is let in where nothing else is.
    units = answers.admit(1 << 20)
    assert units == 17
    entered = threading.Event()

    def enter() -> None:
        answers.admit(10)
        entered.set()

    thread = threading.Thread(target=enter)
    thread.start()
    wait_until(lambda: answers.held_back)
    answers.sender(units)(b"answer")
    assert answers.next() == b"answer"
    assert not entered.is_set()
    # Only now has gRPC taken it.
    answers.end(None)
    assert answers.next() is None
    assert entered.wait(DEADLINE_S)
    thread.join()


def test_the_end_frees_a_waiting_reader() -> None:
    answers = QueuedAnswers(Limits(requests=1))
    answers.admit(1)
    thread = threading.Thread(target=answers.admit, args=(1,))
    thread.start()
    wait_until(lambda: answers.held_back)
    answers.close()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()


def test_a_slow_download_counts_against_its_client(
    make_proxy: MakeProxy, connect: MakeClient
) -> None:
    proxy = limited(make_proxy, host_memory_bytes=1 << 30)
    slow, other = connect(proxy.address), connect(proxy.address)
    nbytes = 256 << 20
    array = slow.put(np.zeros(nbytes // 4, np.float32), single(0))
    pending, buffer = slow.begin_fetch(array)
    pending.result()
    wait_until(lambda: gc.collect() is not None and proxy.service.host_memory.held < nbytes + 4096)
    stream = begin_lookup(slow, buffer)
    received = len(next(stream))
    # The buffer, one message and gRPC's copy of it: no more, however long it takes.
    assert proxy.service.host_memory.held <= nbytes + (32 << 20) + 4096
    np.testing.assert_array_equal(other.fetch(other.put(FOUR, single(0))), FOUR)
    received += sum(map(len, stream))
    assert nbytes <= received < nbytes + 1000
    slow.unary(
        "HostBufferDelete",
        proxy_pb2.GrpcHostBufferDeleteRequest(session_id=slow.session_id, handle=buffer),
    )
    wait_until(lambda: proxy.service.host_memory.held == 0)


def test_a_download_of_a_deleted_buffer_still_counts(
    make_proxy: MakeProxy, connect: MakeClient
) -> None:
    proxy = limited(make_proxy, host_memory_bytes=1 << 30)
    client = connect(proxy.address)
    nbytes = 64 << 20
    array = client.put(np.zeros(nbytes // 4, np.float32), single(0))
    pending, buffer = client.begin_fetch(array)
    pending.result()
    stream = begin_lookup(client, buffer)
    received = len(next(stream))
    delete = proxy_pb2.GrpcHostBufferDeleteRequest(session_id=client.session_id, handle=buffer)
    client.unary("HostBufferDelete", delete)
    assert proxy.service.host_memory.held >= nbytes
    received += sum(map(len, stream))
    assert received > nbytes
    wait_until(lambda: proxy.service.host_memory.held == 0)
