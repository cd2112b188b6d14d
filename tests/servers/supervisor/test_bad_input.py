"""What is wrong is refused with a status, and the service goes on for everybody else."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator

import grpc
import pytest

from harness.deadlines import deadline
from shared_pathways_service import errors
from shared_pathways_service.protocol import supervisor_pb2 as pb
from shared_pathways_service.protocol.auth import bearer
from shared_pathways_service.protocol.grpc_errors import error_of
from tests.servers.supervisor.support import EmbeddedClient, embedded, expect_state


@pytest.fixture
def client() -> Iterator[EmbeddedClient]:
    with embedded() as (_, client):
        yield client
        assert client.holders() == {"slice-0": ""}, "it still serves, and nothing was lost"


def refusal(failed: grpc.RpcError) -> tuple[grpc.StatusCode, errors.SharedPathwaysError]:
    return failed.code(), error_of(failed, service="supervisor", address="here")


def test_bad_calls_are_refused(client: EmbeddedClient) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        client.create(virtual_slices=["tpuv5e:2x4"])
    code, error = refusal(caught.value)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert isinstance(error, errors.InvalidRequestError)
    assert error.field == "virtual_slices"
    assert "tpuv6e:2x2" in error.expected

    with pytest.raises(grpc.RpcError) as caught:
        client.create(owner_pid=1, owner_start="long ago")
    assert refusal(caught.value)[0] is grpc.StatusCode.INVALID_ARGUMENT

    watch = client.watch("nobody")
    assert watch.next() is None
    assert watch.status()[0] is grpc.StatusCode.NOT_FOUND
    assert not client.delete("nobody")

    client.create(session="s-1")
    with pytest.raises(grpc.RpcError) as caught:
        client.create(session="s-2")
    assert refusal(caught.value)[0] is grpc.StatusCode.ALREADY_EXISTS
    assert client.delete(session="s-1")


def test_tokens_and_versions(client: EmbeddedClient) -> None:
    for metadata in ((), bearer("wrong")):
        with pytest.raises(grpc.RpcError) as caught:
            client.supervisor.GetProcesses(
                pb.GetProcessesRequest(), metadata=metadata, timeout=deadline(30.0)
            )
        code, error = refusal(caught.value)
        assert code is grpc.StatusCode.UNAUTHENTICATED
        assert isinstance(error, errors.AccessDenied)
    request = pb.JoinRequest(protocol_min=98, protocol_max=99)
    with pytest.raises(grpc.RpcError) as caught:
        next(client.supervisor.Join(request, metadata=bearer(client.token), timeout=deadline(30.0)))
    code, error = refusal(caught.value)
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert isinstance(error, errors.VersionSkew)
    assert error.client == "98 to 99"


def test_random_bytes_on_every_socket_end_that_connection_only(client: EmbeddedClient) -> None:
    client.create()
    watch = client.watch()
    expect_state(watch, pb.Proxy.SERVING)
    client.wait_for_holders("isc-proxy-a")
    sockets = sorted(client.paths.directory.glob("*.sock"))
    assert len(sockets) == 4, "supervisor, resource manager, worker, proxy"
    noise = random.Random(0)
    for path in sockets:
        for size in (1, 100, 100_000):
            with socket.socket(socket.AF_UNIX) as dialled:
                dialled.settimeout(deadline(30.0))
                dialled.connect(str(path))
                try:
                    dialled.sendall(noise.randbytes(size))
                    dialled.shutdown(socket.SHUT_WR)
                    while dialled.recv(65536):
                        pass
                except ConnectionError:
                    pass
        assert client.holders() == {"slice-0": "isc-proxy-a"}, path.name
    assert client.join().next() is not None
    assert client.delete()
