"""Calls of the resource manager with and without its token, and health checks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from harness.processes import (
    DEADLINE_S,
    KIND,
    ServerProcess,
    Service,
    Stream,
)
from shared_pathways_service.errors import AccessDenied
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.protocol.auth import bearer
from shared_pathways_service.protocol.grpc_errors import error_of
from tests.servers.conftest import MakeService
from tests.servers.resource_manager.placements import MODULE, expect_serving

# ---- tokens


@pytest.fixture
def guarded(make_service: MakeService, own_directories: Path) -> Service:
    """A service with a token, which `Service.token` has."""
    path = own_directories / "token"
    path.write_text("s3cret\n")
    path.chmod(0o600)
    service = make_service(f"--token_file={path}")
    service.token = "s3cret"
    return service


@pytest.mark.parametrize("token", [None, "wrong", "s3cret "])
def test_calls_without_the_token_are_refused(guarded: Service, token: str | None) -> None:
    stub = guarded.stub
    for method in (stub.WorkerSession, stub.TenantSession):
        with Stream(method, token=token) as stream:
            assert stream.status()[0] is grpc.StatusCode.UNAUTHENTICATED
    calls: list[tuple[Any, Any]] = [
        (stub.GetStatus, pb.GetStatusRequest()),
        (stub.ReleaseTenant, pb.ReleaseTenantRequest(tenant="ada")),
    ]
    for call, request in calls:
        with pytest.raises(grpc.RpcError) as caught:
            call(request, metadata=bearer(token))
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        error = error_of(caught.value, service="resource manager", address="here")
        assert isinstance(error, AccessDenied)
    expect_serving(guarded)


def test_calls_with_the_token_work(guarded: Service, own_directories: Path) -> None:
    guarded.start_worker("slice-0", f"--token_file={own_directories / 'token'}")
    guarded.wait_for_states({"slice-0": "ready"})
    guarded.tenant("ada").expect("running")
    assert "s3cret" not in "\n".join(guarded.rm.lines)


def test_health_needs_no_token(guarded: Service) -> None:
    check: Any = guarded.channel.unary_unary("/grpc.health.v1.Health/Check")
    assert check(b"") == b"\x08\x01"


def test_watching_health_needs_the_token(guarded: Service) -> None:
    stub = health_pb2_grpc.HealthStub(guarded.channel)
    refused = stub.Watch(health_pb2.HealthCheckRequest(), timeout=DEADLINE_S)
    assert refused.code() is grpc.StatusCode.UNAUTHENTICATED
    followed = stub.Watch(health_pb2.HealthCheckRequest(), metadata=bearer("s3cret"))
    assert next(followed).status == health_pb2.HealthCheckResponse.SERVING
    assert guarded.rm.stop() == 0
    assert followed.code() is not grpc.StatusCode.OK


def test_an_unknown_service_has_no_health(guarded: Service) -> None:
    stub = health_pb2_grpc.HealthStub(guarded.channel)
    with pytest.raises(grpc.RpcError) as caught:
        stub.Check(health_pb2.HealthCheckRequest(service="nosuch"), timeout=DEADLINE_S)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_a_token_readable_by_others_is_refused(own_directories: Path) -> None:
    path = own_directories / "token"
    path.write_text("s3cret\n")
    path.chmod(0o644)
    flags = [f"--token_file={path}", "--server_port=0", f"--instance_type={KIND}"]
    with ServerProcess(MODULE, [*flags, "--instance_count=1"]) as server:
        assert server.ready is None
        assert server.wait() == 2
        assert "--token_file" in server.wait_for_line("only its user can read")
