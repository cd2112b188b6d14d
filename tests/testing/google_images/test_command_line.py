"""Flags, variables, users and signals of the stand-ins for Google's images."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

from harness.processes import DEADLINE_S
from harness.proxy.raw import RawClient
from tests.testing.google_images.cluster import NOBODY, Cluster


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


def test_our_own_variables_are_unknown(cluster: Cluster, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    variables = {"SPS_TOKEN_FILE": str(token), "SPS_LOG_FORMAT": "json"}
    address, _ = cluster.start_serving(**variables)
    with RawClient(address) as client:
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
