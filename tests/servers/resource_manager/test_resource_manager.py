"""The resource manager as a process: placement, queue, release, and watchers."""

from __future__ import annotations

import grpc
import pytest

from harness.processes import KIND, VERSIONS, Service, Stream
from shared_pathways_service.constants import PROTOCOL_MAX
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.protocol.versions import is_open
from tests.servers.conftest import MakeService
from tests.servers.resource_manager.placements import REFUSAL, expect_placed

# ---- the usual walk


def test_it_writes_the_log_lines_of_the_real_image(service: Service) -> None:
    service.start_ready_workers("slice-0", "slice-1")
    service.rm.wait_for_line(rf"\] Pathways Server serving on unix:{service.socket}$")
    service.rm.wait_for_line(r"\] \*\*\* 1/2 Pathways Slices Now Ready$")
    service.rm.wait_for_line(r"\] \*\*\* 2/2 Pathways Slices Now Ready$")


def test_a_tenant_is_welcomed_then_placed_then_running(service: Service) -> None:
    service.start_ready_workers("slice-0", "slice-1")
    tenant = service.tenant("ada", virtual_slices=[KIND, KIND])
    welcome = tenant.next().welcome
    assert (welcome.version, welcome.ttl_s, welcome.recovering) == (PROTOCOL_MAX, 15.0, False)
    placements = [expect_placed(tenant), expect_placed(tenant)]
    assert [p.virtual_index for p in placements] == [0, 1]
    assert {p.slice_id for p in placements} == {"slice-0", "slice-1"}
    assert placements[0].generation < placements[1].generation
    running = tenant.next().running
    assert (running.placed, running.wanted) == (2, 2)


def test_the_status_has_every_field(make_service: MakeService) -> None:
    service = make_service("--num_spares=1", count="3")
    workers = service.start_ready_workers("slice-0")
    workers.append(service.start_worker("slice-1", "--node_pool=pool-1", "--host=h1"))
    workers.append(service.start_worker("slice-2"))
    service.wait_for_states(dict.fromkeys(("slice-0", "slice-1", "slice-2"), "ready"))
    tenant = service.tenant("ada", virtual_slices=[KIND, KIND], team="t", priority=3, pid=42)
    tenant.expect("running")
    service.tenant("bob", queue_timeout_s=600).expect("queued")
    status = service.status()
    assert (status.state, list(status.types), status.spares) == ("serving", [KIND], 1)
    assert status.pid == service.rm.pid
    assert status.since.endswith("Z")

    first, second, third = status.slices
    assert (first.id, first.state) == ("slice-0", "ready")
    assert (first.tenant, first.virtual_index) == ("ada", 0)
    assert (second.virtual_index, second.instance_type, second.node_pool) == (1, KIND, "pool-1")
    assert second.generation > first.generation > 0
    assert (third.tenant, third.HasField("virtual_index"), third.generation) == ("", False, 0)
    (worker,) = second.workers
    assert (worker.host_index, worker.host, worker.pid) == (0, "h1", workers[1].pid)
    assert worker.address == f"unix:{service.root}/w-slice-1"
    assert worker.incarnation

    ada, bob = status.tenants
    assert (ada.name, ada.user, ada.host, ada.team) == ("ada", "ada", "laptop", "t")
    assert (ada.priority, ada.state, ada.connected, ada.pid) == (3, "running", True, 42)
    assert [(v.index, v.state, v.slice_id) for v in ada.slices] == [
        (0, "placed", "slice-0"),
        (1, "placed", "slice-1"),
    ]
    assert (bob.state, [v.state for v in bob.slices]) == ("waiting", ["queued"])
    (entry,) = status.queue
    assert (entry.tenant, entry.position, dict(entry.wants)) == ("bob", 1, {KIND: 1})
    assert "no tpuv6e:2x2 slice is free (1 wanted" in entry.reason
    assert entry.waiting_s >= 0


# ---- the queue


def test_a_refusal_names_the_holders(service: Service) -> None:
    service.start_ready_workers("slice-0", "slice-1")
    for name in ("ada", "bob"):
        service.tenant(name).expect("running")
    refused = service.tenant("eve").expect("refused")
    assert refused.kind == REFUSAL.SLICES_TAKEN
    assert list(refused.holders) == ["ada@laptop: 1 x tpuv6e:2x2", "bob@laptop: 1 x tpuv6e:2x2"]
    assert (dict(refused.wanted), dict(refused.free)) == ({KIND: 1}, {KIND: 0})
    assert not refused.HasField("position")


def test_a_refusal_ends_the_call_with_ok(service: Service) -> None:
    service.start_ready_workers("slice-0", "slice-1")
    service.tenant("ada", virtual_slices=[KIND, KIND]).expect("running")
    refused = service.tenant("eve")
    refused.expect("refused")
    assert refused.next() is None
    assert refused.status()[0] is grpc.StatusCode.OK


def test_waiting_tenants_are_placed_by_priority_then_arrival(service: Service) -> None:
    service.start_ready_workers("slice-0", "slice-1")
    holder = service.tenant("holder", virtual_slices=[KIND, KIND])
    holder.expect("running")
    waiting: dict[str, Stream] = {}
    for name, priority in (("first", 0), ("second", 0), ("urgent", 5)):
        fields = {"virtual_slices": [KIND, KIND], "priority": priority}
        waiting[name] = service.tenant(name, queue_timeout_s=600, **fields)
        assert waiting[name].expect("queued").position == (1 if priority else len(waiting))
    order = [entry.tenant for entry in service.status().queue]
    assert order == ["urgent", "first", "second"]
    current = holder
    for name in order:
        # A bye gives the slices back at once.
        current.send(pb.TenantMessage(bye=pb.TenantBye(reason="done")))
        current = waiting[name]
        current.expect("running")


def test_a_queue_timeout_states_the_position(service: Service) -> None:
    service.start_ready_workers("slice-0", "slice-1")
    service.tenant("ada", virtual_slices=[KIND, KIND]).expect("running")
    waiting = service.tenant("bob", queue_timeout_s=0.2)
    queued = waiting.expect("queued")
    assert (queued.position, list(queued.holders)) == (1, ["ada@laptop: 2 x tpuv6e:2x2"])
    refused = waiting.expect("refused")
    assert (refused.kind, refused.position) == (REFUSAL.SLICES_TAKEN, 1)


@pytest.mark.parametrize(
    ("wanted", "kind"),
    [(["tpuv5e:2x2"], REFUSAL.UNKNOWN_TYPE), ([KIND] * 3, REFUSAL.TOO_MANY)],
)
def test_an_impossible_request_is_refused_at_once(
    service: Service, wanted: list[str], kind: int
) -> None:
    refused = service.tenant("ada", virtual_slices=wanted, queue_timeout_s=600).expect("refused")
    assert refused.kind == kind
    assert KIND in refused.message


# ---- whose they are


def test_a_disconnected_tenant_keeps_its_slices_for_the_ttl(make_service: MakeService) -> None:
    service = make_service("--tenant_ttl_s=600", count="1")
    service.start_ready_workers("slice-0")
    tenant = service.tenant("ada")
    placed = expect_placed(tenant)
    tenant.close()
    service.rm.wait_for_line("tenant.disconnected ada")
    assert not service.status().tenants[0].connected
    claim = pb.Claim(virtual_index=0, slice_id="slice-0", generation=placed.generation)
    back = service.tenant("ada", claims=[claim])
    # The placement is as it was, so that there is no news of it.
    assert [back.next().WhichOneof("update") for _ in range(2)] == ["welcome", "running"]


def test_after_the_ttl_the_next_tenant_gets_the_slices(make_service: MakeService) -> None:
    service = make_service("--tenant_ttl_s=0.3", count="1")
    service.start_ready_workers("slice-0")
    tenant = service.tenant("ada")
    placed = expect_placed(tenant)
    waiting = service.tenant("bob", queue_timeout_s=600)
    waiting.expect("queued")
    tenant.close()
    assert expect_placed(waiting).generation > placed.generation
    claim = pb.Claim(virtual_index=0, slice_id="slice-0", generation=placed.generation)
    assert service.tenant("ada", claims=[claim]).expect("refused").kind == REFUSAL.LOST


def test_a_second_stream_of_the_same_proxy_takes_over(service: Service) -> None:
    service.start_ready_workers("slice-0", "slice-1")
    old = service.tenant("ada")
    old.expect("running")
    new = service.tenant("ada")
    new.expect("running")
    assert old.status()[0] is grpc.StatusCode.ABORTED
    (ada,) = service.status().tenants
    assert ada.connected


def test_the_name_of_a_live_tenant_is_refused_to_another_proxy(service: Service) -> None:
    service.start_ready_workers("slice-0", "slice-1")
    tenant = service.tenant("ada")
    tenant.expect("running")
    code, details = service.tenant("ada", incarnation="another").status()
    assert code is grpc.StatusCode.ALREADY_EXISTS
    assert "ada" in details
    (ada,) = service.status().tenants
    assert ada.connected


def test_a_release_frees_the_slices_at_once_and_may_be_repeated(service: Service) -> None:
    service.start_ready_workers("slice-0", "slice-1")
    tenant = service.tenant("ada", virtual_slices=[KIND, KIND])
    tenant.expect("running")
    waiting = service.tenant("bob", queue_timeout_s=600)
    waiting.expect("queued")
    other = pb.ReleaseTenantRequest(tenant="ada", reason="mine?", incarnation="another")
    assert not service.stub.ReleaseTenant(other).released
    request = pb.ReleaseTenantRequest(tenant="ada", reason="its owner is gone")
    assert service.stub.ReleaseTenant(request).released
    refused = tenant.expect("refused")
    assert (refused.kind, refused.message) == (REFUSAL.RELEASED, "its owner is gone")
    waiting.expect("running")
    assert not service.stub.ReleaseTenant(request).released


# ---- watchers


def test_a_watcher_receives_the_state_and_then_events(service: Service) -> None:
    workers = service.start_ready_workers("slice-0", "slice-1")
    tenant = service.tenant("ada")
    placed = expect_placed(tenant)
    tenant.expect("running")
    watcher = service.watch()
    snapshot = [watcher.next() for _ in range(4)]
    assert [(e.kind, e.slice, e.tenant) for e in snapshot] == [
        ("slice.ready", "slice-0", ""),
        ("slice.ready", "slice-1", ""),
        ("slice.placed", placed.slice_id, "ada"),
        ("tenant.running", "", "ada"),
    ]
    assert all(e.snapshot and e.source == "rm" for e in snapshot)
    assert snapshot[2].data["generation"] == placed.generation
    workers[int(placed.slice_id[-1])].kill()
    news = [watcher.next() for _ in range(3)]
    assert [e.kind for e in news] == ["slice.lost", "slice.unplaced", "slice.placed"]
    assert news[0].reason == f"worker 0 of {placed.slice_id} is gone"
    assert not any(e.snapshot for e in news)
    assert all(e.time.endswith("Z") and e.monotonic > 0 for e in news)


def test_a_watcher_of_one_tenant_receives_only_its_events(service: Service) -> None:
    service.start_ready_workers("slice-0", "slice-1")
    watcher = service.watch("eve")
    # It is told so before there is anything to tell.
    assert is_open(watcher.call.initial_metadata())
    service.tenant("ada").expect("running")
    service.tenant("eve", pid=7).expect("running")
    assert [watcher.next().kind for _ in range(2)] == ["slice.placed", "tenant.running"]


def test_a_watcher_that_does_not_read_is_dropped(
    make_service: MakeService,
) -> None:
    service = make_service("--watcher_limit=10")
    slow = service.stub.Watch(pb.WatchRequest(versions=VERSIONS))  # nothing is read for now
    service.rm.wait_for_line("Pathways Server serving")
    # A refusal tells of each type that there is none of: long events fill every buffer soon.
    unknown = [f"tpuv5e:{x}x{y}" for x in range(1, 65) for y in range(1, 65)]
    for number in range(100):
        tenant = service.tenant(f"t{number}", virtual_slices=unknown)
        assert tenant.expect("refused").kind == REFUSAL.UNKNOWN_TYPE
        tenant.close()
    with pytest.raises(grpc.RpcError) as caught:
        assert len(list(slow)) < 100
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "10 messages were not read in time" in (caught.value.details() or "")
