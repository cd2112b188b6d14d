"""A proxy process that loses slices, its resource manager, its programs or its life."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import numpy as np
import psutil
import pytest

from harness.deadlines import wait_until
from harness.processes import DEADLINE_S, ServerProcess
from harness.proxy.programs import DOUBLE, ENDLESS, sharded_double, sharded_endless
from harness.proxy.raw import Failed, RawClient, single, split
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.servers.serving.last_requests_file import read_unfinished
from tests.servers.conftest import MakeService
from tests.servers.proxy.conftest import MakeClient, StartProxy
from tests.servers.proxy.processes import DATA_LOSS, EIGHT, EXHAUSTED, FOUR, address_of, start_with


@pytest.mark.race
def test_a_dead_worker_loses_its_slice_and_a_spare_takes_over(
    make_service: MakeService, start_proxy: StartProxy, connect: MakeClient, tmp_path: Path
) -> None:
    service = make_service(count="3")
    workers = service.start_ready_workers("slice-0", "slice-1", "slice-2")
    proxy = start_with(start_proxy, service.address, tmp_path / "report")
    for index in (0, 1):
        proxy.wait_for_line(f"Transition slice {index} unplaced -> placed")
    proxy.wait_for_line("Signaling to RM")
    proxy.wait_for_line("2 of 2 slices placed")
    client = connect(address_of(proxy))
    arrays = [client.put(FOUR, single(0)), client.put(FOUR, single(4))]
    held = {s.virtual_index: s.id for s in service.status().slices if s.tenant}
    workers[int(held[0][-1])].kill()
    proxy.wait_for_line("Transition slice 0 placed -> unplaced")
    proxy.wait_for_line("Transition slice 0 unplaced -> placed", times=2)
    with pytest.raises(Failed, match="virtual slice 0") as raised:
        client.fetch(arrays[0])
    assert raised.value.code == DATA_LOSS
    np.testing.assert_array_equal(client.fetch(arrays[1]), FOUR)
    np.testing.assert_array_equal(client.fetch(client.put(FOUR, single(0))), FOUR)
    # Told to end, it gives its slices back at once.
    assert proxy.stop() == 0
    states = {s.id: s.tenant for s in service.status().slices}
    assert set(states.values()) == {""}
    assert not (tmp_path / "report").exists()


@pytest.mark.parametrize("state", ["kept", "lost"])
@pytest.mark.race
def test_work_continues_without_the_resource_manager(
    make_service: MakeService,
    start_proxy: StartProxy,
    connect: MakeClient,
    tmp_path: Path,
    state: str,
) -> None:
    service = make_service()
    service.start_ready_workers("slice-0", "slice-1")
    proxy = start_with(start_proxy, service.address, tmp_path / "report")
    proxy.wait_for_line("2 of 2 slices placed")
    client = connect(address_of(proxy))
    array = client.put(EIGHT, split(range(8)))
    client.ready(array)
    service.rm.kill()
    proxy.wait_for_line("Lost the RM")
    program = client.compile(sharded_double(8), range(8))
    (result,) = client.execute(program, [array])
    np.testing.assert_array_equal(client.fetch(result), 2 * EIGHT)
    if state == "lost":
        for path in service.root.glob("state*"):
            path.unlink()
    service.start_rm()
    proxy.wait_for_line("2 of 2 slices placed", times=2)
    np.testing.assert_array_equal(client.fetch(result), 2 * EIGHT)
    assert not any("placed -> unplaced" in line for line in proxy.lines)


def wait_until_busy(proxy: ServerProcess) -> None:
    """Waits until a process that had nothing to do computes."""
    process = psutil.Process(proxy.pid)
    before = sum(process.cpu_times()[:2])
    wait_until("a computation", lambda: sum(process.cpu_times()[:2]) >= before + 1.0)


def wait_until_recorded(last_requests: Path) -> None:
    """Waits until a proxy has recorded that a program runs."""
    wait_until("a record", lambda: read_unfinished(last_requests).running)


@pytest.mark.race
def test_an_endless_program_on_a_lost_slice(
    make_service: MakeService, start_proxy: StartProxy, connect: MakeClient, tmp_path: Path
) -> None:
    service = make_service()
    workers = service.start_ready_workers("slice-0", "slice-1")
    report = tmp_path / "report"
    proxy = start_with(start_proxy, service.address, report, "--lost_program_grace_s=1")
    proxy.wait_for_line("2 of 2 slices placed")
    held = {s.virtual_index: s.id for s in service.status().slices}
    client = connect(address_of(proxy))
    on_zero, on_one = client.put(FOUR, split(range(4))), client.put(EIGHT, split(range(4, 8)))
    endless = client.compile(sharded_endless(4), range(4))
    (never,) = client.execute(endless, [on_zero])
    wait_until_busy(proxy)
    waiting = [client.begin_ready(never), client.begin_fetch(never)[0]]
    # The other slice takes no notice.
    np.testing.assert_array_equal(client.fetch(on_one), EIGHT)
    (doubled,) = client.execute(client.compile(sharded_double(4), range(4, 8)), [on_one])
    np.testing.assert_array_equal(client.fetch(doubled), 2 * EIGHT)
    # Nor does what was there before, on the busy slice.
    np.testing.assert_array_equal(client.fetch(on_zero), FOUR)
    assert not any(w.future.done() for w in waiting)
    workers[int(held[0][-1])].kill()
    for wait in waiting:
        with pytest.raises(Failed, match="virtual slice 0") as raised:
            wait.result()
        assert raised.value.code == DATA_LOSS
    assert proxy.wait() == 75
    assert client.ended.wait(DEADLINE_S)
    said = json.loads(report.read_text())
    assert (said["kind"], said["program"], said["slice"]) == ("lost_program", "endless", 0)
    proxy.wait_for_line("program endless was still running 1 s after the loss of slice 0")


def leave_an_endless_program(proxy: ServerProcess, last_requests: Path) -> None:
    """Opens a session, and ends it while its program runs."""
    with RawClient(address_of(proxy)) as client:
        endless = client.compile(ENDLESS, [0])
        (never,) = client.execute(endless, [client.put(FOUR, single(0))])
        client.execute(endless, [client.put(FOUR, single(0))])
        # (One that has not begun never does.)
        wait_until_recorded(last_requests)
        # Nobody waits for it any more.
        client.call("destruct_array", array_handle=[never])


@pytest.mark.race
def test_an_endless_program_of_a_session_that_ended(
    start_proxy: StartProxy, connect: MakeClient, tmp_path: Path
) -> None:
    last = tmp_path / "last"
    proxy = start_proxy("--lost_program_grace_s=600", f"--last_requests_file={last}")
    leave_an_endless_program(proxy, last)
    # The next session has the slice to itself.
    second = connect(address_of(proxy))
    (doubled,) = second.execute(second.compile(DOUBLE, [0]), [second.put(FOUR, single(0))])
    np.testing.assert_array_equal(second.fetch(doubled), 2 * FOUR)


@pytest.mark.race
def test_an_endless_program_of_a_session_that_ended_ends_the_proxy(
    start_proxy: StartProxy, tmp_path: Path
) -> None:
    report, last = tmp_path / "report", tmp_path / "last"
    proxy = start_proxy(
        *("--lost_program_grace_s=1", f"--exit_report={report}", f"--last_requests_file={last}")
    )
    leave_an_endless_program(proxy, last)
    assert proxy.wait() == 75
    said = json.loads(report.read_text())
    assert (said["kind"], said["program"]) == ("abandoned_program", "endless")
    assert "after the end of its session" in said["reason"]


@pytest.mark.race
def test_a_program_over_two_slices_frees_the_remaining_one(
    make_service: MakeService, start_proxy: StartProxy, connect: MakeClient, tmp_path: Path
) -> None:
    service = make_service()
    workers = service.start_ready_workers("slice-0", "slice-1")
    proxy = start_with(start_proxy, service.address, tmp_path / "report")
    proxy.wait_for_line("2 of 2 slices placed")
    held = {s.virtual_index: s.id for s in service.status().slices}
    client = connect(address_of(proxy))
    both = client.compile(sharded_endless(2), [0, 4])
    (never,) = client.execute(both, [client.put(FOUR, split([0, 4]))])
    (behind,) = client.execute(client.compile(DOUBLE, [0]), [client.put(FOUR, single(0))])
    wait = client.begin_ready(never)
    workers[int(held[1][-1])].kill()
    with pytest.raises(Failed, match="virtual slice 1"):
        wait.result()
    # The living slice goes on with what was queued behind.
    np.testing.assert_array_equal(client.fetch(behind), 2 * FOUR)


def test_an_address_space_limit_is_survived(start_proxy: StartProxy, connect: MakeClient) -> None:
    proxy = start_proxy(f"--address_space_limit_bytes={12 << 30}", "--host_memory_limit_bytes=0")
    client = connect(address_of(proxy))
    client.store(1, b"", size=1 << 35)
    client.make(900, 1, [1 << 33], single(0))
    with pytest.raises(Failed, match="no memory for a host buffer") as raised:
        client.ready(900)
    assert raised.value.code == EXHAUSTED
    np.testing.assert_array_equal(client.fetch(client.put(FOUR, single(0))), FOUR)


@pytest.mark.race
def test_a_killed_proxy_is_an_error_for_its_client(start_proxy: StartProxy) -> None:
    proxy = start_proxy()
    with RawClient(address_of(proxy)) as client:
        (never,) = client.execute(client.compile(ENDLESS, [0]), [client.put(FOUR, single(0))])
        wait = client.begin_ready(never)
        proxy.kill()
        with pytest.raises(Exception, match="UNAVAILABLE"):
            wait.result()


@pytest.mark.race
@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL])
def test_a_crash_during_a_program_leaves_a_report_of_it(
    start_proxy: StartProxy, tmp_path: Path, number: signal.Signals
) -> None:
    proxy = start_proxy(f"--last_requests_file={tmp_path / 'last'}")
    with RawClient(address_of(proxy)) as client:
        done = client.compile(DOUBLE, [4])
        array = client.put(FOUR, single(4))
        client.ready(*client.execute(done, [array]))
        (never,) = client.execute(client.compile(ENDLESS, [0]), [client.put(FOUR, single(0))])
        client.begin_ready(never)
        # Answered after what comes before it was handled: the program is at its executor then.
        client.call("is_array_deleted", array_handle=array)
        wait_until_recorded(tmp_path / "last")
        proxy.signal(number)
        assert proxy.wait() == -number
    found = read_unfinished(tmp_path / "last")
    assert found.running == ("endless on slice 0",)
    assert found.requests[0] == "init_request"
    assert found.requests[-3:] == (
        "loaded_executable_execute_request endless",
        "check_value_ready_request",
        "is_array_deleted_request",
    )
    if number != signal.SIGKILL:
        proxy.wait_for_line("Fatal Python error")


@pytest.mark.race
def test_preempted_work_fails_and_resumes_after_the_return(
    make_service: MakeService, start_proxy: StartProxy, connect: MakeClient, tmp_path: Path
) -> None:
    service = make_service("--preemption_grace_s=600")
    service.start_ready_workers("slice-0", "slice-1")
    proxy = start_with(start_proxy, service.address, tmp_path / "report")
    proxy.wait_for_line("2 of 2 slices placed")
    client = connect(address_of(proxy))
    array = client.put(FOUR, single(0))
    early = service.tenant("early", priority=2_000_000)
    by = "early@laptop of priority high-priority"
    proxy.wait_for_line(f"All slices will be taken in 600 s by {by}")
    np.testing.assert_array_equal(client.fetch(array), FOUR)
    early.close()
    service.stub.ReleaseTenant(pb.ReleaseTenantRequest(tenant="early", reason="done"))
    proxy.wait_for_line(f"All slices will not be taken by {by}")
    # Where they are taken at once.
    service.rm.kill()
    service.start_rm("--preemption_grace_s=0")
    proxy.wait_for_line("2 of 2 slices placed", times=2)
    np.testing.assert_array_equal(client.fetch(array), FOUR)
    service.status()  # (Waits until this channel is connected again.)
    vip = service.tenant("vip", priority=2_000_000)
    proxy.wait_for_line("Transition slice 0 placed -> unplaced: preempted by vip@laptop")
    proxy.wait_for_line("Waiting for placement at position 1")
    with pytest.raises(Failed, match="preempted") as raised:
        client.fetch(array)
    assert raised.value.code == DATA_LOSS
    with pytest.raises(Failed, match="preempted") as raised:
        client.fetch(client.put(FOUR, single(0)))
    assert raised.value.code == DATA_LOSS
    vip.expect("running")
    vip.close()
    service.stub.ReleaseTenant(pb.ReleaseTenantRequest(tenant="vip", reason="done"))
    proxy.wait_for_line("2 of 2 slices placed", times=3)
    np.testing.assert_array_equal(client.fetch(client.put(FOUR, single(0))), FOUR)
    with pytest.raises(Failed, match="preempted"):
        client.fetch(array)


def test_the_service_sets_limits_of_a_proxy(
    make_service: MakeService, start_proxy: StartProxy, connect: MakeClient, tmp_path: Path
) -> None:
    service = make_service("--proxy_memory_limit_bytes=64")
    service.start_ready_workers("slice-0", "slice-1")
    proxy = start_with(start_proxy, service.address, tmp_path / "report")
    proxy.wait_for_line("2 of 2 slices placed")
    client = connect(address_of(proxy))
    client.put(FOUR, single(0))
    with pytest.raises(Failed, match="is 64 bytes") as raised:
        client.fetch(client.put(np.arange(64, dtype=np.float32), single(0)))
    assert raised.value.code == EXHAUSTED
