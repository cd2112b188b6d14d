"""The proxy as a process, with a real resource manager and real workers where slices matter."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from harness.processes import DEADLINE_S, REPOSITORY, ServerProcess, run_async
from harness.proxy.programs import DOUBLE, ENDLESS, sharded_double, sharded_endless
from harness.proxy.raw import Failed, RawClient, single, split
from shared_pathways_service.errors import InvalidRequestError, ServiceNotReady, VersionSkew
from shared_pathways_service.flags.parsing import parse_flags
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.protocol.ifrt.probe import probe, probe_async
from shared_pathways_service.servers.proxy.flags import ProxyServerOptions
from shared_pathways_service.servers.serving.last_requests_file import read_unfinished
from tests.servers.attacking import deaf
from tests.servers.conftest import MakeService
from tests.servers.proxy.conftest import KIND, MODULE, MakeClient, StartProxy

DATA_LOSS, EXHAUSTED = 15, 8
FOUR = np.arange(4, dtype=np.float32)
EIGHT = np.arange(8, dtype=np.float32)
#: Ours, or of grpcio's core, which may tell that the client of a check at the start went away.
GLOG = re.compile(r"[IWE]\d{4} \d\d:\d\d:\d\d\.\d{6} +\d+ \w+\.(py|cc):\d+\] ")


def address_of(proxy: ServerProcess) -> str:
    assert proxy.ready is not None, "\n".join(proxy.lines)
    return f"unix:{proxy.ready['socket']}"


# ---- flags


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--virtual_slices="], "--virtual_slices"),
        ([f"--virtual_slices={KIND},"], "--virtual_slices"),
        (["--virtual_slices=tpuv6e:2y2"], "--virtual_slices"),
        ([f"--virtual_slices={KIND}", "--num_elastic_slices=2"], "--num_elastic_slices"),
        ([f"--virtual_slices={KIND}", "--num_elastic_slices=-1"], "--num_elastic_slices"),
        ([f"--virtual_slices={KIND}", "--server_port=70000"], "--server_port"),
        ([f"--virtual_slices={KIND}", "--queue_timeout_s=-1"], "--queue_timeout_s"),
        ([f"--virtual_slices={KIND}", "--tenant_name=Not A Label"], "--tenant_name"),
        ([f"--virtual_slices={KIND}", "--gcs_scratch_location=/tmp"], "--gcs_scratch_location"),
        ([f"--virtual_slices={KIND}", "--no_such_flag=1"], "--no_such_flag"),
        ([f"--virtual_slices={KIND}", "--lost_program_grace_s=0"], "--lost_program_grace_s"),
        ([f"--virtual_slices={KIND}", "--transport=tcp"], "--transport"),
    ],
)
def test_wrong_flags_are_named(flags: list[str], named: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        parse_flags(ProxyServerOptions, flags, {})
    assert raised.value.field == named


def test_flags_of_the_real_image_are_taken() -> None:
    flags = [
        "--server_port=29000",
        "--resource_manager_address=head:29001",
        "--gcs_scratch_location=gs://bucket/tmp",
        "--virtual_slices=tpuv6e:2x2,tpuv6e:2x2",
        "--num_elastic_slices=1",
        "--sidecar_name=external",
        "--xla_cpu_enable_fast_math=false",
    ]
    options = parse_flags(ProxyServerOptions, flags, {"SPS_TENANT_USER": "ada"})
    assert options.xla == ("--xla_cpu_enable_fast_math=false",)
    assert options.tenant_user == "ada"
    assert sum(t.chips for t in options.instance_types()) == 8


@pytest.mark.parametrize(
    "flag", ["--no_such_flag=1", "--xla_no_such_flag=1", "--token_file=/no/such/file"]
)
def test_a_wrong_command_line_ends_with_code_2(start_proxy: StartProxy, flag: str) -> None:
    proxy = start_proxy(flag)
    assert proxy.ready is None
    assert proxy.wait() == 2
    assert any(flag.split("=", maxsplit=1)[0] in line for line in proxy.lines)


# ---- start and end


def test_serves_and_ends_when_told(
    start_proxy: StartProxy, connect: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = start_proxy("--server_port=0", "--xla_tpu_no_matter=1")
    assert proxy.ready is not None
    for address in (address_of(proxy), f"127.0.0.1:{proxy.ready['port']}"):
        assert probe(address, DEADLINE_S).protocol == 25
        assert run_async(probe_async(address, DEADLINE_S)).protocol == 25
    for index in (0, 1):
        proxy.wait_for_line(f"Transition slice {index} unplaced -> placed")
    with monkeypatch.context() as patched:
        patched.setattr("shared_pathways_service.protocol.ifrt.PROTOCOL_MIN", 30)
        patched.setattr("shared_pathways_service.protocol.ifrt.PROTOCOL_MAX", 31)
        with pytest.raises(VersionSkew) as raised:
            probe(address_of(proxy), DEADLINE_S)
    assert "30 to 31" in raised.value.client
    assert "16 to 25" in raised.value.service
    client = connect(address_of(proxy))
    array = client.put(EIGHT, split(range(8)))
    np.testing.assert_array_equal(client.fetch(array), EIGHT)
    assert proxy.stop() == 0
    assert client.ended.wait(DEADLINE_S)
    assert not [line for line in proxy.lines if not GLOG.match(line)]
    with pytest.raises(ServiceNotReady):
        probe(address_of(proxy), 1.0)


@pytest.mark.race
@pytest.mark.parametrize("transport", ["core", "public"])
def test_it_ends_in_order_though_somebody_does_not_read_his_answers(
    start_proxy: StartProxy, transport: str
) -> None:
    proxy = start_proxy(f"--transport={transport}")
    with deaf(address_of(proxy), "/none/Such"):
        # Within the grace that the embedded service and a cluster give it.
        assert proxy.stop() == 0


def test_a_warm_proxy_waits_for_its_command_line(own_directories: Path) -> None:
    read_fd, write_fd = os.pipe()
    with (
        os.fdopen(read_fd, "rb") as ready,
        subprocess.Popen(
            [sys.executable, "-m", MODULE, "--standby"],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=(write_fd,),
            cwd=REPOSITORY,
        ) as process,
        contextlib.ExitStack() as stack,
    ):
        os.close(write_fd)
        stack.callback(process.kill)
        assert process.stdin is not None
        flags = [
            f"--server_socket={own_directories / 'warm'}",
            f"--virtual_slices={KIND}",
            f"--xla_dump_to={own_directories / 'dump'}",
            f"--ready_fd={write_fd}",
        ]
        process.stdin.write(json.dumps(flags).encode() + b"\n")
        process.stdin.close()
        assert json.loads(ready.readline())["pid"] == process.pid
        with RawClient(f"unix:{own_directories / 'warm'}") as client:
            client.compile(DOUBLE, [0])
        assert list((own_directories / "dump").glob("*double*"))
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 0


def test_a_warm_proxy_that_is_not_needed_ends() -> None:
    command = [sys.executable, "-m", MODULE, "--standby"]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, cwd=REPOSITORY, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 0


@pytest.mark.race
def test_a_warm_proxy_ends_with_its_parent_while_it_still_loads() -> None:
    source = f"""
import os, subprocess, sys
command = [sys.executable, "-m", "{MODULE}", "--standby", f"--parent_pid={{os.getpid()}}"]
child = subprocess.Popen(command, stdin=sys.stdin)
print(child.pid, flush=True)
child.wait()
"""
    # Its standard input stays open, here: only the parent's death can end it.
    with subprocess.Popen(
        [sys.executable, "-c", source],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=REPOSITORY,
    ) as parent:
        assert parent.stdout is not None
        proxy = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
        gone, _ = psutil.wait_procs([proxy], DEADLINE_S)
        assert gone


# ---- slices


def start_with(
    start_proxy: StartProxy, rm: str, report: Path, *flags: str, **kwargs: Any
) -> ServerProcess:
    return start_proxy(
        f"--resource_manager_address={rm}",
        "--tenant_name=ada-1",
        f"--exit_report={report}",
        *flags,
        **kwargs,
    )


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
def test_work_goes_on_while_the_resource_manager_is_away(
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


def test_a_refused_proxy_ends_and_says_why(
    make_service: MakeService, start_proxy: StartProxy, tmp_path: Path
) -> None:
    service = make_service()
    service.start_ready_workers("slice-0", "slice-1")
    reports = [tmp_path / "one", tmp_path / "two"]
    holder = service.tenant("bob", virtual_slices=[KIND, KIND])
    holder.expect("running")
    taken = start_proxy(
        f"--resource_manager_address={service.address}", f"--exit_report={reports[0]}"
    )
    unknown = start_proxy(
        f"--resource_manager_address={service.address}",
        f"--exit_report={reports[1]}",
        slices="tpuv4:2x2x1",
    )
    for proxy in (taken, unknown):
        assert proxy.wait() == 69
        proxy.wait_for_line("FAILED_PRECONDITION")
    first, second = (json.loads(report.read_text()) for report in reports)
    assert first["kind"] == "slices_taken"
    assert (first["wanted"], first["free"]) == ({KIND: 2}, {KIND: 0})
    assert first["holders"] == [f"bob@laptop: 2 x {KIND}"]
    assert first["spares"] == {}
    assert second["kind"] == "unknown_type"
    assert second["types"] == [KIND]


def wait_until_busy(proxy: ServerProcess) -> None:
    """Waits until a process that had nothing to do computes."""
    process = psutil.Process(proxy.pid)
    before = sum(process.cpu_times()[:2])
    deadline = time.monotonic() + DEADLINE_S
    while sum(process.cpu_times()[:2]) < before + 1.0:
        assert time.monotonic() < deadline
        time.sleep(0.05)


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


@pytest.mark.race
def test_an_endless_program_of_a_session_that_ended(
    start_proxy: StartProxy, connect: MakeClient, tmp_path: Path
) -> None:
    report = tmp_path / "report"
    proxy = start_proxy("--lost_program_grace_s=5", f"--exit_report={report}")
    with RawClient(address_of(proxy)) as first:
        endless = first.compile(ENDLESS, [0])
        (never,) = first.execute(endless, [first.put(FOUR, single(0))])
        first.execute(endless, [first.put(FOUR, single(0))])
        # (One that has not begun never does.)
        wait_until_busy(proxy)
        # Nobody waits for it any more.
        first.call("destruct_array", array_handle=[never])
    # The next session has the slice to itself, though not for ever.
    second = connect(address_of(proxy))
    (doubled,) = second.execute(second.compile(DOUBLE, [0]), [second.put(FOUR, single(0))])
    np.testing.assert_array_equal(second.fetch(doubled), 2 * FOUR)
    assert proxy.wait() == 75
    said = json.loads(report.read_text())
    assert (said["kind"], said["program"]) == ("abandoned_program", "endless")
    assert "after the end of its session" in said["reason"]


@pytest.mark.race
def test_a_program_over_two_slices_frees_the_one_that_lives(
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
def test_a_crash_amid_a_program_leaves_what_it_was_doing(
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
        deadline = time.monotonic() + DEADLINE_S
        while not read_unfinished(tmp_path / "last").running:
            assert time.monotonic() < deadline
            time.sleep(0.01)
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
def test_preempted_work_fails_and_goes_on_after_the_return(
    make_service: MakeService, start_proxy: StartProxy, connect: MakeClient, tmp_path: Path
) -> None:
    service = make_service("--preemption_grace_s=2")
    service.start_ready_workers("slice-0", "slice-1")
    proxy = start_with(start_proxy, service.address, tmp_path / "report")
    proxy.wait_for_line("2 of 2 slices placed")
    client = connect(address_of(proxy))
    array = client.put(FOUR, single(0))
    vip = service.tenant("vip", priority=2_000_000)
    proxy.wait_for_line("All slices will be taken in 2 s by vip@laptop of priority high-priority")
    np.testing.assert_array_equal(client.fetch(array), FOUR)
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
    proxy.wait_for_line("2 of 2 slices placed", times=2)
    np.testing.assert_array_equal(client.fetch(client.put(FOUR, single(0))), FOUR)
    with pytest.raises(Failed, match="preempted"):
        client.fetch(array)


def test_the_service_limits_what_a_proxy_may_hold(
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
