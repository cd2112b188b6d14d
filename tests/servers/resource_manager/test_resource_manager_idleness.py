"""Idle tenants over gRPC: warned, released, back in the queue; older proxies are left alone."""

from __future__ import annotations

import grpc
import pytest

from harness.openmetrics import scrape, value
from harness.processes import Service, Stream
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from tests.servers.conftest import MakeService

SHORT = ("--idle_release_s=1", "--idle_warning_s=0.5")
LONG = ("--idle_release_s=600", "--idle_warning_s=599")


def _tell(tenant: Stream, count: int, idle_s: float = 0.0) -> None:
    found = pb.TenantActivity(count=count, idle_s=idle_s)
    tenant.send(pb.TenantMessage(activity=found))


def _running(service: Service, name: str = "ada") -> Stream:
    tenant = service.tenant(name)
    tenant.expect("running")
    _tell(tenant, 1)
    return tenant


def _kinds(service: Service) -> list[str]:
    pages = service.stub.GetHistory(pb.GetHistoryRequest(tenant="ada"))
    return [event.kind for page in pages for event in page.events]


def _warned_and_released(service: Service, tenant: Stream) -> str:
    """Hears the warning, answers that nothing is done, and returns why the slices went."""
    warned = tenant.expect("idle")
    assert (warned.withdrawn, warned.released) == (False, False)
    assert 0 < warned.release_s <= 0.5
    _tell(tenant, 1, warned.idle_s)
    lost = tenant.expect("placement")
    assert lost.state == pb.Placement.UNPLACED
    assert tenant.expect("idle").released
    return str(lost.reason)


def test_the_idle_are_warned_released_and_come_back_when_they_work(
    make_service: MakeService,
) -> None:
    service = make_service(*SHORT, count="1")
    service.start_ready_workers("slice-0")
    tenant = service.tenant("ada")
    assert 0 < tenant.expect("welcome").activity_s <= 1
    tenant.expect("running")
    _tell(tenant, 1)
    assert _warned_and_released(service, tenant).startswith("released: idle for ")
    (status,) = service.status().tenants
    assert status.state == "idle"
    assert not status.HasField("idle_s")
    assert not service.status().queue
    explained = service.stub.Explain(pb.ExplainRequest(tenant="ada"))
    assert explained.state == "idle"
    assert "released: idle for " in explained.sentences[-1]
    eve = _running(service, "eve")
    _tell(tenant, 2)
    assert tenant.expect("queued").position == 1
    eve.send(pb.TenantMessage(bye=pb.TenantBye(reason="done")))
    tenant.expect("running")
    assert _kinds(service) == [
        "tenant.running",
        "slice.placed",
        "slice.unplaced",
        "tenant.idled",
        "tenant.queued",
        "tenant.running",
        "slice.placed",
    ]


def test_idleness_is_sent_to_watchers_and_counted(make_service: MakeService) -> None:
    service = make_service(*SHORT, "--metrics_port=0", count="1")
    watch = service.watch("ada")
    service.start_ready_workers("slice-0")
    _warned_and_released(service, _running(service))
    kinds = []
    while "tenant.idled" not in kinds:
        message = watch.next()
        kinds.append(message.kind)
    assert kinds.index("tenant.idling") < kinds.index("tenant.idled")
    assert message.reason.startswith("released: idle for ")
    late = service.watch("ada")
    while late.next().kind != "tenant.idled":  # who watches from now on hears of it too
        pass
    assert value(scrape(service.metrics_url()), "sps_rm_decisions_total", kind="tenant.idled") == 1


def test_work_withdraws_the_warning(make_service: MakeService) -> None:
    service = make_service(*LONG, count="1")
    service.start_ready_workers("slice-0")
    tenant = _running(service)
    assert tenant.expect("idle").release_s > 500
    (status,) = service.status().tenants
    assert 500 < status.idle_release_s <= 599
    assert status.idle_s >= 1
    _tell(tenant, 2)
    assert tenant.expect("idle").withdrawn


def test_a_proxy_of_the_first_release_is_never_warned(make_service: MakeService) -> None:
    service = make_service(*SHORT, count="2")
    service.start_ready_workers("slice-0", "slice-1")
    old = service.tenant("old", versions=pb.VersionRange(min=1, max=1))
    old.expect("running")
    # One that tells is warned and released twice over meanwhile.
    tenant = _running(service)
    _warned_and_released(service, tenant)
    _tell(tenant, 2)
    tenant.expect("running")
    states = {one.name: one.state for one in service.status().tenants}
    assert states["old"] == "running"


def test_without_the_policy_no_tenant_is_asked(make_service: MakeService) -> None:
    service = make_service(count="1")
    assert service.tenant("ada").expect("welcome").activity_s == 0


@pytest.mark.race
def test_who_is_parked_is_so_after_a_kill_of_the_manager(make_service: MakeService) -> None:
    service = make_service(*SHORT, "--recovering_s=600", count="1")
    service.start_ready_workers("slice-0")
    _warned_and_released(service, _running(service))
    service.rm.kill()
    service.start_rm()
    (status,) = service.status().tenants
    assert status.state == "idle"
    back = service.tenant("ada")
    assert back.expect("idle").released
    _tell(back, 2)
    back.expect("running")


@pytest.mark.parametrize("idle_s", [-1.0, float("inf"), float("nan")])
def test_nonsense_is_refused_by_its_field(make_service: MakeService, idle_s: float) -> None:
    service = make_service(*LONG, count="1")
    tenant = service.tenant("ada")
    _tell(tenant, 1, idle_s)
    code, details = tenant.status()
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "idle_s" in details
