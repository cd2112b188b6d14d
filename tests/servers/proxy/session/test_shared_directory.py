"""Large buffers that are passed in files of a shared directory."""

from __future__ import annotations

import functools
import os
import types
from pathlib import Path

import grpc
import numpy as np
import pytest

from harness.proxy.raw import Failed, RawClient, single
from shared_pathways_service.protocol.ifrt import proxy_pb2
from tests.servers.proxy import transports
from tests.servers.proxy.conftest import MakeClient, MakeProxy, wait_until
from tests.servers.proxy.session.arrays import FOUR

transport = transports.both


@pytest.fixture
def transfer_dir(own_directories: Path) -> Path:
    directory = own_directories / "large"
    (directory / "mine").mkdir(parents=True)
    return directory


def read_from_disk(client: RawClient, handle: int, size: int) -> bytes:
    request = proxy_pb2.GrpcHostBufferReadFromDiskRequest()
    request.metadata.session_id = client.session_id
    request.metadata.handle = handle
    request.metadata.buffer_size = size
    return client.unary("HostBufferReadFromDisk", request)


def is_mapped(handle: int) -> bool:
    return f"lt_{handle} (deleted)" in Path("/proc/self/maps").read_text()


def is_unmapped(handle: int) -> bool:
    return not is_mapped(handle)


def test_large_buffers_through_a_shared_directory(
    make_proxy: MakeProxy, connect: MakeClient, transfer_dir: Path
) -> None:
    proxy = make_proxy(large_transfer_dir=transfer_dir)
    client = connect(proxy.address, initialization_data={"sps_transfer_dir": b"mine"})
    file = transfer_dir / "mine" / "lt_7"
    file.write_bytes(FOUR.tobytes())
    read_from_disk(client, 7, 16)
    assert not file.exists()
    client.make(8, 7, [4], single(0))
    np.testing.assert_array_equal(client.fetch(8), FOUR)


def test_pages_are_returned_when_the_file_system_fills_up(
    make_proxy: MakeProxy,
    connect: MakeClient,
    transfer_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    proxy = make_proxy(large_transfer_dir=transfer_dir)
    client = connect(proxy.address, initialization_data={"sps_transfer_dir": b"mine"})
    for handle, free in ((1, 6), (2, 4)):
        says = types.SimpleNamespace(f_blocks=10, f_bavail=free)
        monkeypatch.setattr(os, "fstatvfs", lambda _fd, says=says: says)
        (transfer_dir / "mine" / f"lt_{handle}").write_bytes(FOUR.tobytes())
        read_from_disk(client, handle, 16)
        client.make(10 + handle, handle, [4], single(0))
        client.ready(10 + handle)
        # (Executors have the data itself: then the proxy keeps pages of neither file.)
        if handle == 1 and proxy.engine.computes_here:
            assert is_mapped(handle)
        else:
            # The thread that took the upload may hold it a moment longer.
            wait_until(functools.partial(is_unmapped, handle))
        np.testing.assert_array_equal(client.fetch(10 + handle), FOUR)


def test_unexpected_files_are_refused(
    make_proxy: MakeProxy, connect: MakeClient, transfer_dir: Path
) -> None:
    proxy = make_proxy(large_transfer_dir=transfer_dir)
    client = connect(proxy.address, initialization_data={"sps_transfer_dir": b"mine"})
    (transfer_dir / "secret").write_bytes(b"1234")
    (transfer_dir / "mine" / "lt_1").symlink_to(transfer_dir / "secret")
    (transfer_dir / "mine" / "lt_2").write_bytes(b"123")
    os.mkfifo(transfer_dir / "mine" / "lt_3")
    for handle in (1, 2, 3):
        with pytest.raises(grpc.RpcError) as raised:
            read_from_disk(client, handle, 4)
        assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (transfer_dir / "secret").read_bytes() == b"1234"


def test_a_file_that_was_removed_fails_the_uses_of_its_buffer_only(
    make_proxy: MakeProxy, connect: MakeClient, transfer_dir: Path
) -> None:
    proxy = make_proxy(large_transfer_dir=transfer_dir)
    client = connect(proxy.address, initialization_data={"sps_transfer_dir": b"mine"})
    # (JAX's client ends its session if this call fails.)
    read_from_disk(client, 7, 16)
    client.make(8, 7, [4], single(0))
    with pytest.raises(Failed, match="lt_7': it was removed before it was read"):
        client.fetch(8)
    (transfer_dir / "mine" / "lt_9").write_bytes(FOUR.tobytes())
    read_from_disk(client, 9, 16)
    client.make(10, 9, [4], single(0))
    np.testing.assert_array_equal(client.fetch(10), FOUR)


@pytest.mark.parametrize("name", [b"..", b".", b"mine/..", b"/etc", b"file", b"link", b"\xff"])
def test_foreign_directories_are_refused(
    make_proxy: MakeProxy, connect: MakeClient, transfer_dir: Path, name: bytes
) -> None:
    (transfer_dir / "link").symlink_to(transfer_dir / "mine")
    (transfer_dir / "file").touch()
    proxy = make_proxy(large_transfer_dir=transfer_dir)
    client = connect(proxy.address, initialization_data={"sps_transfer_dir": name}, send_init=False)
    assert client.status()[0] is grpc.StatusCode.INVALID_ARGUMENT
