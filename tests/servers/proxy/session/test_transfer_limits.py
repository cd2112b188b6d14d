"""Limits of uploads and downloads: buffers and files that are never used, and their release."""

from __future__ import annotations

import mmap
import re
import threading
from pathlib import Path

import grpc
import numpy as np
import pytest

from harness.processes import DEADLINE_S
from harness.proxy.raw import Failed, RawClient, single
from shared_pathways_service.protocol.ifrt import proxy_pb2
from shared_pathways_service.servers.proxy.session import buffers, service
from tests.servers.proxy import transports
from tests.servers.proxy.conftest import MakeClient, MakeProxy, wait_until
from tests.servers.proxy.session.limited import EXHAUSTED, FOUR, limited

transport = transports.both

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


def test_unused_buffers_end_with_their_session(make_proxy: MakeProxy, connect: MakeClient) -> None:
    proxy = limited(make_proxy, host_memory_bytes=1 << 20)
    with RawClient(proxy.address) as client:
        client.store(1001, b"\0" * 900_000)
        fetched, _ = client.begin_fetch(client.put(FOUR, single(0)))
        fetched.result()
        assert proxy.service.host_memory.held > 900_000
    wait_until(lambda: proxy.service.host_memory.held == 0)
    other = connect(proxy.address)
    other.store(1, b"\0" * 900_000)


def test_unused_files_end_with_their_session(make_proxy: MakeProxy, own_directories: Path) -> None:
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
def test_an_unreadable_file_fails_its_array(
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


def test_the_end_of_a_session_leaves_files_of_a_new_one(
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


def test_announced_uploads_are_counted(make_proxy: MakeProxy, connect: MakeClient) -> None:
    proxy = limited(make_proxy, handles=10)
    client = connect(proxy.address)
    for number in range(1, 12):
        client.make(number, 1000 + number, [4], single(0))
        ready = client.begin_ready(number)
        client.call("destruct_array", array_handle=[number])
    with pytest.raises(Failed, match="place to wait for a host buffer") as raised:
        ready.result()
    assert raised.value.code == EXHAUSTED


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
