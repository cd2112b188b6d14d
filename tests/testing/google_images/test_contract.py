"""Stand-ins for Google's images behave as public sources say."""

from __future__ import annotations

import re
from typing import Any

import grpc
import jaxlib.version
import pytest

from harness.processes import DEADLINE_S, KIND
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


@pytest.mark.parametrize("value", [None, "1", "True", "TRUE", "yes", "false", " true"])
def test_plaintext_is_refused_unless_the_variable_is_exactly_true(
    cluster: Cluster, value: str | None
) -> None:
    address, _ = cluster.start_serving(insecure=value)
    assert greet(address, DEADLINE_S) is Greeting.HUNG_UP
    assert refuses_plaintext(address, DEADLINE_S)


def test_plaintext_is_accepted_if_the_variable_is_true(cluster: Cluster) -> None:
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


def test_requests_of_our_clients_only_are_unknown(cluster: Cluster) -> None:
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


def test_the_resource_manager_does_not_know_our_calls(cluster: Cluster) -> None:
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


def test_servers_with_plaintext_connect_to_each_other(cluster: Cluster) -> None:
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
        r"\] FAILED_PRECONDITION: The newly added instance does not match with the expected "
        r"instances; this is currently not allowed\. for job \d+$"
    )
    assert not [line for line in manager.lines if "Slices Now Ready" in line]
    cluster.start_worker(TPU_TYPE="", **{MACHINE_VARIABLE: KIND})
    manager.wait_for_line(ALL_READY)
    assert not [line for line in other.lines if "init succeeded" in line]
    assert other.stop() == 143


def test_disjoint_versions_are_refused_like_openxlas_server(
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


def test_values_unknown_to_openxlas_server_are_refused(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, _ = cluster.start_serving()
    oldest, newest = service_serdes(jaxlib.version.__version__, ours=False) or (0, 0)
    monkeypatch.setattr("shared_pathways_service.protocol.ifrt.probe._serdes", lambda: (9, 9))
    with pytest.raises(VersionSkew, match=rf"client = \[9, 9\], server = \[{oldest}, {newest}\]"):
        probe(address, DEADLINE_S)


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
