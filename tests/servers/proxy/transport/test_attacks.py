"""Attacks on a proxy, served in either way: it stays small, and its tenant's session goes on."""

from __future__ import annotations

import base64
import hmac
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import jaxlib.version
import numpy as np
import pytest

from harness.deadlines import wait_until
from harness.processes import DEADLINE_S, KIND, ServerProcess
from harness.proxy.raw import RawClient, single
from shared_pathways_service.api.jax_releases import newest_served
from shared_pathways_service.protocol import ifrt
from shared_pathways_service.protocol.ifrt import proxy_pb2
from shared_pathways_service.servers.proxy.limits import Limits
from shared_pathways_service.testing.attacks import ATTACKS, Attack, Target
from shared_pathways_service.testing.attacks.kinds import IdleConnections, OpenStreams
from shared_pathways_service.testing.attacks.peer import ENDED, Peer
from tests.servers.attacking import Watched
from tests.servers.proxy.conftest import MODULE, LocalProxy, MakeClient, MakeProxy

TOKEN = "s3cret-of-the-tenant"
MINE = {"sps_token": TOKEN.encode()}
FOUR = np.arange(4, dtype=np.float32)
MANY, SOME = 1000, 20
#: Bytes that a proxy may grow by: threads for what is late, and 16 KiB for each call.
GROWTH = 192 << 20
TRANSPORTS = ("core", "public")


class Attacked:
    """A proxy with a token, and what it held before it was attacked."""

    def __init__(self, root: Path, transport: str) -> None:
        token = root / "token"
        token.write_text(TOKEN)
        token.chmod(0o600)
        self.process = ServerProcess(
            MODULE,
            [
                f"--server_socket={root / 's'}",
                f"--virtual_slices={KIND}",
                f"--token_file={token}",
                f"--transport={transport}",
            ],
        )
        assert self.process.ready, "\n".join(self.process.lines)
        self.address = f"unix:{root / 's'}"


@pytest.fixture(scope="module", params=TRANSPORTS)
def attacked(request: pytest.FixtureRequest) -> Iterator[Attacked]:
    """One proxy for all attackers."""
    root = Path(tempfile.mkdtemp(prefix="sps-"))
    proxy = Attacked(root, request.param)
    yield proxy
    proxy.process.kill()
    shutil.rmtree(root)


def version_request() -> bytes:
    request = proxy_pb2.GrpcGetVersionRequest()
    for version in (request.min_version, request.max_version):
        version.protocol_version = ifrt.PROTOCOL_MAX
        version.ifrt_serdes_version_number = newest_served(jaxlib.version.__version__)
    return request.SerializeToString()


def session_metadata(token: bytes) -> tuple[tuple[str, bytes], ...]:
    metadata = proxy_pb2.GrpcIfrtSessionMetadata()
    metadata.version.protocol_version = ifrt.PROTOCOL_MAX
    metadata.version.ifrt_serdes_version_number = newest_served(jaxlib.version.__version__)
    if token:
        metadata.initialization_data.attributes["sps_token"].string_value = token
    return ((ifrt.SESSION_METADATA, metadata.SerializeToString()),)


def path(method: str) -> str:
    return f"/{ifrt.SERVICE}/{method}"


def target(address: str) -> Target:
    other = 1 << 40  # of no session
    header = proxy_pb2.GrpcHostBufferStoreMetadata(session_id=other, handle=1, buffer_size=1 << 40)
    lookup = proxy_pb2.GrpcHostBufferLookupRequest(session_id=other, handle=1)
    delete = proxy_pb2.GrpcHostBufferDeleteRequest(session_id=other, handle=1)
    return Target(
        address=address,
        unary=path("GetVersion"),
        stream=path("HostBufferLookup"),
        request=version_request(),
        forged=(
            (path("IfrtSession"), _on_the_wire(session_metadata(b"another's")), b""),
            (
                path("HostBufferStore"),
                _on_the_wire(((ifrt.HOST_BUFFER_METADATA, header.SerializeToString()),)),
                b"x",
            ),
            (path("HostBufferLookup"), (), lookup.SerializeToString()),
            (path("HostBufferDelete"), (), delete.SerializeToString()),
        ),
    )


def _on_the_wire(
    metadata: tuple[tuple[str, bytes], ...],
) -> tuple[tuple[str, str | bytes], ...]:
    """gRPC sends metadata that are bytes in base 64."""
    return tuple((name, base64.b64encode(value)) for name, value in metadata)


@pytest.mark.parametrize("kind", ATTACKS, ids=lambda kind: kind.name.replace(" ", "-"))
def test_a_session_goes_on_amid_an_attack(
    attacked: Attacked, kind: type[Attack], connect: MakeClient
) -> None:
    victim = connect(attacked.address, initialization_data=MINE)
    array = victim.put(FOUR, single(0))
    watched = Watched(attacked.process.pid)
    with kind(target(attacked.address), MANY if kind is IdleConnections else SOME) as attack:
        for _ in range(3):
            attack.press()
            np.testing.assert_array_equal(victim.fetch(array), FOUR)
            assert watched.grown < GROWTH
        # One more comes amid it.
        with RawClient(attacked.address, initialization_data=MINE) as newcomer:
            np.testing.assert_array_equal(newcomer.fetch(newcomer.put(FOUR, single(0))), FOUR)
    watched.wait_until_descriptors_are_back()
    assert watched.grown < GROWTH
    # (What was guessed is not in there either: a log is read by others.)
    assert not [line for line in attacked.process.lines if "s3cret" in line or "guess" in line]


# ---- bounds


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    """Both."""
    kind: str = request.param
    return kind


def test_requests_that_never_come_are_given_up(make_proxy: MakeProxy, transport: str) -> None:
    proxy = make_proxy(limits=Limits(request_timeout_s=0.3))
    with Peer(proxy.address) as peer:
        peer.greet()
        for method in ("GetVersion", "HostBufferDelete", "HostBufferLookup"):
            peer.open(path(method))
        assert peer.wait(ENDED, times=3, timeout_s=DEADLINE_S)
    # And with the reason, where the transport can tell it.
    status = _silent_call(proxy)
    if transport == "core":
        assert status[0] is grpc.StatusCode.DEADLINE_EXCEEDED
        assert "took more than 0.3 s (--request_timeout_s)" in status[1]
    else:
        assert status[0] is grpc.StatusCode.CANCELLED


def _silent_call(proxy: LocalProxy) -> tuple[grpc.StatusCode, str]:
    """Calls without a request; returns how it ended."""
    silent = threading.Event()

    def requests() -> Iterator[bytes]:
        silent.wait(DEADLINE_S)
        yield from ()

    with grpc.insecure_channel(proxy.address) as channel:
        method: Any = channel.stream_unary(path("GetVersion"))
        call = method.future(requests())
        with pytest.raises(grpc.RpcError):
            call.result(DEADLINE_S)
        silent.set()
        return call.code(), call.details()


def test_calls_beyond_the_limit_are_refused(make_proxy: MakeProxy, connect: MakeClient) -> None:
    proxy = make_proxy(limits=Limits(calls=10))
    victim = connect(proxy.address)
    with grpc.insecure_channel(proxy.address) as channel:
        with OpenStreams(target(proxy.address), 1) as attack:

            def is_refused() -> bool:
                # (Calls that send nothing end by themselves, also before the first look.)
                attack.press()
                return _code(channel) is grpc.StatusCode.RESOURCE_EXHAUSTED

            wait_until("the refusal of a call", is_refused)
            # Who is in, stays in.
            victim.call("get_default_device_assignment", num_replicas=1, num_partitions=1)
        wait_until("a call that succeeds", lambda: _code(channel) is grpc.StatusCode.OK)


def _code(channel: grpc.Channel) -> grpc.StatusCode:
    """How a call ends that anybody may make."""
    call: Any = channel.unary_unary(path("GetVersion"))
    code: grpc.StatusCode = call.future(version_request(), timeout=DEADLINE_S).code()
    return code


def test_answers_that_are_never_read_are_broken_off(
    make_proxy: MakeProxy, capfd: pytest.CaptureFixture[str]
) -> None:
    # (By its public API grpcio counts them to the end of their connection.)
    proxy = make_proxy(limits=Limits(slow_reader_s=0.3), transport="core")
    with Peer(proxy.address) as deaf:
        deaf.greet(window=0)
        for _ in range(5):
            deaf.finish(deaf.open(path("GetVersion")), version_request())
        assert deaf.wait(ENDED, times=5, timeout_s=DEADLINE_S)
    said = []

    def is_said() -> bool:
        said.append(capfd.readouterr().err)
        return "did not read the end of them in 0.3 s" in "".join(said)

    wait_until("the log", is_said)


# ---- tokens


def test_tokens_are_asked_for_by_name_and_compared_in_constant_time(
    make_proxy: MakeProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[bytes] = []

    def compare(shown: bytes, due: bytes) -> bool:
        assert due == TOKEN.encode()
        compared.append(shown)
        return shown == due

    monkeypatch.setattr(hmac, "compare_digest", compare)
    proxy = make_proxy(token=TOKEN)
    with grpc.insecure_channel(proxy.address) as channel:
        for shown, code in (
            (b"", grpc.StatusCode.UNAUTHENTICATED),
            (b"wrong", grpc.StatusCode.PERMISSION_DENIED),
            (TOKEN.encode()[:-1], grpc.StatusCode.PERMISSION_DENIED),
        ):
            session: Any = channel.stream_stream(path("IfrtSession"))
            call = session(iter(()), metadata=session_metadata(shown))
            with pytest.raises(grpc.RpcError) as raised:
                next(call)
            assert raised.value.code() is code
            assert TOKEN not in str(raised.value)
    assert compared == [b"wrong", TOKEN.encode()[:-1]]
