"""What a tenant of a resource manager must receive."""

from __future__ import annotations

from harness.processes import (
    KIND,
    Service,
    Stream,
    tenant_hello,
)
from shared_pathways_service.protocol import resource_manager_pb2 as pb

PLACED = pb.Placement.PLACED
UNPLACED = pb.Placement.UNPLACED
REFUSAL = pb.TenantRefused


def expect_placed(tenant: Stream) -> pb.Placement:
    placement: pb.Placement = tenant.expect("placement")
    assert placement.state == PLACED
    assert placement.instance_type == KIND
    return placement


def expect_unplaced(tenant: Stream) -> pb.Placement:
    placement: pb.Placement = tenant.expect("placement")
    assert placement.state == UNPLACED
    return placement


MODULE = "shared_pathways_service.servers.resource_manager"


def expect_serving(service: Service) -> None:
    """The service still lets somebody in."""
    with Stream(service.stub.TenantSession, token=service.token) as stream:
        stream.send(pb.TenantMessage(hello=tenant_hello("next", queue_timeout_s=60)))
        stream.expect("welcome")
