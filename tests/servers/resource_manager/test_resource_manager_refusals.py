"""Requests that the resource manager refuses, naming the field, and bytes that it survives."""

from __future__ import annotations

import math
import os
import random
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from harness.deadlines import deadline
from harness.processes import (
    KIND,
    VERSIONS,
    ServerProcess,
    Service,
    Stream,
    tenant_hello,
)
from shared_pathways_service.constants import PROTOCOL_MAX, PROTOCOL_MIN
from shared_pathways_service.errors import InvalidRequestError, VersionSkew
from shared_pathways_service.flags.parsing import parse_flags
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.protocol.grpc_errors import error_of
from shared_pathways_service.servers.resource_manager.flags import ResourceManagerOptions
from tests.servers.conftest import MakeService
from tests.servers.resource_manager.placements import MODULE, expect_serving

INVALID = grpc.StatusCode.INVALID_ARGUMENT
LATER = pb.VersionRange(min=PROTOCOL_MAX + 1, max=PROTOCOL_MAX + 4)


@pytest.fixture(scope="module")
def shared() -> Iterator[Service]:
    """One service for all tests that leave nothing in it."""
    root = Path(tempfile.mkdtemp(prefix="sps-"))
    with Service(root) as service:
        yield service
    shutil.rmtree(root)


def _refusal(stream: Stream) -> tuple[grpc.StatusCode, str]:
    """Returns how a stream of the shared service ends, and lets go of it."""
    with stream:
        return stream.status()


def _worker_hello(**fields: Any) -> pb.WorkerHello:
    values: dict[str, Any] = {
        "versions": VERSIONS,
        "slice_id": "slice-0",
        "instance_type": KIND,
        "host_count": 1,
        "incarnation": "w-1",
    }
    return pb.WorkerHello(**{**values, **fields})


def _claim(**fields: int | str) -> pb.Claim:
    return pb.Claim(**{"virtual_index": 0, "slice_id": "slice-0", "generation": 1, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": "Ada"}, "name"),
        ({"name": "a" * 64}, "name"),
        ({"incarnation": ""}, "incarnation"),
        ({"incarnation": "x" * 300}, "incarnation"),
        ({"virtual_slices": []}, "virtual_slices"),
        ({"virtual_slices": [KIND] * 5000}, "virtual_slices"),
        ({"virtual_slices": ["tpuv6e:0x2"]}, "virtual_slices"),
        ({"virtual_slices": ["v6e"]}, "virtual_slices"),
        ({"elastic_slices": 1}, "elastic_slices"),
        ({"queue_timeout_s": -1}, "queue_timeout_s"),
        ({"queue_timeout_s": math.nan}, "queue_timeout_s"),
        ({"queue_timeout_s": -math.inf}, "queue_timeout_s"),
        ({"max_lifetime_s": -1}, "max_lifetime_s"),
        ({"max_lifetime_s": 1e12}, "max_lifetime_s"),
        ({"user": "two\nlines"}, "user"),
        ({"team": "\x1b[31m"}, "team"),
        ({"host": "h" * 300}, "host"),
        ({"claims": [_claim(virtual_index=1)]}, "claims.virtual_index"),
        ({"claims": [_claim(slice_id="")]}, "claims.slice_id"),
        ({"claims": [_claim(generation=0)]}, "claims.generation"),
        ({"claims": [_claim(), _claim()]}, "claims.virtual_index"),
        ({"versions": None}, "versions"),
        ({"versions": pb.VersionRange(min=2, max=1)}, "versions"),
    ],
)
def test_a_tenants_bad_field_is_named(shared: Service, fields: dict[str, Any], field: str) -> None:
    code, details = _refusal(shared.tenant("ada", **fields))
    assert code is INVALID
    assert details.startswith(field)
    expect_serving(shared)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"slice_id": "slice_0"}, "slice_id"),
        ({"instance_type": "tpuv6e"}, "instance_type"),
        ({"instance_type": "tpuv5e:2x2"}, "instance_type"),
        ({"host_index": 1}, "host_index"),
        ({"host_count": 2}, "host_count"),
        ({"incarnation": ""}, "incarnation"),
        ({"address": "a" * 300}, "address"),
        ({"node_pool": "p\x00"}, "node_pool"),
        ({"versions": None}, "versions"),
    ],
)
def test_a_workers_bad_field_is_named(shared: Service, fields: dict[str, Any], field: str) -> None:
    stream = shared.stream(shared.stub.WorkerSession)
    stream.send(pb.WorkerMessage(hello=_worker_hello(**fields)))
    code, details = _refusal(stream)
    assert code is INVALID
    assert details.startswith(field)
    expect_serving(shared)


def test_a_worker_may_omit_the_only_type(service: Service) -> None:
    stream = service.stream(service.stub.WorkerSession)
    stream.send(pb.WorkerMessage(hello=_worker_hello(instance_type="", host_count=0)))
    assert stream.expect("welcome").version == PROTOCOL_MAX
    assert service.status().slices[0].instance_type == KIND


def test_one_worker_too_many_is_refused(make_service: MakeService) -> None:
    service = make_service(count="1")
    service.start_ready_workers("slice-0")
    stream = service.stream(service.stub.WorkerSession)
    stream.send(pb.WorkerMessage(hello=_worker_hello(slice_id="slice-9")))
    assert stream.status()[0] is grpc.StatusCode.FAILED_PRECONDITION


@pytest.mark.parametrize(
    "messages",
    [
        [pb.WorkerMessage(beat=pb.WorkerBeat(sequence=1))],
        [pb.WorkerMessage()],
        [pb.WorkerMessage(hello=_worker_hello())] * 2,
        [pb.WorkerMessage(hello=_worker_hello()), pb.WorkerMessage()],
        [
            pb.WorkerMessage(hello=_worker_hello()),
            pb.WorkerMessage(bye=pb.WorkerBye(reason="x" * 300)),
        ],
    ],
)
def test_a_worker_must_follow_the_order(shared: Service, messages: list[pb.WorkerMessage]) -> None:
    stream = shared.stream(shared.stub.WorkerSession)
    for message in messages:
        stream.send(message)
    assert _refusal(stream)[0] is INVALID
    assert not [s for s in shared.status().slices if s.state == "ready"]


def test_a_refusal_is_delivered_despite_a_concurrent_welcome(shared: Service) -> None:
    for _ in range(50):
        stream = shared.stream(shared.stub.WorkerSession)
        stream.send(pb.WorkerMessage(hello=_worker_hello()))
        stream.send(pb.WorkerMessage(bye=pb.WorkerBye(reason="x" * 300)))
        assert _refusal(stream)[0] is INVALID


@pytest.mark.parametrize(
    "messages",
    [
        [pb.TenantMessage(bye=pb.TenantBye())],
        [pb.TenantMessage()],
        [pb.TenantMessage(hello=tenant_hello("ada", queue_timeout_s=60))] * 2,
    ],
)
def test_a_tenant_must_follow_the_order(shared: Service, messages: list[pb.TenantMessage]) -> None:
    stream = shared.stream(shared.stub.TenantSession)
    for message in messages:
        stream.send(message)
    code, details = _refusal(stream)
    assert code is INVALID
    assert details.startswith("message")


def test_a_stream_that_ends_before_its_hello_is_refused(shared: Service) -> None:
    stream = shared.stream(shared.stub.TenantSession)
    stream.send(None)  # half-closes
    assert _refusal(stream)[0] is INVALID


# ---- versions


def test_no_common_version_is_refused_with_both_ranges(shared: Service) -> None:
    worker = shared.stream(shared.stub.WorkerSession)
    worker.send(pb.WorkerMessage(hello=_worker_hello(versions=LATER)))
    watcher = shared.stream(shared.stub.Watch, pb.WatchRequest(versions=LATER))
    for stream in (shared.tenant("ada", versions=LATER), worker, watcher):
        code, details = _refusal(stream)
        assert code is grpc.StatusCode.FAILED_PRECONDITION
        assert f"{LATER.min} to {LATER.max}" in details
        assert f"{PROTOCOL_MIN} to {PROTOCOL_MAX}" in details
        error = error_of(stream.call, service="resource manager", address=shared.address)
        assert isinstance(error, VersionSkew)
        assert error.client == f"{LATER.min} to {LATER.max}"


def test_the_highest_common_version_is_used(shared: Service) -> None:
    wide = pb.VersionRange(min=PROTOCOL_MIN, max=PROTOCOL_MAX + 3)
    with shared.tenant("ada", versions=wide, queue_timeout_s=60) as stream:
        assert stream.expect("welcome").version == PROTOCOL_MAX


# ---- bytes


def test_random_bytes_end_their_connection_and_nothing_else(make_service: MakeService) -> None:
    service = make_service("--server_port=0")
    service.start_ready_workers("slice-0", "slice-1")
    tenant = service.tenant("ada")
    tenant.expect("running")
    assert service.rm.ready
    tcp = ("127.0.0.1", service.rm.ready["port"])
    rng = random.Random(0)
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    for number in range(20):
        family, address = (
            (socket.AF_INET, tcp) if number % 2 else (socket.AF_UNIX, str(service.socket))
        )
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.settimeout(deadline(30.0))
            sock.connect(address)
            data = rng.randbytes(3000)
            # Some look like HTTP/2 to begin with; the last kinds are cut off in the midst.
            sock.sendall((preface + data) if number % 4 < 2 else data)
            sock.shutdown(socket.SHUT_WR)
            while _received(sock):
                pass
    expect_serving(service)
    assert {t.name: t.connected for t in service.status().tenants}["ada"]


def _received(sock: socket.socket) -> bytes:
    try:
        return sock.recv(4096)
    except ConnectionError:
        return b""


def test_an_invalid_message_ends_only_its_call(shared: Service) -> None:
    method: Any = shared.channel.stream_stream(
        "/shared_pathways_service.v1.ResourceManager/TenantSession"
    )
    with Stream(method) as stream:
        stream.send(os.urandom(100))
        assert stream.status()[0] is not grpc.StatusCode.OK
    with Stream(method) as stream:
        stream.send(b"\x00" * (2 << 20))
        assert stream.status()[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
    expect_serving(shared)


# ---- flags


@pytest.mark.parametrize(
    ("flag", "named"),
    [
        ("--instance_type=tpuv6e", "--instance_type"),
        ("--instance_type=tpuv6e:2x2,tpuv6e:2x4", "--instance_count"),
        ("--instance_count=0", "--instance_count"),
        ("--num_spares=2", "--num_spares"),
        ("--node_type=worker", "--node_type"),
        ("--gcs_scratch_location=/tmp", "--gcs_scratch_location"),
        ("--hung_after_s=5", "--hung_after_s"),
        ("--server_port=70000", "--server_port"),
        ("--instance_counts=2", "--instance_counts"),
    ],
)
def test_a_wrong_flag_is_named(flag: str, named: str) -> None:
    flags = ["--server_port=0", f"--instance_type={KIND}", "--instance_count=2", flag]
    with pytest.raises(InvalidRequestError) as caught:
        parse_flags(ResourceManagerOptions, flags, {})
    assert caught.value.field == named


def test_a_wrong_flag_ends_the_process(own_directories: Path) -> None:
    flags = [f"--instance_type={KIND}", "--instance_count=2"]
    for flag in ("--instance_counts=2", f"--server_socket={own_directories}/{'x' * 100}"):
        with ServerProcess(MODULE, [*flags, flag]) as server:
            assert server.ready is None
            assert server.wait() == 2
            assert flag.partition("=")[0] in server.lines[-1]


def test_a_taken_port_is_reported(service: Service) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        flags = [f"--server_port={port}", f"--instance_type={KIND}", "--instance_count=2"]
        with ServerProcess(MODULE, flags) as server:
            assert server.ready is None
            assert server.wait() == 1
            server.wait_for_line(f"cannot listen on 127.0.0.1:{port}")


def test_an_error_of_the_manager_arrives_unchanged(shared: Service) -> None:
    stream = shared.tenant("ada", virtual_slices=["tpuv6e:0x2"])
    _refusal(stream)
    error = error_of(stream.call, service="resource manager", address=shared.address)
    assert isinstance(error, InvalidRequestError)
    assert (error.field, error.value) == ("virtual_slices", "tpuv6e:0x2")
