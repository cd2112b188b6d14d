"""Beyond a limit a request fails, naming need, limit and what is held; the session lives on."""

from __future__ import annotations

import dataclasses
import gc
import mmap
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any, Self

import grpc
import jaxlib.version
import numpy as np
import pytest

from harness.processes import DEADLINE_S, REPOSITORY
from harness.proxy.programs import DOUBLE
from harness.proxy.raw import F32, Failed, RawClient, single, spec
from shared_pathways_service.api.jax_releases import newest_served
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.flags.limits import default_host_memory
from shared_pathways_service.flags.parsing import parse_flags
from shared_pathways_service.protocol import ifrt
from shared_pathways_service.protocol.ifrt import proxy_pb2
from shared_pathways_service.servers.proxy.engine.compiled_program import Program
from shared_pathways_service.servers.proxy.execution.operations import Operation
from shared_pathways_service.servers.proxy.execution.values import Value
from shared_pathways_service.servers.proxy.flags import ProxyServerOptions
from shared_pathways_service.servers.proxy.limits import Limits
from shared_pathways_service.servers.proxy.memory import Charge, HostCharge
from shared_pathways_service.servers.proxy.session import buffer_streams, buffers, service
from shared_pathways_service.servers.proxy.session.answers import Answers, QueuedAnswers
from shared_pathways_service.servers.proxy.session.buffers import HostBuffer
from shared_pathways_service.servers.proxy.session.session import Session
from shared_pathways_service.servers.proxy.status_errors import StatusError
from shared_pathways_service.servers.proxy.transport import transfers
from tests.servers.proxy.conftest import KIND, LocalProxy, MakeClient, MakeProxy
from tests.servers.proxy.session.test_counters import told
from tests.servers.proxy.session.test_sessions import wait_until

EXHAUSTED = 8
FOUR = np.arange(4, dtype=np.float32)


@pytest.fixture(params=["core", "public"])
def transport(request: pytest.FixtureRequest) -> str:
    """Both: what is tested here is what a client is promised, however it is served."""
    kind: str = request.param
    return kind


def limited(make_proxy: MakeProxy, **limits: int) -> LocalProxy:
    return make_proxy(limits=Limits(**limits))


def make_errors(count: int) -> dict[str, Any]:
    """A request for arrays that cost nothing but their handles."""
    return {"array_specs": [spec((1,), single(0))] * count, "error": {"code": 3, "message": "no"}}


def begin_lookup(client: RawClient, handle: int) -> Any:
    request = proxy_pb2.GrpcHostBufferLookupRequest(session_id=client.session_id, handle=handle)
    method: Any = client.channel.unary_stream(f"/{ifrt.SERVICE}/HostBufferLookup")
    return method(request.SerializeToString())


def live(proxy: LocalProxy) -> dict[str, int]:
    """What there is of each kind that a session may leave behind."""
    gc.collect()
    kinds = (Session, Value, Operation, Program, HostBuffer, Charge, HostCharge, Answers)
    found = [type(thing) for thing in gc.get_objects()]
    held = {"device memory": proxy.engine.memory.held(0)}
    return {kind.__name__: sum(issubclass(f, kind) for f in found) for kind in kinds} | held


# ---- flags


def test_each_limit_is_a_flag() -> None:
    flags = [
        f"--virtual_slices={KIND}",
        "--host_memory_limit_bytes=1",
        "--max_handles=2",
        "--max_requests=3",
        "--max_message_bytes=4",
        "--max_sessions=5",
    ]
    assert parse_flags(ProxyServerOptions, flags, {}).limits() == Limits(
        host_memory_bytes=1, handles=2, requests=3, message_bytes=4, sessions=5
    )
    assert parse_flags(ProxyServerOptions, flags[:1], {}).limits() == Limits(
        host_memory_bytes=default_host_memory()
    )
    for wrong in ("--max_handles=0", "--max_sessions=-1", "--host_memory_limit_bytes=x"):
        with pytest.raises(InvalidRequestError) as raised:
            parse_flags(ProxyServerOptions, [flags[0], wrong], {})
        assert raised.value.field == wrong.split("=", maxsplit=1)[0]


def test_each_limit_is_documented() -> None:
    text = (REPOSITORY / "docs" / "isolation.md").read_text()
    for field in dataclasses.fields(ProxyServerOptions):
        if field.name == "max_lifetime_s":
            continue  # told to the resource manager, which sees to it
        if field.name.startswith("max_") or field.name.endswith("memory_limit_bytes"):
            line = f"| `--{field.name}` | `{field.metadata['flag'].env[0]}` | "
            assert line in text
            default = text.split(line)[1].split(" |")[0]
            usual = {str(256 << 20): "256 MiB", "None": "half of", "0": "0: none"}
            expected = usual.get(str(field.default)) or f"{field.default:,}"
            assert default.startswith(expected)


def test_the_usual_host_memory_is_half_of_what_there_is() -> None:
    def absent(path: str) -> str:
        raise FileNotFoundError(path)

    whole = 2 * default_host_memory(absent)
    assert default_host_memory(lambda _path: "max\n") == whole // 2
    assert default_host_memory(lambda _path: f"{whole * 4}\n") == whole // 2
    assert default_host_memory(lambda _path: "2048\n") == 1024


# ---- host memory


def test_host_buffers_beyond_the_limit(make_proxy: MakeProxy, connect: MakeClient) -> None:
    proxy = limited(make_proxy, host_memory_bytes=1 << 20)
    client = connect(proxy.address)
    client.store(1, b"\0" * 600_000)
    # Not the upload fails, which JAX's client takes for the end of its session, but what uses it.
    client.store(2, b"\0" * 600_000)
    client.make(20, 2, [150_000], single(0))
    with pytest.raises(Failed) as failed:
        client.ready(20)
    assert failed.value.code == EXHAUSTED
    assert re.search(
        r"needs 60\d{4} bytes .*\(--host_memory_limit_bytes\) is 1048576 bytes, of which 60\d{4} "
        "are held",
        failed.value.message,
    )
    # Taken by an array, or deleted, a buffer is no host buffer any more.
    client.make(10, 1, [150_000], single(0))
    client.ready(10)
    wait_until(lambda: proxy.service.host_memory.held == 0)
    assert len(client.fetch(10)) == 150_000
    wait_until(lambda: proxy.service.host_memory.held == 0)


def test_downloads_beyond_the_limit(make_proxy: MakeProxy, connect: MakeClient) -> None:
    proxy = limited(make_proxy, host_memory_bytes=100_000)
    client = connect(proxy.address)
    array = client.put(np.zeros(15_000, np.float32), single(0))
    client.ready(array)
    # The thread that took the upload may hold it a moment longer.
    wait_until(lambda: proxy.service.host_memory.held == 0)
    first, _ = client.begin_fetch(array)
    first.result()
    second, _ = client.begin_fetch(array)
    with pytest.raises(Failed, match=r"a host buffer needs 60512 .*host_memory_limit") as raised:
        second.result()
    assert raised.value.code == EXHAUSTED
    np.testing.assert_array_equal(client.fetch(client.put(FOUR, single(0))), FOUR)


def test_buffers_that_are_never_taken_go_with_their_session(
    make_proxy: MakeProxy, connect: MakeClient
) -> None:
    proxy = limited(make_proxy, host_memory_bytes=1 << 20)
    with RawClient(proxy.address) as client:
        client.store(1001, b"\0" * 900_000)
        fetched, _ = client.begin_fetch(client.put(FOUR, single(0)))
        fetched.result()
        assert proxy.service.host_memory.held > 900_000
    wait_until(lambda: proxy.service.host_memory.held == 0)
    other = connect(proxy.address)
    other.store(1, b"\0" * 900_000)


def test_files_that_nobody_took_go_with_their_session(
    make_proxy: MakeProxy, own_directories: Path
) -> None:
    directory = own_directories / "large" / "mine"
    directory.mkdir(parents=True)
    proxy = make_proxy(large_transfer_dir=directory.parent)
    initialization = {"sps_transfer_dir": b"mine"}
    with RawClient(proxy.address, initialization_data=initialization):
        with RawClient(proxy.address, initialization_data=initialization):
            (directory / "lt_1").write_bytes(b"1234")
            (directory / "other").write_bytes(b"")
        wait_until(lambda: len(proxy.service.sessions) == 1)
        # The other session may be about to take it.
        assert (directory / "lt_1").exists()
    wait_until(lambda: not (directory / "lt_1").exists())
    assert (directory / "other").exists()
    (directory / "other").unlink()
    with RawClient(proxy.address, initialization_data=initialization):
        (directory / "lt_1").write_bytes(b"1234")
    wait_until(lambda: not directory.exists())
    # A client that tries again names the same one.
    with RawClient(proxy.address, initialization_data=initialization):
        assert directory.exists()


@pytest.mark.parametrize("kind", ["no memory", "another's file"])
def test_a_file_that_cannot_be_taken_fails_the_array_made_of_it(
    kind: str,
    make_proxy: MakeProxy,
    connect: MakeClient,
    own_directories: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    directory = own_directories / "large" / "mine"
    directory.mkdir(parents=True)
    proxy = make_proxy(large_transfer_dir=directory.parent)
    client = connect(proxy.address, initialization_data={"sps_transfer_dir": b"mine"})
    (directory / "lt_7").write_bytes(bytes(16))

    def refuse(*_args: object, **_kwargs: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    request = proxy_pb2.GrpcHostBufferReadFromDiskRequest()
    request.metadata.session_id = client.session_id
    request.metadata.handle = 7
    request.metadata.buffer_size = 16
    with monkeypatch.context() as patch:
        if kind == "no memory":
            patch.setattr(mmap, "mmap", refuse)
            # As with an upload: the array fails, not the client's session.
            client.unary("HostBufferReadFromDisk", request)
        else:
            patch.setattr(Path, "unlink", refuse)
            with pytest.raises(grpc.RpcError, match="Cannot allocate memory"):
                client.unary("HostBufferReadFromDisk", request)
    client.make(8, 7, [4], single(0))
    with pytest.raises(Failed, match="Cannot allocate memory"):
        client.ready(8)


def test_files_of_a_session_that_begins_while_another_ends_stay(
    make_proxy: MakeProxy,
    connect: MakeClient,
    own_directories: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    directory = own_directories / "large" / "mine"
    directory.mkdir(parents=True)
    proxy = make_proxy(large_transfer_dir=directory.parent)
    initialization = {"sps_transfer_dir": b"mine"}
    opened, removed = threading.Event(), threading.Event()

    def open_and_leave() -> None:
        connect(proxy.address, initialization_data=initialization)
        # (The first one is not among them any more.)
        wait_until(lambda: bool(proxy.service.sessions))
        (directory / "lt_9").write_bytes(b"1234")
        opened.set()

    opens = threading.Thread(target=open_and_leave)

    def remove(found: Path) -> None:
        if not removed.is_set():
            opens.start()
            # For as long as it takes where it can be opened at all.
            opened.wait(0.5)
            buffers.remove_directory(found)
            removed.set()

    monkeypatch.setattr(service, "remove_directory", remove)
    with RawClient(proxy.address, initialization_data=initialization):
        pass
    assert removed.wait(DEADLINE_S)
    opens.join()
    assert (directory / "lt_9").exists()


# ---- handles


def test_handles_beyond_the_limit(make_proxy: MakeProxy, connect: MakeClient) -> None:
    client = connect(limited(make_proxy, handles=10).address)
    program = client.compile(DOUBLE, [0])
    array = client.put(FOUR, single(0))
    held = client.call("make_error_arrays", **make_errors(7)).array_handles
    execute = {"loaded_executable_handle": program, "args_handles": [array]}
    with pytest.raises(Failed) as raised:
        client.call("loaded_executable_execute", result_array_handle=[900], **execute)
    assert raised.value.code == EXHAUSTED
    assert raised.value.message == (
        "a loaded_executable_execute needs handles; the limit (--max_handles) is 10 per session, "
        "of which 8 arrays, 1 programs, 0 executions and 1 futures are held, and 0 for programs "
        "that are being compiled"
    )
    # The error is behind the handle that the request named.
    with pytest.raises(Failed, match="--max_handles"):
        client.ready(900)
    with pytest.raises(Failed, match="a compile needs handles"):
        client.compile(DOUBLE, [1])
    # What is there can be used and dropped, and then there is room again.
    np.testing.assert_array_equal(client.fetch(array), FOUR)
    client.call("destruct_array", array_handle=[*held, 900])
    (doubled,) = client.execute(program, [array])
    np.testing.assert_array_equal(client.fetch(doubled), 2 * FOUR)


def test_who_goes_on_beyond_the_limit_gains_nothing(
    make_proxy: MakeProxy, connect: MakeClient
) -> None:
    proxy = limited(make_proxy, handles=10)
    client = connect(proxy.address)
    (session,) = proxy.service.sessions
    for start in range(1, 200, 4):
        with_errors = make_errors(4) | {"array_handles": range(start, start + 4)}
        pending = client.begin("make_error_arrays", **with_errors)
        if start > 10:
            with pytest.raises(Failed, match="--max_handles"):
                pending.result()
    client.call("destruct_array", array_handle=range(1, 20))
    with pytest.raises(Failed, match="more needs handles"):
        client.call("make_error_arrays", **make_errors(1000))
    for _ in range(100):
        client.begin("delete_array", array_handle=[1])
    with pytest.raises(Failed, match="a deletion needs handles"):
        client.call("delete_array", array_handle=[1])
    assert len(session.arrays) + len(session.futures) <= 40


def test_uploads_that_never_come_are_counted(make_proxy: MakeProxy, connect: MakeClient) -> None:
    proxy = limited(make_proxy, handles=10)
    client = connect(proxy.address)
    for number in range(1, 12):
        client.make(number, 1000 + number, [4], single(0))
        ready = client.begin_ready(number)
        client.call("destruct_array", array_handle=[number])
    with pytest.raises(Failed, match="place to wait for a host buffer") as raised:
        ready.result()
    assert raised.value.code == EXHAUSTED


# ---- messages


def test_a_request_that_is_too_long(
    make_proxy: MakeProxy, connect: MakeClient, capfd: pytest.CaptureFixture[str]
) -> None:
    client = connect(limited(make_proxy, message_bytes=100_000).address)
    with pytest.raises(Failed, match=r"needs 151\d{3} bytes in one message; the limit") as raised:
        client.compile(DOUBLE + " " * 150_000, [0])
    assert raised.value.code == EXHAUSTED
    assert "(--max_message_bytes) is 100000 bytes" in raised.value.message
    program = client.compile(DOUBLE, [0])
    (doubled,) = client.execute(program, [client.put(FOUR, single(0))])
    np.testing.assert_array_equal(client.fetch(doubled), 2 * FOUR)
    # One that is far too long is not even read.
    other = client.begin("compile", program={"data": b"\0" * (5 << 20)})
    assert client.status()[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
    with pytest.raises(grpc.RpcError):
        other.result()
    log = ""

    def logged() -> bool:
        nonlocal log
        log += capfd.readouterr().err
        return "sent more than 4194304 bytes in one message (--max_message_bytes)" in log

    wait_until(logged)


def test_a_call_that_shows_no_token_is_short(make_proxy: MakeProxy) -> None:
    proxy = make_proxy(token="secret")
    with grpc.insecure_channel(proxy.address) as channel:
        for method in ("GetVersion", "HostBufferDelete", "HostBufferReadFromDisk"):
            call: Any = channel.unary_unary(f"/{ifrt.SERVICE}/{method}")
            with pytest.raises(grpc.RpcError, match="of 3000000 bytes") as raised:
                call(bytes([0x7A, 0xBC, 0x8D, 0xB7, 0x01]) + bytes(2_999_995))
            assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


# ---- sessions


def test_sessions_beyond_the_limit(make_proxy: MakeProxy, connect: MakeClient) -> None:
    proxy = limited(make_proxy, sessions=2)
    first = connect(proxy.address)
    with RawClient(proxy.address):
        code, details = connect(proxy.address, send_init=False).status()
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "the limit (--max_sessions) is 2, of which 2 are open" in details
        np.testing.assert_array_equal(first.fetch(first.put(FOUR, single(0))), FOUR)
    wait_until(lambda: len(proxy.service.sessions) == 1)
    second = connect(proxy.address)
    np.testing.assert_array_equal(second.fetch(second.put(FOUR, single(0))), FOUR)


def test_a_session_without_a_thread_leaves_nothing(
    make_proxy: MakeProxy,
    connect: MakeClient,
    transport: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    proxy = make_proxy()
    start = threading.Thread.start
    refused = {"core": "call_", "public": "session"}[transport]

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith(refused):
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        code, details = connect(proxy.address, send_init=False).status()
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "can't start new thread" in details
    wait_until(lambda: not proxy.service.sessions)
    client = connect(proxy.address)
    np.testing.assert_array_equal(client.fetch(client.put(FOUR, single(0))), FOUR)


def test_transfers_that_stand_still_hold_up_others_only_for_a_while(
    make_proxy: MakeProxy, connect: MakeClient
) -> None:
    proxy = make_proxy(limits=Limits(transfers=4, transfer_patience_s=1.0))
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

    calls = [store(1001), store(1002), store(1003), begin_lookup(stopped, buffer)]
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
    monkeypatch.setattr(buffer_streams, "_LOOKUP_TIMEOUT_S", 10 * DEADLINE_S)
    return seen


def test_lookups_that_wait_in_vain_hold_up_others_only_for_a_while(
    make_proxy: MakeProxy, connect: MakeClient, waits: list[str]
) -> None:
    proxy = make_proxy(limits=Limits(transfers=2, transfer_patience_s=1.0))
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


def test_a_transfer_is_told_to_end_once(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[str] = []
    monkeypatch.setattr(transfers, "glog", lambda _level, text: logged.append(text))
    under_way = transfers.Transfers(1, 0.1)
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
    assert len(logged) == 2


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


def test_a_client_that_never_reads_is_asked_no_more(
    make_proxy: MakeProxy, connect: MakeClient
) -> None:
    proxy = limited(make_proxy, requests=50)
    other = connect(proxy.address)
    with SilentClient(proxy.address) as silent:
        # The first answers fill what HTTP/2 takes.
        silent.send(10_000, echoed_request)
        wait_until(lambda: told(proxy)["sps_proxy_held_back_sessions"] == 1)
        # (One more is the other session's, whose last answer is under way.)
        assert told(proxy)["sps_proxy_unanswered_requests"] <= 51
        # Nobody else is.
        np.testing.assert_array_equal(other.fetch(other.put(FOUR, single(0))), FOUR)
        # Once it reads, all is answered, in order.
        for seen, raw in zip(range(1, 9_000), silent.stream, strict=False):
            assert proxy_pb2.IfrtResponse.FromString(raw).response_metadata.op_id == seen
    wait_until(lambda: len(proxy.service.sessions) == 1)


def test_a_client_that_goes_while_it_is_held_back_leaves_nothing(make_proxy: MakeProxy) -> None:
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
        wait_until(lambda: told(proxy)["sps_proxy_held_back_sessions"] == 1)
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


def test_a_reader_that_waits_is_freed_by_the_end() -> None:
    answers = QueuedAnswers(Limits(requests=1))
    answers.admit(1)
    thread = threading.Thread(target=answers.admit, args=(1,))
    thread.start()
    wait_until(lambda: answers.held_back)
    answers.close()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()


def test_a_slow_download_is_held_by_its_client(make_proxy: MakeProxy, connect: MakeClient) -> None:
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


def test_a_download_whose_buffer_is_deleted_meanwhile_still_counts(
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


# ---- the end of a session


def test_nothing_of_a_session_outlives_it(make_proxy: MakeProxy) -> None:
    proxy = make_proxy(memory_limit=1 << 30)

    def use(number: int) -> None:
        with RawClient(proxy.address) as client:
            program = client.compile(DOUBLE.replace("@double", f"@double{number}"), [0])
            arrays = [client.put(FOUR, single(0)) for _ in range(5)]
            (result,) = client.execute(program, arrays[:1])
            client.fetch(result)
            client.store(5000, bytes(1000))
            client.begin_fetch(result)[0].result()
            client.call("delete_array", array_handle=arrays[:2])
            client.call("disassemble_into_single_device_arrays", array_handle=arrays[2])
            # What never comes, and those who wait for it.
            client.make(6001, 6000, [4], single(0))
            waiting = client.execute(program, [6001])
            client.begin_ready(*waiting)
            client.begin_fetch(waiting[0])
            client.call(
                "loaded_executable_execute",
                loaded_executable_handle=program,
                args_handles=[6001],
                result_array_handle=[6002],
                result_status_handle=6003,
            )
            client.begin("loaded_executable_fetch_execute_result", result_status_handle=6003)

            assert all(live(proxy).values()), live(proxy)

    use(0)
    wait_until(lambda: not proxy.service.sessions)
    wait_until(lambda: not any(live(proxy).values()))
    threads = _threads_of_no_pool()
    for number in range(1, 5):
        use(number)
    wait_until(lambda: not any(live(proxy).values()))
    assert proxy.service.host_memory.held == 0
    wait_until(lambda: len(_threads_of_no_pool()) <= len(threads))


def _threads_of_no_pool() -> list[str]:
    """Returns the names of the threads that nobody keeps for what comes next."""
    pools = re.compile("(call|compile|helper|plain|transfer)_[0-9]+")
    return [one.name for one in threading.enumerate() if not pools.fullmatch(one.name)]


def test_the_buffer_of_a_refused_array_is_dropped(
    make_proxy: MakeProxy, connect: MakeClient
) -> None:
    proxy = make_proxy()
    client = connect(proxy.address)
    wrong = {"dtype": {"kind": 77}, "shape": {"dims": [4]}, "sharding": single(0)}
    client.store(1, bytes(16))
    for handle in (1, 2):
        with pytest.raises(Failed, match="type 77"):
            client.call("make_array_from_host_buffer", host_buffer_handle=handle, **wrong)
    # One that comes later as well.
    client.store(2, bytes(16))
    item = {
        "array_spec": wrong,
        "host_buffers": [{"host_buffer_handle": 3}],
        "addressable_shard_indices": [{"indices": [0]}],
    }
    client.store(3, bytes(16))
    with pytest.raises(Failed, match="type 77"):
        client.call("make_arrays_from_host_buffer_shards", specs=[item])
    assert proxy.service.host_memory.held == 0


JAX_BEYOND_LIMITS = """
import os, sys
os.environ["IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS"] = "true"
import jax, numpy as np
from jax.extend import backend
from jax.extend.backend import ifrt_proxy
target = f"grpc://{sys.argv[1]}"
def connect():
    options = ifrt_proxy.ClientConnectionOptions()
    options.connection_timeout_in_seconds = 60
    return ifrt_proxy.get_client(target, options)
# (Where the package is installed, its own factory takes the place of this one.)
backend.register_backend_factory("proxy", connect, priority=-1)
jax.config.update("jax_platforms", "proxy")
jax.config.update("jax_backend_target", target)
small = jax.device_put(np.ones(4))
held = []
def many():
    held.extend(small + n for n in range(500))
    np.asarray(held[-1])
for work in (
    lambda: np.asarray(jax.device_put(np.ones(4_000_000))),
    lambda: np.asarray(jax.numpy.ones(4_000_000)),
    many,
):
    try:
        work()
    except jax.errors.JaxRuntimeError as error:
        print(str(error).splitlines()[0])
    held.clear()
    assert np.asarray(small + 1).tolist() == [2.0] * 4
print("well")
"""


def test_jax_goes_on_beyond_each_limit(make_proxy: MakeProxy) -> None:
    proxy = limited(make_proxy, host_memory_bytes=1_000_000, handles=200, message_bytes=200_000)
    done = subprocess.run(
        [sys.executable, "-c", JAX_BEYOND_LIMITS, proxy.address],
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE_S,
        check=False,
    )
    *errors, last = done.stdout.splitlines() or [""]
    assert (done.returncode, last) == (0, "well"), done.stderr
    assert [error.split(":")[0] for error in errors] == ["RESOURCE_EXHAUSTED"] * 3
    assert [re.findall(r"--[a-z_]+", error) for error in errors] == [
        ["--host_memory_limit_bytes"],
        ["--host_memory_limit_bytes"],
        ["--max_handles"],
    ]
