"""The proxy as a process: its flags, its start, a warm start, and its end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from harness.processes import DEADLINE_S, REPOSITORY, run_async
from harness.proxy.programs import DOUBLE
from harness.proxy.raw import RawClient, split
from shared_pathways_service.errors import InvalidRequestError, ServiceNotReady, VersionSkew
from shared_pathways_service.flags.parsing import parse_flags
from shared_pathways_service.protocol.ifrt.probe import probe, probe_async
from shared_pathways_service.servers.proxy.flags import ProxyServerOptions
from tests.servers.attacking import deaf
from tests.servers.conftest import MakeService
from tests.servers.proxy.conftest import KIND, MODULE, MakeClient, StartProxy
from tests.servers.proxy.processes import EIGHT, GLOG, address_of

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
        *(
            (
                [f"--virtual_slices={KIND}", f"--slow_executor_{name}={value}"],
                f"--slow_executor_{name}",
            )
            for name, values in (("ratio", ("1", "nan", "x")), ("runs", ("1", "2.5", "10001")))
            for value in values
        ),
    ],
)
def test_wrong_flags_are_named(flags: list[str], named: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        parse_flags(ProxyServerOptions, flags, {})
    assert raised.value.field == named


def test_flags_of_googles_image_are_accepted() -> None:
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


def test_a_proxy_serves_until_a_stop_signal(
    start_proxy: StartProxy, connect: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = start_proxy("--server_port=0", "--xla_tpu_no_matter=1")
    assert proxy.ready is not None
    for address in (address_of(proxy), f"127.0.0.1:{proxy.ready['port']}"):
        assert probe(address, DEADLINE_S).protocol == 25
        assert run_async(probe_async(address, DEADLINE_S)).protocol == 25
    proxy.wait_for_line("Pathways Proxy serving on")
    before = "".join(proxy.lines).partition("Pathways Proxy serving on")[0]
    for index in (0, 1):
        assert f"Transition slice {index} unplaced -> placed" in before
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
def test_a_client_that_does_not_read_does_not_delay_the_end(
    start_proxy: StartProxy, transport: str
) -> None:
    proxy = start_proxy(f"--transport={transport}")
    with deaf(address_of(proxy), "/none/Such"):
        # Within the grace that the embedded service and a cluster give it.
        assert proxy.stop() == 0


def test_a_standby_waits_for_its_command_line(own_directories: Path) -> None:
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


def test_an_unneeded_standby_ends() -> None:
    command = [sys.executable, "-m", MODULE, "--standby"]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, cwd=REPOSITORY, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 0


@pytest.mark.race
def test_a_loading_standby_ends_with_its_parent() -> None:
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
