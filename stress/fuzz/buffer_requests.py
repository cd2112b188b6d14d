"""Requests about buffers of the host: uploads, files in the shared directory, fetches."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import grpc

from harness.proxy.raw import F32
from shared_pathways_service.protocol import ifrt
from shared_pathways_service.protocol.ifrt import proxy_pb2
from stress.fuzz.client import DEADLINE_S
from stress.fuzz.conversation import Conversation, request
from stress.fuzz.odd_values import STRIDES


@request
def _from_disk(talk: Conversation, one: int, two: int, _picks: list[int]) -> None:
    """A buffer in the shared directory: its file may be missing or differ from the request."""
    buffer = talk.new_handle()
    directory = talk.client.directory
    if directory is not None:
        # (It went with the session, if that has ended.)
        with contextlib.suppress(FileNotFoundError):
            _leave(directory / f"lt_{buffer}", one)
    header = proxy_pb2.GrpcHostBufferStoreMetadata(
        session_id=talk.client.session_id + (two == 15),
        handle=buffer,
        buffer_size=16 if two < 12 else (0, 15, 1 << 40, 17)[two - 12],
    )
    with contextlib.suppress(grpc.RpcError):
        talk.client.unary(
            "HostBufferReadFromDisk",
            proxy_pb2.GrpcHostBufferReadFromDiskRequest(metadata=header),
        )
    if two != 15:  # (with another session's id no buffer arrives, and the array waits forever)
        talk.send(
            "make_array_from_host_buffer",
            dtype={"kind": F32},
            shape={"dims": (4,)},
            sharding=talk.sharding(two),
            host_buffer_handle=buffer,
            array_handle=talk.name(),
        )


@request
def _upload(talk: Conversation, one: int, two: int, _picks: list[int]) -> None:
    """An upload longer or shorter than announced, or an unused one."""
    size = (0, 15, 16, 17, 1 << 16, 1 << 40, -1, 16)[one % 8]
    with contextlib.suppress(grpc.RpcError, ValueError):
        talk.client.store(talk.new_handle(), bytes(16), size=size, chunk=1 + two)


@request
def _download(talk: Conversation, one: int, _two: int, _picks: list[int]) -> None:
    """A fetch that is broken off: its client goes before the buffer is there, or amid it."""
    if not talk.hopeful:
        return
    buffer = talk.new_handle()
    request = proxy_pb2.GrpcHostBufferLookupRequest(
        session_id=talk.client.session_id, handle=buffer
    )
    method: Any = talk.client.channel.unary_stream(f"/{ifrt.SERVICE}/HostBufferLookup")
    call = method(request.SerializeToString(), timeout=DEADLINE_S)
    pending = talk.send(
        "copy_to_host_buffer", array_handle=talk.array(one), host_buffer_handle=buffer
    )
    if one % 2:
        talk.wait(pending)
    call.cancel()


@request
def _fetch(talk: Conversation, one: int, two: int, picks: list[int]) -> None:
    buffer = talk.new_handle()
    fields: dict[str, Any] = {}
    if picks:
        strides = [STRIDES[p] if one % 4 == 3 else 4 * (p - 1) for p in picks]
        fields["byte_strides"] = {"strides": strides}
    pending = talk.send(
        "copy_to_host_buffer",
        array_handle=talk.array(one),
        host_buffer_handle=buffer,
        **fields,
    )
    if talk.hopeful and talk.wait(pending) is not None and two != 15:
        with contextlib.suppress(grpc.RpcError):
            talk.client.lookup(buffer)
        if two % 2:
            request = proxy_pb2.GrpcHostBufferDeleteRequest(
                session_id=talk.client.session_id, handle=buffer
            )
            with contextlib.suppress(grpc.RpcError):
                talk.client.unary("HostBufferDelete", request)


def _leave(path: Path, how: int) -> None:
    """Creates something at the path where a proxy expects a file of 16 bytes."""
    if how % 8 == 1:
        path.mkdir()
    elif how % 8 == 2:
        path.symlink_to("/dev/zero")
    elif how % 8 == 3:
        os.mkfifo(path)
    elif how % 8 == 4:
        path.symlink_to(path)
    elif how % 8:
        path.write_bytes(bytes(16))
