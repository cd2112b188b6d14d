"""Reservations over gRPC: made, kept, refused, cancelled, and there again after a restart."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from harness.processes import DEADLINE_S, KIND, Service
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from tests.servers.conftest import MakeService

HOUR = -3600.0  # from now


def _reserve(service: Service, **fields: Any) -> pb.ReservationStatus:
    asked = {"instance_type": KIND, "count": 1, "user": "ada", "ends": HOUR, **fields}
    made = service.stub.ReserveSlices(
        pb.ReserveSlicesRequest(**asked), wait_for_ready=True, timeout=DEADLINE_S
    )
    reservation: pb.ReservationStatus = made.reservation
    return reservation


def _refused(service: Service, name: str) -> pb.TenantRefused:
    refused: pb.TenantRefused = service.tenant(name).expect("refused")
    return refused


def test_it_is_kept_for_its_owner_and_shown(make_service: MakeService) -> None:
    service = make_service(count="1")
    service.start_ready_workers("slice-0")
    made = _reserve(service)
    assert (made.count, made.user, made.team, made.held) == (1, "ada", "", 0)
    assert 3599 < made.ends - made.starts <= 3600
    assert list(service.status().reservations) == [made]
    refused = _refused(service, "eve")
    assert refused.kind == pb.TenantRefused.SLICES_TAKEN
    assert "1 is reserved for user ada until " in refused.message
    service.tenant("bob", queue_timeout_s=600).expect("queued")
    service.tenant("ada").expect("running")
    assert service.status().reservations[0].held == 1
    told = service.stub.Explain(pb.ExplainRequest(tenant="bob"))
    assert any("are reserved for user ada from" in one for one in told.sentences)


def test_it_ends_by_itself_and_by_a_call(make_service: MakeService) -> None:
    service = make_service(count="1")
    service.start_ready_workers("slice-0")
    brief = _reserve(service, team="vision", user="", ends=-0.5)
    waiting = service.tenant("eve", queue_timeout_s=600)
    waiting.expect("running")
    assert not service.status().reservations
    pages = service.stub.GetHistory(pb.GetHistoryRequest(kinds=["reservation.ended"]))
    [ended] = [event for page in pages for event in page.events]
    assert ended.reason.startswith(f"{brief.name} for team vision from ")
    made = _reserve(service)
    service.stub.CancelReservation(pb.CancelReservationRequest(name=made.name))
    assert not service.status().reservations
    with pytest.raises(grpc.RpcError) as raised:
        service.stub.CancelReservation(pb.CancelReservationRequest(name=made.name))
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert made.name in str(raised.value.details())


@pytest.mark.race
def test_it_outlives_a_kill_of_the_manager(make_service: MakeService) -> None:
    service = make_service(count="1")
    service.start_ready_workers("slice-0")
    made = _reserve(service)
    service.rm.kill()
    service.start_rm()
    assert list(service.status().reservations) == [made]
    service.wait_for_states({"slice-0": "ready"})
    assert _refused(service, "eve").kind == pb.TenantRefused.SLICES_TAKEN
    service.tenant("ada").expect("running")


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"count": 0}, "count"),
        ({"count": 3}, "count=3: must be from 1 to 2"),
        ({"ends": 1.0}, "ends"),
        ({"starts": -7200.0}, "ends"),
        ({"ends": float("nan")}, "ends"),
        ({"ends": float("-inf")}, "ends"),
        ({"instance_type": "tpuv5e:2x2"}, "instance_type"),
        ({"instance_type": "nonsense"}, "instance_type"),
        ({"user": ""}, "user"),
        ({"team": "vision"}, "user"),
    ],
)
def test_what_cannot_be_is_refused_by_its_field(
    make_service: MakeService, fields: dict[str, Any], named: str
) -> None:
    service = make_service()
    with pytest.raises(grpc.RpcError) as raised:
        _reserve(service, **fields)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert named.partition(":")[0] in str(raised.value.details())
