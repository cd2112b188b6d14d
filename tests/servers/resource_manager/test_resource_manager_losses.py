"""The resource manager as a process: lost workers and slices."""

from __future__ import annotations

import signal

from harness.processes import KIND, Service
from tests.servers.conftest import MakeService
from tests.servers.resource_manager.placements import expect_placed, expect_unplaced

# ---- loss


def test_a_killed_worker_is_reported_at_once_and_replaced_by_the_spare(
    make_service: MakeService,
) -> None:
    service = make_service("--num_spares=1", count="2")
    workers = service.start_ready_workers("slice-0", "slice-1")
    tenant = service.tenant("ada")
    first = expect_placed(tenant)
    tenant.expect("running")
    workers[int(first.slice_id[-1])].kill()
    lost = expect_unplaced(tenant)
    assert (lost.slice_id, lost.generation) == (first.slice_id, first.generation)
    assert lost.reason == f"worker 0 of {first.slice_id} is gone"
    again = expect_placed(tenant)
    assert again.slice_id != first.slice_id
    assert again.generation > first.generation
    assert service.wait_for_states({first.slice_id: "lost"}).slices


def test_a_stopping_worker_reports_its_reason(service: Service) -> None:
    workers = service.start_ready_workers("slice-0", "slice-1")
    tenant = service.tenant("ada")
    first = expect_placed(tenant)
    assert workers[int(first.slice_id[-1])].stop() == 0
    assert expect_unplaced(tenant).reason.endswith("is gone: the worker was told to stop")


def test_a_suspended_worker_is_lost_after_its_deadline_and_may_return(
    make_service: MakeService,
) -> None:
    service = make_service("--beat_interval_s=0.2", "--hung_after_s=8", count="1")
    (worker,) = service.start_ready_workers("slice-0")
    tenant = service.tenant("ada")
    expect_placed(tenant)
    worker.signal(signal.SIGSTOP)
    assert expect_unplaced(tenant).reason == "worker 0 of slice-0 is hung: no beat for 8 s"
    # When it goes on it hears that it is not wanted any more, and ends; another takes its place.
    worker.signal(signal.SIGCONT)
    assert worker.wait() == 1
    worker.wait_for_line("worker 0 of slice-0 is hung")
    service.start_worker("slice-0")
    assert expect_placed(tenant).slice_id == "slice-0"


def test_without_a_spare_a_slice_waits_for_its_worker(
    service: Service,
) -> None:
    workers = service.start_ready_workers("slice-0", "slice-1")
    tenant = service.tenant("ada", virtual_slices=[KIND, KIND])
    tenant.expect("running")
    workers[1].kill()
    lost = expect_unplaced(tenant)
    (ada,) = service.status().tenants
    assert [v.state for v in ada.slices] == ["placed", "unplaced"]
    service.start_worker("slice-1")
    again = expect_placed(tenant)
    assert (again.virtual_index, again.slice_id) == (1, "slice-1")
    assert again.generation > lost.generation


def test_elastic_slices_may_be_missing_at_the_start(make_service: MakeService) -> None:
    service = make_service(count="3")
    service.start_ready_workers("slice-0", "slice-1")
    tenant = service.tenant("ada", virtual_slices=[KIND] * 3, elastic_slices=1)
    running = tenant.expect("running")
    assert (running.placed, running.wanted) == (2, 3)
    service.start_worker("slice-2")
    placement = expect_placed(tenant)
    assert (placement.virtual_index, placement.slice_id) == (2, "slice-2")


def test_a_slice_of_several_hosts_is_ready_when_all_are(make_service: MakeService) -> None:
    service = make_service(slices="tpuv6e:2x4", count="1")
    kind = "tpuv6e:2x4"
    service.start_worker("slice-0", kind=kind)
    service.rm.wait_for_line("slice.starting slice-0")
    tenant = service.tenant("ada", virtual_slices=[kind], queue_timeout_s=600)
    tenant.expect("queued")
    socket = f"--server_socket={service.root}/w-second"
    second = service.start_worker("slice-0", "--host_index=1", socket, kind=kind)
    assert tenant.expect("placement").slice_id == "slice-0"
    second.kill()
    assert tenant.expect("placement").reason == "worker 1 of slice-0 is gone"
