"""What is relied on of Google's images: the stand-ins must do it as the images do.

The images are asked where the environment names them (`conftest`). What needs a TPU, or what no
public source says, is asked of the stand-ins only (`test_stand_ins`).
"""

from __future__ import annotations

import re
from typing import Any

import grpc
import pytest

from harness.deadlines import wait_until
from harness.layers.thorough import thorough
from harness.processes import DEADLINE_S, KIND
from harness.proxy.raw import RawClient
from shared_pathways_service.errors import VersionSkew
from shared_pathways_service.jax_client.plugin.greeting import Greeting, greet, refuses_plaintext
from shared_pathways_service.metrics import measurement_messages
from shared_pathways_service.protocol import ifrt
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.protocol import resource_manager_pb2_grpc as pb_grpc
from shared_pathways_service.protocol.auth import bearer
from shared_pathways_service.protocol.ifrt.probe import probe
from shared_pathways_service.testing.google_images import PROXY_MODULE, SERVER_MODULE
from tests.testing.google_images.cluster import Cluster


def test_servers_log_their_arguments_and_that_they_serve(images: Cluster) -> None:
    manager = images.start_manager()
    manager.wait_for_line(r"\] argv\[2\]: '--node_type=resource_manager'$")
    _, proxy = images.start_serving()
    address = re.escape(images.manager)
    proxy.wait_for_line(rf"\] argv\[3\]: '--resource_manager_address={address}'$")


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
def test_our_own_flags_are_unknown(images: Cluster, module: str, flags: list[str]) -> None:
    process = images.start(module, *flags)
    assert process.wait() == 1
    name = flags[-1].removeprefix("--").partition("=")[0]
    assert process.lines[-1] == f"ERROR: Unknown command line flag '{name}'"


@pytest.mark.parametrize("module", [PROXY_MODULE, SERVER_MODULE])
def test_a_scratch_location_outside_gcs_is_refused(images: Cluster, module: str) -> None:
    flags = ["--gcs_scratch_location=/tmp/scratch", f"--virtual_slices={KIND}"]
    if module == SERVER_MODULE:
        flags = [flags[0], "--resource_manager_address=127.0.0.1:1"]
    process = images.start(module, *flags)
    assert process.wait() != 0
    assert "gs://" in "\n".join(process.lines)


@pytest.mark.parametrize("value", [None, "True", *thorough("1", "TRUE", "yes", "false", " true")])
def test_plaintext_is_refused_unless_the_variable_is_exactly_true(
    images: Cluster, value: str | None
) -> None:
    address, _ = images.start_serving(insecure=value)
    assert greet(address, DEADLINE_S) is Greeting.HUNG_UP
    assert refuses_plaintext(address, DEADLINE_S)


def test_plaintext_is_accepted_if_the_variable_is_true(images: Cluster) -> None:
    address, _ = images.start_serving()
    assert greet(address, DEADLINE_S) is Greeting.HTTP2
    with RawClient(address) as client:
        assert client.session_id


def test_the_session_of_a_second_client_is_cancelled(proxy: str) -> None:
    with RawClient(proxy) as first:
        with RawClient(proxy, send_init=False) as second:
            assert second.status() == (grpc.StatusCode.CANCELLED, "Cancelled")
        # The first one has what it had.
        assert first.call("get_default_device_assignment", num_replicas=1, num_partitions=1)


def test_requests_of_our_clients_only_are_unknown(proxy: str) -> None:
    ours = {"sps_token": b"t", "sps_transfer_dir": b"/no/such", "sps_jaxlib_version": b"0.0.1"}
    with RawClient(proxy, initialization_data=ours) as client:
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


def test_a_client_that_ends_its_session_frees_the_proxy(proxy: str) -> None:
    with RawClient(proxy) as first:
        assert first.session_id

    def reopened() -> bool:
        with RawClient(proxy, send_init=False) as again:
            return not again.ended.wait(0.2)

    wait_until("a second session", reopened)


def test_the_resource_manager_does_not_know_our_calls(
    manager: str, request: pytest.FixtureRequest
) -> None:
    # (A real one with ALTS hangs up.)
    is_stand_in = request.node.callspec.params["manager"] == "standin"
    codes = {grpc.StatusCode.UNIMPLEMENTED} | (
        set() if is_stand_in else {grpc.StatusCode.UNAVAILABLE}
    )
    with grpc.insecure_channel(manager) as channel:
        stub = pb_grpc.ResourceManagerStub(channel)
        for metadata in ((), bearer("token")):
            with pytest.raises(grpc.RpcError) as caught:
                stub.GetStatus(pb.GetStatusRequest(), metadata=metadata, timeout=DEADLINE_S)
            assert caught.value.code() in codes
            del caught


def test_disjoint_versions_are_refused_like_openxlas_server(
    proxy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ifrt.PROTOCOL_MIN <= probe(proxy, DEADLINE_S).protocol <= ifrt.PROTOCOL_MAX
    monkeypatch.setattr(ifrt, "PROTOCOL_MIN", 1)
    monkeypatch.setattr(ifrt, "PROTOCOL_MAX", 1)
    with pytest.raises(VersionSkew) as caught:
        probe(proxy, DEADLINE_S)
    service = caught.value.service
    caught.value.__cause__ = None
    del caught
    assert re.fullmatch(
        r"IFRT Proxy client and server failed to agree on the protocol version; supported "
        r"versions: client = \[1, 1\], server = \[\d+, \d+\]",
        service,
    )


def test_values_unknown_to_openxlas_server_are_refused(
    proxy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared_pathways_service.protocol.ifrt.probe._serdes", lambda: (99, 99))
    with pytest.raises(VersionSkew, match=r"client = \[99, 99\], server = \[\d+, \d+\]"):
        probe(proxy, DEADLINE_S)
