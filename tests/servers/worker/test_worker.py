"""The worker as a process: what it tells, when it gives up, how it ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest

from harness.processes import DEADLINE_S, KIND, REPOSITORY, ServerProcess, Service
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.flags.parsing import parse_flags
from shared_pathways_service.servers.worker.flags import WorkerOptions
from tests.servers.attacking import deaf
from tests.servers.conftest import MakeService

MODULE = "shared_pathways_service.servers.worker"
NOWHERE = "--resource_manager_address=unix:/none/rm"


def test_it_writes_the_log_lines_of_the_real_image(service: Service) -> None:
    worker = service.start_worker("slice-0")
    worker.wait_for_line(r"\] MegaScale transport init succeeded\.$")
    lines = [line.partition("] ")[2] for line in worker.lines]
    assert lines[1] == f"argv[2]: '--resource_manager_address={service.address}'"
    assert lines[-3:] == [
        f"Pathways Server serving on unix:{service.root}/w-slice-0",
        "MegaScale transport initialized.",
        "MegaScale transport init succeeded.",
    ]


def test_on_a_port_it_says_so_as_the_real_image_does(service: Service) -> None:
    worker = service.start_worker("slice-0", "--server_socket=", "--server_port=0")
    assert worker.ready
    port = worker.ready["port"]
    worker.wait_for_line(rf"\] Pathways Server serving on \[::\]:{port}$")
    (entry,) = service.wait_for_states({"slice-0": "ready"}).slices
    assert entry.workers[0].address == f"127.0.0.1:{port}"
    connections = psutil.Process(worker.pid).net_connections("tcp")
    assert {c.laddr.ip.removeprefix("::ffff:") for c in connections} == {"127.0.0.1"}


def test_it_is_known_by_the_variables_of_a_cluster(service: Service) -> None:
    variables = {"MEGASCALE_SLICE_ID": "1", "JOB_COMPLETION_INDEX": "0", "TPU_WORKER_ID": ""}
    flags = [f"--resource_manager_address={service.address}", "--server_port=0"]
    with ServerProcess(MODULE, flags, env=variables):
        (entry,) = service.wait_for_states({"slice-1": "ready"}).slices
        assert (entry.instance_type, entry.workers[0].host_index) == (KIND, 0)


def test_it_answers_probes_of_its_health(service: Service) -> None:
    service.start_worker("slice-0")
    with grpc.insecure_channel(f"unix:{service.root}/w-slice-0") as channel:
        check: Any = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert check(b"", timeout=DEADLINE_S) == b"\x08\x01"


@pytest.mark.real_starts
def test_it_imports_no_jax() -> None:
    code = (
        "import sys; import shared_pathways_service.servers.worker.__main__;"
        "import shared_pathways_service.servers.resource_manager.__main__;"
        "print([m for m in sys.modules if m.split('.')[0] in ('jax', 'jaxlib', 'numpy')])"
    )
    said = subprocess.check_output([sys.executable, "-c", code], text=True, cwd=REPOSITORY)
    assert said == "[]\n"


# ---- the manager goes and comes


@pytest.mark.race
def test_it_waits_for_a_manager_that_is_not_there_yet(make_service: MakeService) -> None:
    service = make_service()
    service.rm.kill()
    worker = service.start_worker("slice-0")
    worker.wait_for_line("UNAVAILABLE.*trying again")
    service.start_rm()
    service.wait_for_states({"slice-0": "ready"})


@pytest.mark.race
def test_it_comes_back_with_the_same_incarnation(service: Service) -> None:
    service.start_worker("slice-0")
    before = service.wait_for_states({"slice-0": "ready"}).slices[0].workers[0]
    for _ in range(2):
        service.rm.kill()
        service.start_rm()
        after = service.wait_for_states({"slice-0": "ready"}).slices[0].workers[0]
        assert (after.incarnation, after.pid) == (before.incarnation, before.pid)


# ---- refused


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--instance_type=tpuv5e:2x2"], "instance_type"),
        (["--host_index=3"], "host_index"),
        (["--host_count=2"], "host_count"),
    ],
)
def test_what_the_manager_refuses_ends_it(service: Service, flags: list[str], reason: str) -> None:
    worker = service.start_worker("slice-0", *flags)
    assert worker.wait() == 1
    worker.wait_for_line(rf"^E.*\] {reason}=")


@pytest.mark.race
def test_a_newer_worker_of_the_same_host_takes_the_olders_place(service: Service) -> None:
    old = service.start_worker("slice-0")
    service.wait_for_states({"slice-0": "ready"})
    new = service.start_worker("slice-0", f"--server_socket={service.root}/w-new")
    assert old.wait() == 1
    old.wait_for_line("another worker has taken the place of worker 0 of slice-0")
    (entry,) = service.wait_for_states({"slice-0": "ready"}).slices
    assert entry.workers[0].pid == new.pid


def test_without_the_token_it_ends(make_service: MakeService, own_directories: Path) -> None:
    right, wrong = own_directories / "right", own_directories / "wrong"
    for path in (right, wrong):
        path.write_text(f"{path.name}-token\n")
        path.chmod(0o600)
    service = make_service()
    service.rm.kill()
    service.token = "right-token"
    service.start_rm(f"--token_file={right}")
    for flag in ("--token_file=", f"--token_file={wrong}"):
        worker = service.start_worker("slice-0", flag)
        assert worker.wait() == 1
        worker.wait_for_line("UNAUTHENTICATED")
        assert "wrong-token" not in "\n".join(worker.lines)
    service.start_worker("slice-0", f"--token_file={right}")
    service.wait_for_states({"slice-0": "ready"})


# ---- its end


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.race
def test_a_stopped_worker_signs_off(service: Service, sig: signal.Signals) -> None:
    worker = service.start_worker("slice-0")
    service.wait_for_states({"slice-0": "ready"})
    worker.signal(sig)
    assert worker.wait() == 0
    service.rm.wait_for_line("slice.lost slice-0 .* is gone: the worker was told to stop")


@pytest.mark.race
def test_a_stop_does_not_wait_for_a_hanging_manager(service: Service) -> None:
    worker = service.start_worker("slice-0")
    service.wait_for_states({"slice-0": "ready"})
    service.rm.signal(signal.SIGSTOP)
    assert worker.stop() == 0
    service.rm.signal(signal.SIGCONT)


@pytest.mark.race
def test_a_stop_works_without_a_manager() -> None:
    with ServerProcess(MODULE, ["--server_port=0", NOWHERE]) as worker:
        worker.wait_for_line("trying again")
        assert worker.stop() == 0


@pytest.mark.race
def test_a_stop_does_not_wait_for_a_client_that_reads_nothing(
    own_directories: Path,
) -> None:
    socket = own_directories / "w"
    with ServerProcess(MODULE, [f"--server_socket={socket}", NOWHERE]) as worker:
        assert worker.ready
        with deaf(f"unix:{socket}", "/grpc.health.v1.Health/Check"):
            assert worker.stop() == 0


@pytest.mark.race
def test_sigill_is_exit_code_132(service: Service) -> None:
    worker = service.start_worker("slice-0")
    service.wait_for_states({"slice-0": "ready"})
    worker.signal(signal.SIGILL)
    assert worker.wait() == 132
    service.wait_for_states({"slice-0": "lost"})


@pytest.mark.race
def test_it_ends_with_its_parent() -> None:
    with subprocess.Popen(["sleep", "600"]) as parent:
        flags = ["--server_port=0", NOWHERE, f"--parent_pid={parent.pid}"]
        with ServerProcess(MODULE, flags) as worker:
            assert worker.ready
            parent.kill()
            assert worker.wait() == 0


# ---- flags


@pytest.mark.parametrize(
    ("argv", "field"),
    [
        ([], "--resource_manager_address"),
        (["--resource_manager_address=host"], "--resource_manager_address"),
        (["--resource_manager_address=host:0"], "--resource_manager_address"),
        (["--resource_manager_address=host:70000"], "--resource_manager_address"),
        (["--resource_manager_address=unix:relative"], "--resource_manager_address"),
        ([NOWHERE, "--slice_id=Slice_1"], "--slice_id"),
        ([NOWHERE, "--host_index=-1"], "--host_index"),
        ([NOWHERE, "--host_count=0"], "--host_count"),
        ([NOWHERE, "--instance_type=v6e"], "--instance_type"),
        ([NOWHERE, "--gcs_scratch_location=s3://b"], "--gcs_scratch_location"),
        ([NOWHERE, "--beat_interval_s=0"], "--beat_interval_s"),
    ],
)
def test_a_wrong_flag_is_named(argv: list[str], field: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_flags(WorkerOptions, argv, {})
    assert caught.value.field == field


@pytest.mark.parametrize(
    "address", ["head-0.svc:29001", "10.0.0.1:29001", "[::1]:29001", "unix:/run/rm"]
)
def test_addresses_of_every_form_are_taken(address: str) -> None:
    options = parse_flags(WorkerOptions, [f"--resource_manager_address={address}"], {})
    assert options.resource_manager_address == address


def test_a_variable_with_a_number_names_the_slice() -> None:
    environ = {"MEGASCALE_SLICE_ID": "7", "TPU_WORKER_ID": "2", "JOB_COMPLETION_INDEX": "3"}
    options = parse_flags(WorkerOptions, [NOWHERE], environ)
    assert (options.slice_id, options.host_index) == ("slice-7", 2)
    options = parse_flags(WorkerOptions, [NOWHERE, "--slice_id=mine", "--host_index=0"], environ)
    assert (options.slice_id, options.host_index) == ("mine", 0)
