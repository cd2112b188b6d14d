"""Notice, preemption, cordon and drain over gRPC, with restarts in the middle of each."""

from __future__ import annotations

import datetime
import time

import grpc
import pytest

from harness.processes import KIND, Service, Stream
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from tests.servers.conftest import MakeService

PLACED, UNPLACED = pb.Placement.PLACED, pb.Placement.UNPLACED
#: What a proxy or a client of the first release says.
FIRST = pb.VersionRange(min=1, max=1)
LONG = "--preemption_grace_s=600"


def _placed(tenant: Stream) -> pb.Claim:
    placement = tenant.expect("placement")
    assert placement.state == PLACED
    return pb.Claim(
        virtual_index=placement.virtual_index,
        slice_id=placement.slice_id,
        generation=placement.generation,
    )


def _unplaced(tenant: Stream) -> pb.Placement:
    placement: pb.Placement = tenant.expect("placement")
    assert placement.state == UNPLACED
    return placement


def _bye(tenant: Stream) -> None:
    tenant.send(pb.TenantMessage(bye=pb.TenantBye(reason="done")))


def _next_update(tenant: Stream) -> str:
    update: str = tenant.next().WhichOneof("update")
    return update


def test_notice_preemption_and_return(make_service: MakeService) -> None:
    service = make_service("--preemption_grace_s=1", count="1")
    service.start_ready_workers("slice-0")
    low = service.tenant("low")
    first = _placed(low)
    low.expect("running")
    vip = service.tenant("vip", priority=2_000_000)
    notice = low.expect("preempting")
    assert notice.by == "vip@laptop of priority high-priority-job (2000000)"
    assert (notice.withdrawn, list(notice.virtual_indices)) == (False, [])
    assert 0 < notice.grace_s <= 1
    lost = _unplaced(low)
    assert (lost.slice_id, lost.generation) == (first.slice_id, first.generation)
    assert lost.reason.startswith("preempted by vip@laptop")
    assert low.expect("queued").position == 1
    vip.expect("running")
    states = {tenant.name: tenant.state for tenant in service.status().tenants}
    assert states == {"low": "preempted", "vip": "running"}
    _bye(vip)
    assert _placed(low).generation > first.generation
    low.expect("running")


def test_a_notice_is_withdrawn_when_the_preemptor_goes(make_service: MakeService) -> None:
    service = make_service(LONG, count="1")
    service.start_ready_workers("slice-0")
    low = service.tenant("low")
    low.expect("running")
    vip = service.tenant("vip", priority=1, queue_timeout_s=600)
    assert low.expect("preempting").grace_s > 500
    (status,) = [t for t in service.status().tenants if t.name == "low"]
    assert status.preempting_by == "vip@laptop of priority 1"
    assert 500 < status.preempting_s <= 600
    assert status.preemptor == "vip"
    at = datetime.datetime.fromisoformat(status.preempting_at).timestamp()
    assert 500 < at - time.time() <= 600
    _bye(vip)
    withdrawn = low.expect("preempting")
    assert (withdrawn.withdrawn, withdrawn.grace_s) == (True, 0)


@pytest.mark.race
def test_a_notice_outlives_a_kill_of_the_manager(make_service: MakeService) -> None:
    service = make_service("--preemption_grace_s=6", "--recovering_s=600", count="1")
    service.start_ready_workers("slice-0")
    low = service.tenant("low")
    claim = _placed(low)
    service.tenant("vip", priority=1, queue_timeout_s=600).expect("queued")
    low.expect("preempting")
    service.rm.kill()
    service.start_rm()
    back = service.tenant("low", claims=[claim], running=True)
    assert _next_update(back) == "welcome"
    assert back.expect("preempting").grace_s < 6
    vip = service.tenant("vip", priority=1, queue_timeout_s=600)
    assert _unplaced(back).reason.startswith("preempted by vip@laptop")
    vip.expect("running")


@pytest.mark.race
def test_a_preempted_tenant_outlives_a_kill_of_the_manager(make_service: MakeService) -> None:
    service = make_service("--preemption_grace_s=0", "--recovering_s=600", count="1")
    service.start_ready_workers("slice-0")
    low = service.tenant("low")
    first = _placed(low)
    vip = service.tenant("vip", priority=1)
    held = _placed(vip)
    service.rm.kill()
    service.start_rm()
    states = {tenant.name: tenant.state for tenant in service.status().tenants}
    assert states == {"low": "preempted", "vip": "running"}
    # It had not heard of it when the manager was killed.
    back = service.tenant("low", claims=[first], running=True)
    assert _unplaced(back).generation == first.generation
    assert back.expect("queued").position == 1
    vip = service.tenant("vip", priority=1, claims=[held], running=True)
    vip.expect("running")
    _bye(vip)
    assert _placed(back).generation > held.generation


# ---- cordon and drain


def test_cordon_drain_and_uncordon(make_service: MakeService) -> None:
    service = make_service("--preemption_grace_s=1")
    service.start_ready_workers("slice-0", "slice-1")
    cordoned = service.stub.CordonSlice(pb.CordonSliceRequest(slice="slice-1"))
    assert (cordoned.state, cordoned.tenant) == ("cordoned", "")
    ada = service.tenant("ada")
    assert _placed(ada).slice_id == "slice-0"
    ada.expect("running")
    waiting = service.tenant("bob", queue_timeout_s=600)
    waiting.expect("queued")
    drained = service.stub.DrainSlice(pb.DrainSliceRequest(slice="slice-0"))
    assert (drained.state, drained.tenant, drained.onto) == ("draining", "ada", "")
    uncordoned = service.stub.UncordonSlice(pb.UncordonSliceRequest(slice="slice-1"))
    assert uncordoned.state == "ready"
    notice = ada.expect("preempting")
    assert (notice.by, list(notice.virtual_indices)) == ("a drain of slice-0", [0])
    assert _unplaced(ada).reason == "slice-0 is drained by an operator"
    assert _placed(ada).slice_id == "slice-1"
    service.wait_for_states({"slice-0": "cordoned"})
    assert service.stub.UncordonSlice(pb.UncordonSliceRequest(slice="slice-0")).state == "ready"
    assert _placed(waiting).slice_id == "slice-0"


def test_the_answer_to_a_drain_has_the_destination_and_the_time(make_service: MakeService) -> None:
    service = make_service(LONG)
    service.start_ready_workers("slice-0", "slice-1")
    service.tenant("ada").expect("running")
    drained = service.stub.DrainSlice(pb.DrainSliceRequest(slice="slice-0"))
    assert (drained.state, drained.tenant, drained.onto) == ("draining", "ada", "slice-1")
    assert 500 < drained.grace_s <= 600
    (kept,) = [s for s in service.status().slices if s.id == "slice-1"]
    assert kept.kept_for == "slice-0"


@pytest.mark.parametrize("method", ["CordonSlice", "DrainSlice", "UncordonSlice"])
def test_a_slice_that_is_not_there_is_refused_with_those_that_are(
    service: Service, method: str
) -> None:
    service.start_ready_workers("slice-0", "slice-1")
    request = getattr(pb, f"{method}Request")
    for name, told in (("slice-7", "one of slice-"), ("No Label", "slice")):
        with pytest.raises(grpc.RpcError) as caught:
            getattr(service.stub, method)(request(slice=name))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert told in (caught.value.details() or "")


@pytest.mark.race
def test_a_drain_outlives_a_kill_of_the_manager(make_service: MakeService) -> None:
    service = make_service("--preemption_grace_s=3", "--recovering_s=600")
    service.start_ready_workers("slice-0", "slice-1")
    ada = service.tenant("ada")
    claim = _placed(ada)
    service.stub.DrainSlice(pb.DrainSliceRequest(slice="slice-0"))
    ada.expect("preempting")
    service.rm.kill()
    service.start_rm()
    back = service.tenant("ada", claims=[claim], running=True)
    assert _unplaced(back).reason == "slice-0 is drained by an operator"
    assert _placed(back).slice_id == "slice-1"
    service.wait_for_states({"slice-0": "cordoned", "slice-1": "ready"})
    service.rm.kill()
    service.start_rm()
    service.wait_for_states({"slice-0": "cordoned"})


# ---- limits


def test_a_request_above_a_limit_is_refused_with_it_named(make_service: MakeService) -> None:
    service = make_service("--max_slices_per_tenant=1", "--max_tenants_per_team=1")
    service.start_ready_workers("slice-0", "slice-1")
    refused = service.tenant("ada", virtual_slices=[KIND] * 2).expect("refused")
    assert refused.kind == pb.TenantRefused.LIMIT
    assert "the limit of slices per tenant is 1" in refused.message
    old = service.tenant("old", virtual_slices=[KIND] * 2, versions=FIRST).expect("refused")
    assert (old.kind, old.message) == (pb.TenantRefused.TOO_MANY, refused.message)
    service.tenant("bob", team="red").expect("running")
    assert "team red" in service.tenant("eve", team="red").expect("refused").message


# ---- older proxies


def test_a_proxy_of_the_first_version_is_preempted_without_a_notice(
    make_service: MakeService,
) -> None:
    service = make_service("--preemption_grace_s=1", count="1")
    service.start_ready_workers("slice-0")
    low = service.tenant("low", versions=FIRST)
    assert low.next().welcome.version == 1
    _placed(low)
    assert _next_update(low) == "running"
    vip = service.tenant("vip", priority=1, queue_timeout_s=600, versions=FIRST)
    vip.expect("queued")
    placement = low.next().placement
    assert placement.state == UNPLACED, "nothing in between that it would not know"
    assert placement.reason.startswith("preempted by vip@laptop")
    assert _next_update(low) == "queued"
    assert _placed(vip).slice_id == "slice-0"
    _bye(vip)
    _placed(low)
    assert low.next().running.placed == 1
    assert KIND in service.status().types
