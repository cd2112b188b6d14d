"""What is asked of the stand-ins only: it needs TPUs, or no public source says it of the images."""

from __future__ import annotations

import contextlib
import re
import time
from pathlib import Path

import grpc
import jaxlib.version
import numpy as np
import pytest

from harness.layers.thorough import thorough
from harness.processes import DEADLINE_S, KIND
from harness.proxy.raw import Failed, RawClient, single
from shared_pathways_service.api.jax_releases import service_serdes
from shared_pathways_service.errors import VersionSkew
from shared_pathways_service.protocol import ifrt
from shared_pathways_service.protocol.ifrt.probe import probe
from shared_pathways_service.testing.google_images import (
    FULL_BUCKET,
    LOST_BUCKET,
    MACHINE_VARIABLE,
    MEMORY_WISH,
    MISSING_BUCKET,
    PLACEMENT_WISH,
    PROXY_MODULE,
    SERVER_MODULE,
)
from tests.testing.google_images.cluster import (
    ALL_READY,
    OF_LIBRARIES,
    OVERRIDE,
    PLAINTEXT,
    SERVER_READY,
    Cluster,
)


def test_logs_have_only_googles_lines(cluster: Cluster) -> None:
    manager = cluster.start_manager()
    worker = cluster.start_worker()
    manager.wait_for_line(ALL_READY)
    worker.wait_for_line(SERVER_READY.format(29005))
    worker.wait_for_line(r"\] MegaScale transport initialized\.$")
    worker.wait_for_line(r"\] MegaScale transport init succeeded\.$")
    address = re.escape(cluster.manager)
    worker.wait_for_line(rf"\] argv\[2\]: '--resource_manager_address={address}'$")
    _, proxy = cluster.start_serving()
    proxy.wait_for_line(rf"\] Signaling to RM {address}$")
    proxy.wait_for_line(r"\] Transition slice 0 unplaced -> placed$")
    # In this order none loses the server that it is connected to.
    for process in (proxy, worker, manager):
        process.stop()
        lines = [line for line in process.lines if not OF_LIBRARIES.match(line)]
        assert all(re.match(r"[IWEF]\d{4} \d\d:\d\d:\d\d\.\d{6} +\d+ ", x) for x in lines)
        assert ".py:" not in "\n".join(lines)
        # (Warnings keep their text, and which come depends on how busy the machine is.)
        written = "\n".join(line for line in lines if line.startswith("I"))
        for ours in ("generation", "position", "protocol", "tenant", "Session", "stopping"):
            assert ours not in written


def test_servers_with_plaintext_connect_to_each_other(cluster: Cluster) -> None:
    manager = cluster.start_manager(**PLAINTEXT)
    cluster.start_worker(**PLAINTEXT)
    manager.wait_for_line(ALL_READY)
    _, proxy = cluster.start_serving(**PLAINTEXT)
    proxy.wait_for_line(r"\] Transition slice 0 unplaced -> placed$")


@pytest.mark.parametrize(
    ("managers", "others"),
    [
        ({}, PLAINTEXT),
        pytest.param(PLAINTEXT, {}, marks=pytest.mark.thorough),
        pytest.param(PLAINTEXT, {OVERRIDE: "true"}, marks=pytest.mark.thorough),
    ],
)
def test_servers_of_other_credentials_cannot_connect(
    cluster: Cluster, managers: dict[str, str], others: dict[str, str]
) -> None:
    manager = cluster.start_manager(**managers)
    worker = cluster.start_worker(**others)
    worker.wait_for_line(r"UNAVAILABLE: failed to connect")
    _, proxy = cluster.start_serving(**others)
    # They try again, as long as they live.
    proxy.wait_for_line(r"UNAVAILABLE: failed to connect", times=2)
    assert not [line for line in worker.lines if "init succeeded" in line]
    assert not [line for line in manager.lines if "Slices Now Ready" in line]
    # A proxy does not fit either where workers are ready.
    cluster.start_worker(**managers)
    manager.wait_for_line(ALL_READY)
    proxy.wait_for_line(r"UNAVAILABLE: failed to connect", times=6)
    assert not [line for line in proxy.lines if "unplaced -> placed" in line]


@pytest.mark.parametrize(
    "variables",
    [
        {"TPU_TYPE": ""},
        *thorough({"TPU_TYPE": "v6e"}, {"TPU_TYPE": "tpuv5e:2x2"}, {"TPU_TYPE": "tpuv6e:2x4"}),
        *thorough({MACHINE_VARIABLE: "tpuv6e:2x4"}),
        pytest.param({MACHINE_VARIABLE: ""}, id="no TPUs, whatever TPU_TYPE says"),
    ],
)
def test_a_worker_of_another_type_is_not_counted(
    cluster: Cluster, variables: dict[str, str]
) -> None:
    manager = cluster.start_manager()
    other = cluster.start_worker(**variables)
    manager.wait_for_line(
        r"\] FAILED_PRECONDITION: The newly added instance does not match with the expected "
        r"instances; this is currently not allowed\. for job \d+$"
    )
    assert not [line for line in manager.lines if "Slices Now Ready" in line]
    cluster.start_worker(TPU_TYPE="", **{MACHINE_VARIABLE: KIND})
    manager.wait_for_line(ALL_READY)
    assert not [line for line in other.lines if "init succeeded" in line]
    assert other.stop() == 143


def test_taken_slices_are_awaited_without_naming_holders(cluster: Cluster) -> None:
    cluster.start_manager()
    cluster.start_worker()
    _, first = cluster.start_serving()
    first.wait_for_line(r"\] Transition slice 0 unplaced -> placed$")
    _, second = cluster.start_serving()
    second.wait_for_line(r"\] Waiting to acquire placements$")
    assert first.stop() == 143
    second.wait_for_line(r"\] Transition slice 0 unplaced -> placed$")
    assert not [line for line in second.lines if "FAILED_PRECONDITION" in line]


def test_an_impossible_request_is_a_failed_precondition(cluster: Cluster) -> None:
    cluster.start_manager()
    _, proxy = cluster.start_proxy(kind="tpuv5:2x2x1")
    proxy.wait_for_line(r"\] FAILED_PRECONDITION: .*tpuv5:2x2x1")


def test_the_values_that_are_known_are_those_of_this_release(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, _ = cluster.start_serving()
    assert probe(address, DEADLINE_S).protocol == ifrt.PROTOCOL_MAX
    oldest, newest = service_serdes(jaxlib.version.__version__, ours=False) or (0, 0)
    monkeypatch.setattr("shared_pathways_service.protocol.ifrt.probe._serdes", lambda: (9, 9))
    with pytest.raises(VersionSkew, match=rf"client = \[9, 9\], server = \[{oldest}, {newest}\]"):
        probe(address, DEADLINE_S)


@pytest.mark.parametrize("bucket", [MISSING_BUCKET, f"{FULL_BUCKET}/path"])
def test_a_bucket_that_cannot_be_used_ends_each_server(cluster: Cluster, bucket: str) -> None:
    flag = f"--gcs_scratch_location={bucket}"
    manager = cluster.start(SERVER_MODULE, "--node_type=resource_manager", flag)
    worker = cluster.start(SERVER_MODULE, "--resource_manager_address=127.0.0.1:1", flag)
    proxy = cluster.start(PROXY_MODULE, f"--virtual_slices={KIND}", flag)
    for process in (manager, worker, proxy):
        assert process.wait() == 1
        assert "Error while initializing persistent cache storage" in process.lines[-1]


def test_a_bucket_may_be_deleted_while_its_servers_run(cluster: Cluster, tmp_path: Path) -> None:
    deleted = tmp_path / "deleted"
    flag = f"--gcs_scratch_location={LOST_BUCKET}{deleted}"
    running = cluster.start_manager(flag)
    deleted.touch()
    assert cluster.start(SERVER_MODULE, "--node_type=resource_manager", flag).wait() == 1
    running.stop()
    assert "bucket" not in running.lines[-1]


def test_a_placement_may_take_time(cluster: Cluster) -> None:
    cluster.start_manager()
    cluster.start_worker()
    began = time.monotonic()
    _, proxy = cluster.start_serving(f"{PLACEMENT_WISH}=3")
    proxy.wait_for_line(r"\] Transition slice 0 unplaced -> placed$")
    assert time.monotonic() - began > 3
    assert PLACEMENT_WISH not in "\n".join(proxy.lines)


def test_a_full_memory_ends_the_proxy_with_both_words(cluster: Cluster) -> None:
    address, process = cluster.start_serving(f"{MEMORY_WISH}=1000")
    with RawClient(address) as client:
        array = client.put(np.ones(100, np.float32), single(0))
        client.ready(array)
        with contextlib.suppress(Failed, ConnectionError, grpc.RpcError):
            client.ready(client.put(np.ones(1000, np.float32), single(0)))
    assert process.wait() == 143
    log = "\n".join(process.lines)
    assert re.search(r"\] RESOURCE_EXHAUSTED: .* needs 4000 bytes", log)
    assert "*** SIGTERM received by PID" in log
