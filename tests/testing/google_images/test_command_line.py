"""Flags, variables, users and signals of the stand-ins for Google's images."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from harness.processes import DEADLINE_S, KIND
from harness.proxy.raw import RawClient
from shared_pathways_service.testing.google_images import (
    PROXY_MODULE,
    SERVER_MODULE,
)
from tests.testing.google_images.cluster import NOBODY, PROXY_READY, VARIABLE, Cluster


def test_all_flags_of_the_public_manifests_are_accepted(cluster: Cluster) -> None:
    cluster.start_manager("--gcs_scratch_location=gs://bucket", "--temporary_flags_for_debugging=x")
    cluster.start_worker()
    _, proxy = cluster.start_serving(
        "--gcs_scratch_location=gs://bucket/path",
        "--num_elastic_slices=0",
        "--sidecar_name=external",
        "--cloud_pathways_external_sidecar_port=50051",
        "--cloud_pathways_external_sidecar_connect_timeout=30s",
        "--temporary_flags_for_debugging=temporary_flag=value",
        "--xla_cpu_enable_fast_math=false",
    )
    proxy.wait_for_line(r"\] Transition slice 0 unplaced -> placed$")


@pytest.mark.parametrize(
    ("module", "flags"),
    [
        (PROXY_MODULE, ["--max_sessions=3"]),
        (PROXY_MODULE, ["--token_file=/token"]),
        (PROXY_MODULE, ["--last_requests_file=/dev/termination-log"]),
        (SERVER_MODULE, ["--node_type=resource_manager", "--num_spares=1"]),
        (SERVER_MODULE, ["--slice_id=0"]),
    ],
)
def test_our_own_flags_are_unknown(cluster: Cluster, module: str, flags: list[str]) -> None:
    _, process = cluster.start(module, *flags)
    assert process.wait() == 1
    name = flags[-1].removeprefix("--").partition("=")[0]
    assert process.lines[-1] == f"ERROR: Unknown command line flag '{name}'"


@pytest.mark.parametrize("module", [PROXY_MODULE, SERVER_MODULE])
def test_a_scratch_location_outside_gcs_is_refused(cluster: Cluster, module: str) -> None:
    flags = ["--gcs_scratch_location=/tmp/scratch", f"--virtual_slices={KIND}"]
    if module == SERVER_MODULE:
        flags = [flags[0], "--resource_manager_address=127.0.0.1:1"]
    _, process = cluster.start(module, *flags)
    assert process.wait() != 0
    assert "gs://" in "\n".join(process.lines)


def test_our_own_variables_are_unknown(cluster: Cluster, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    host, process = cluster.start(
        PROXY_MODULE,
        "--server_port=29000",
        f"--virtual_slices={KIND}",
        **{VARIABLE: "true", "SPS_TOKEN_FILE": str(token), "SPS_LOG_FORMAT": "json"},
    )
    process.wait_for_line(PROXY_READY)
    with RawClient(f"{host}:29000") as client:
        assert client.session_id


def test_the_proxy_runs_unprivileged_and_ends_with_its_children(cluster: Cluster) -> None:
    _, process = cluster.start_serving()
    first = psutil.Process(process.pid)
    family = [first, *first.children(recursive=True)]
    expected = NOBODY if os.geteuid() == 0 else os.geteuid()
    assert {member.uids().effective for member in family} == {expected}
    process.kill()
    psutil.wait_procs(family, timeout=DEADLINE_S)
    assert not [member for member in family if member.is_running()]


def test_a_stop_signal_is_logged_and_ends_the_server(cluster: Cluster) -> None:
    _, process = cluster.start_serving()
    assert process.stop() == 143
    assert "*** SIGTERM received by PID " in process.lines[-2]
    assert process.lines[-1].endswith("] RAW: Raising signal 15 with default behavior")
