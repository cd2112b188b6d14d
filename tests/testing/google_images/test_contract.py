"""What public sources say of Google's images holds of their stand-ins."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import jaxlib.version
import psutil
import pytest

from harness.processes import DEADLINE_S, KIND, ServerProcess
from harness.proxy.raw import RawClient
from shared_pathways_service.api.jax_releases import service_serdes
from shared_pathways_service.errors import VersionSkew
from shared_pathways_service.jax_client.plugin.greeting import Greeting, greet, refuses_plaintext
from shared_pathways_service.metrics import measurement_messages
from shared_pathways_service.protocol import ifrt
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.protocol import resource_manager_pb2_grpc as pb_grpc
from shared_pathways_service.protocol.auth import bearer
from shared_pathways_service.protocol.ifrt.probe import probe
from shared_pathways_service.testing.google_images import (
    MACHINE_VARIABLE,
    PROXY_MODULE,
    SERVER_MODULE,
)

VARIABLE = "IFRT_PROXY_USE_INSECURE_GRPC_CREDENTIALS"
OVERRIDE = "PATHWAYS_UNSAFE_UNSAFE_OVERRIDE_GRPC_CREDENTIALS"
PLAINTEXT = {OVERRIDE: "grpc_insecure_override"}
NOBODY = 65534
_numbers = itertools.count(2)

#: Log lines of the page "Troubleshoot Pathways on cloud", with their sources.
PROXY_READY = r"proxy_server\.cc:125\] IFRT proxy server started with status OK$"
SERVER_READY = r"server_lib\.cc:1473\] Pathways Server serving on \[::\]:{}$"
#: What gRPC and XLA write themselves, before their log has a form and a time of day.
OF_LIBRARIES = re.compile(r"WARNING: All log messages before absl|[IWEF]0000 00:00:\d+\.\d{6} ")
ALL_READY = r"multi_job_allocator\.cc:1063\] \*\*\* 1/1 Pathways Slices Now Ready \*\*\*$"


class Cluster:
    """Stand-ins that run; each has a loopback address of its own, and the images' ports."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self.manager = ""

    def start(self, module: str, *flags: str, **variables: str) -> tuple[str, ServerProcess]:
        """Returns the host of a stand-in that was started, and its process."""
        pid = os.getpid()
        host = f"127.{next(_numbers)}.{pid >> 8 & 255}.{pid & 255 or 1}"
        env = {"SPS_BIND_ADDRESS": host, **variables}
        process = ServerProcess(module, flags, env=env, tells_ready=False)
        return host, self._stack.enter_context(process)

    def start_manager(self, *flags: str, **variables: str) -> ServerProcess:
        host, process = self.start(
            SERVER_MODULE,
            "--server_port=29001",
            "--node_type=resource_manager",
            "--instance_count=1",
            f"--instance_type={KIND}",
            "--enforce_kernel_ipv6_support=false",
            *flags,
            **variables,
        )
        process.wait_for_line(SERVER_READY.format(29001))
        self.manager = f"{host}:29001"
        return process

    def start_worker(self, **variables: str) -> ServerProcess:
        _, process = self.start(
            SERVER_MODULE,
            "--server_port=29005",
            f"--resource_manager_address={self.manager}",
            "--gcs_scratch_location=gs://bucket",
            "--tpu_pinned_host_allocation_recycle=true",
            "--tpu_premapped_buffer_size=274877906944",
            "--enforce_kernel_ipv6_support=false",
            **{"MEGASCALE_SLICE_ID": "0", "TPU_TYPE": KIND, **variables},
        )
        return process

    def start_proxy(
        self, *flags: str, kind: str = KIND, insecure: str | None = "true", **variables: str
    ) -> tuple[str, ServerProcess]:
        """Returns the address of a proxy, and its process."""
        manager = [f"--resource_manager_address={self.manager}"] if self.manager else []
        host, process = self.start(
            PROXY_MODULE,
            "--server_port=29000",
            f"--virtual_slices={kind}",
            *manager,
            *flags,
            **({} if insecure is None else {VARIABLE: insecure}),
            **variables,
        )
        return f"{host}:29000", process

    def start_serving(self, *flags: str, **more: Any) -> tuple[str, ServerProcess]:
        """Does the same, and waits until the proxy serves."""
        address, process = self.start_proxy(*flags, **more)
        process.wait_for_line(PROXY_READY)
        return address, process


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.delenv(OVERRIDE, raising=False)
    monkeypatch.delenv(MACHINE_VARIABLE, raising=False)
    with contextlib.ExitStack() as stack:
        yield Cluster(stack)


def test_logs_have_googles_lines_and_none_of_ours(cluster: Cluster) -> None:
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


@pytest.mark.parametrize("value", [None, "1", "True", "TRUE", "yes", "false", " true"])
def test_plaintext_is_hung_up_on_unless_the_variable_is_exactly_true(
    cluster: Cluster, value: str | None
) -> None:
    address, _ = cluster.start_serving(insecure=value)
    assert greet(address, DEADLINE_S) is Greeting.HUNG_UP
    assert refuses_plaintext(address, DEADLINE_S)


def test_plaintext_is_spoken_if_the_variable_is_true(cluster: Cluster) -> None:
    address, _ = cluster.start_serving()
    assert greet(address, DEADLINE_S) is Greeting.HTTP2
    with RawClient(address) as client:
        assert client.session_id


def test_the_session_of_a_second_client_is_cancelled(cluster: Cluster) -> None:
    address, _ = cluster.start_serving()
    with RawClient(address) as first:
        with RawClient(address, send_init=False) as second:
            assert second.status()[0] is grpc.StatusCode.CANCELLED
        # The first one has what it had.
        assert first.call("get_default_device_assignment", num_replicas=1, num_partitions=1)


def test_what_only_our_clients_say_or_ask_is_unknown(cluster: Cluster) -> None:
    address, _ = cluster.start_serving()
    ours = {"sps_token": b"t", "sps_transfer_dir": b"/no/such", "sps_jaxlib_version": b"0.0.1"}
    with RawClient(address, initialization_data=ours) as client:
        assert client.session_id
        method = f"/{measurement_messages.SERVICE}/{measurement_messages.METHOD}"
        ask: Any = client.channel.unary_unary(method)
        with pytest.raises(grpc.RpcError) as caught:
            ask(b"", timeout=DEADLINE_S)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        del caught
        version: Any = client.channel.unary_unary(f"/{ifrt.SERVICE}/GetVersion")
        request = ifrt.proxy_pb2.GrpcGetVersionRequest()
        request.min_version.protocol_version = ifrt.PROTOCOL_MIN
        request.max_version.protocol_version = ifrt.PROTOCOL_MAX
        request.min_version.ifrt_serdes_version_number = ifrt.SERDES_MIN
        request.max_version.ifrt_serdes_version_number = ifrt.SERDES_MAX
        _, call = version.with_call(request.SerializeToString(), timeout=DEADLINE_S)
        for key, _value in (*call.initial_metadata(), *call.trailing_metadata()):
            assert not key.startswith("sps")


def test_the_resource_manager_knows_none_of_our_calls(cluster: Cluster) -> None:
    manager = cluster.start_manager()
    cluster.start_worker()
    manager.wait_for_line(ALL_READY)
    with grpc.insecure_channel(cluster.manager) as channel:
        stub = pb_grpc.ResourceManagerStub(channel)
        for metadata in ((), bearer("token")):
            with pytest.raises(grpc.RpcError) as caught:
                stub.GetStatus(pb.GetStatusRequest(), metadata=metadata, timeout=DEADLINE_S)
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
            del caught


def test_servers_that_all_speak_plaintext_get_along(cluster: Cluster) -> None:
    manager = cluster.start_manager(**PLAINTEXT)
    cluster.start_worker(**PLAINTEXT)
    manager.wait_for_line(ALL_READY)
    _, proxy = cluster.start_serving(**PLAINTEXT)
    proxy.wait_for_line(r"\] Transition slice 0 unplaced -> placed$")


@pytest.mark.parametrize(
    ("managers", "others"), [({}, PLAINTEXT), (PLAINTEXT, {}), (PLAINTEXT, {OVERRIDE: "true"})]
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
        {"TPU_TYPE": "v6e"},
        {"TPU_TYPE": "tpuv5e:2x2"},
        {"TPU_TYPE": "tpuv6e:2x4"},
        {MACHINE_VARIABLE: "tpuv6e:2x4"},
        pytest.param({MACHINE_VARIABLE: ""}, id="no TPUs, whatever TPU_TYPE says"),
    ],
)
def test_a_worker_of_another_type_is_not_counted(
    cluster: Cluster, variables: dict[str, str]
) -> None:
    manager = cluster.start_manager()
    other = cluster.start_worker(**variables)
    manager.wait_for_line(
        r"\] The newly added instance does not match with the expected instances$"
    )
    assert not [line for line in manager.lines if "Slices Now Ready" in line]
    cluster.start_worker(TPU_TYPE="", **{MACHINE_VARIABLE: KIND})
    manager.wait_for_line(ALL_READY)
    assert not [line for line in other.lines if "init succeeded" in line]
    assert other.stop() == 0


def test_versions_that_do_not_meet_are_refused_as_by_openxlas_server(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, _ = cluster.start_serving()
    assert probe(address, DEADLINE_S).protocol == ifrt.PROTOCOL_MAX
    monkeypatch.setattr(ifrt, "PROTOCOL_MIN", 1)
    monkeypatch.setattr(ifrt, "PROTOCOL_MAX", 1)
    with pytest.raises(VersionSkew) as caught:
        probe(address, DEADLINE_S)
    service = caught.value.service
    caught.value.__cause__ = None
    del caught
    assert re.fullmatch(
        r"IFRT Proxy client and server failed to agree on the protocol version; supported "
        r"versions: client = \[1, 1\], server = \[\d+, \d+\]",
        service,
    )


def test_values_that_openxlas_server_does_not_read_are_refused(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, _ = cluster.start_serving()
    oldest, newest = service_serdes(jaxlib.version.__version__, ours=False) or (0, 0)
    monkeypatch.setattr("shared_pathways_service.protocol.ifrt.probe._serdes", lambda: (9, 9))
    with pytest.raises(VersionSkew, match=rf"client = \[9, 9\], server = \[{oldest}, {newest}\]"):
        probe(address, DEADLINE_S)


def test_taken_slices_are_waited_for_without_a_word_on_who_has_them(cluster: Cluster) -> None:
    cluster.start_manager()
    cluster.start_worker()
    _, first = cluster.start_serving()
    first.wait_for_line(r"\] Transition slice 0 unplaced -> placed$")
    _, second = cluster.start_serving()
    second.wait_for_line(r"\] Waiting for placement$")
    assert first.stop() == 0
    second.wait_for_line(r"\] Transition slice 0 unplaced -> placed$")
    assert not [line for line in second.lines if "FAILED_PRECONDITION" in line]


def test_a_request_that_can_never_be_met_is_a_failed_precondition(cluster: Cluster) -> None:
    cluster.start_manager()
    _, proxy = cluster.start_proxy(kind="tpuv5:2x2x1")
    proxy.wait_for_line(r"\] FAILED_PRECONDITION: .*tpuv5:2x2x1")


def test_all_flags_of_the_public_manifests_are_taken(cluster: Cluster) -> None:
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
def test_a_scratch_location_that_is_not_on_gcs_is_refused(cluster: Cluster, module: str) -> None:
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


def test_the_proxy_runs_as_nobody_and_ends_whole(cluster: Cluster) -> None:
    _, process = cluster.start_serving()
    first = psutil.Process(process.pid)
    family = [first, *first.children(recursive=True)]
    expected = NOBODY if os.geteuid() == 0 else os.geteuid()
    assert {member.uids().effective for member in family} == {expected}
    process.kill()
    psutil.wait_procs(family, timeout=DEADLINE_S)
    assert not [member for member in family if member.is_running()]


def test_a_stop_signal_ends_it_well(cluster: Cluster) -> None:
    _, process = cluster.start_serving()
    assert process.stop() == 0
