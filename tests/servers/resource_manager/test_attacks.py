"""Attacks on the resource manager: it stays small, gives back what it took, and serves the others.

Without a token, where every call gets furthest; and what each kind of token is good for.
"""

from __future__ import annotations

import hmac
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from harness.deadlines import wait_until
from harness.processes import DEADLINE_S, KIND, Service, Stream, tenant_hello
from shared_pathways_service.errors import InvalidRequestError
from shared_pathways_service.flags.parsing import parse_flags
from shared_pathways_service.protocol import auth
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.protocol import resource_manager_pb2_grpc as pb_grpc
from shared_pathways_service.protocol.auth import bearer
from shared_pathways_service.servers.resource_manager.flags import ResourceManagerOptions
from shared_pathways_service.testing.attacks import ATTACKS, Attack, Target
from shared_pathways_service.testing.attacks.kinds import (
    HalfHandshakes,
    IdleConnections,
    WrongTokens,
)
from shared_pathways_service.testing.attacks.peer import ENDED, Peer
from tests.servers.attacking import Watched
from tests.servers.conftest import MakeService

SERVICE = "/shared_pathways_service.v1.ResourceManager"
#: Connections of an attacker that opens nothing on them, and of one that does.
MANY, SOME = 1000, 20
#: Bytes that the resource manager may grow by: some 32 KiB for each call that is held open.
GROWTH = 128 << 20
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.fixture(scope="module")
def attacked() -> Iterator[Service]:
    """One service for all attackers."""
    root = Path(tempfile.mkdtemp(prefix="sps-"))
    with Service(root) as service:
        yield service
    shutil.rmtree(root)


def target(service: Service) -> Target:
    names = [
        ("TenantSession", pb.TenantMessage(hello=tenant_hello("victim", incarnation="not its"))),
        ("ReleaseTenant", pb.ReleaseTenantRequest(tenant="victim", incarnation="not its")),
        ("Explain", pb.ExplainRequest(tenant="nobody")),
    ]
    return Target(
        address=service.address,
        unary=f"{SERVICE}/GetStatus",
        stream=f"{SERVICE}/TenantSession",
        forged=tuple((f"{SERVICE}/{name}", (), m.SerializeToString()) for name, m in names),
    )


@pytest.mark.parametrize("kind", ATTACKS, ids=lambda kind: kind.name.replace(" ", "-"))
def test_others_are_served_amid_an_attack(attacked: Service, kind: type[Attack]) -> None:
    incarnation = f"of {kind.name}"
    with attacked.tenant("victim", incarnation=incarnation, queue_timeout_s=1e6) as victim:
        victim.expect("queued")
        watched = Watched(attacked.rm.pid)
        with kind(target(attacked), MANY if kind is IdleConnections else SOME) as attack:
            for round_ in range(4):
                attack.press()
                # One that was there before, and one that comes amid it.
                (tenant,) = attacked.status().tenants
                assert (tenant.name, tenant.connected) == ("victim", True)
                with grpc.insecure_channel(attacked.address) as channel:
                    answer = pb_grpc.ResourceManagerStub(channel).GetStatus(
                        pb.GetStatusRequest(), timeout=DEADLINE_S
                    )
                assert [tenant.name for tenant in answer.tenants] == ["victim"]
                assert watched.grown < GROWTH, round_
            assert attack.made >= attack.size
        watched.wait_until_descriptors_are_back()
        assert watched.grown < GROWTH
        victim.send(pb.TenantMessage(bye=pb.TenantBye()))
        assert victim.expect("refused").kind == pb.TenantRefused.RELEASED


# ---- bounds


def test_what_says_nothing_is_closed(make_service: MakeService) -> None:
    service = make_service("--handshake_timeout_s=2", "--idle_connection_s=2")
    watched = Watched(service.rm.pid)
    greeted = Peer(service.address)
    with greeted, HalfHandshakes(target(service), 50) as attack:
        greeted.greet()
        peers = [greeted, *attack.read()]
        assert all(peer.wait_closed(timeout_s=DEADLINE_S) for peer in peers)
        watched.wait_until_descriptors_are_back()
    assert service.status()


def test_connections_beyond_the_limit_are_closed(make_service: MakeService) -> None:
    service = make_service("--max_connections=20")
    # Its connection is there already.
    service.status()
    with IdleConnections(target(service), 60) as attack:
        wait_until(
            "the end of 40 connections",
            lambda: sum(peer.closed for peer in attack.read()) >= 40,
        )
        assert service.status()
    with grpc.insecure_channel(service.address) as channel:
        stub = pb_grpc.ResourceManagerStub(channel)
        assert stub.GetStatus(pb.GetStatusRequest(), wait_for_ready=True, timeout=DEADLINE_S)


def test_a_request_that_never_comes_and_an_answer_that_is_not_read_are_given_up(
    make_service: MakeService,
) -> None:
    service = make_service("--request_timeout_s=2", "--slow_reader_s=2", "--max_calls=40")
    unary = target(service).unary
    with Peer(service.address) as silent, Peer(service.address) as deaf:
        silent.greet()
        deaf.greet(window=0)
        for _ in range(10):
            silent.open(unary)
            deaf.finish(deaf.open(unary))
        assert silent.wait(ENDED, times=10, timeout_s=DEADLINE_S)
        service.rm.wait_for_line("GetStatus of .* the request did not arrive within 2 s", times=10)
        service.rm.wait_for_line("GetStatus of .* was not read within 2 s", times=10)
        # They count as long as their client is there.
        assert service.status()
    for _ in range(50):
        assert service.status()


def test_a_host_has_so_many_calls_and_all_have(make_service: MakeService) -> None:
    service = make_service("--server_port=0", "--max_calls_per_host=5", "--max_calls=12")
    assert service.rm.ready
    with grpc.insecure_channel(f"127.0.0.1:{service.rm.ready['port']}") as channel:
        stub = pb_grpc.ResourceManagerStub(channel)
        streams = [service.stream(stub.TenantSession) for _ in range(6)]
        for number, stream in enumerate(streams):
            hello = tenant_hello(f"t{number}", queue_timeout_s=1e6)
            stream.send(pb.TenantMessage(hello=hello))
        code, details = _end_of_one(streams)
        assert code is EXHAUSTED
        assert "one more call of 127.0.0.1" in details
        assert "--max_calls_per_host) is 5" in details
        # Others, of this user's, are not that host.
        wait_until("five tenants", lambda: len(service.status().tenants) == 5)
        watches = [service.watch() for _ in range(8)]
        code, details = _end_of_one(watches)
        assert code is EXHAUSTED
        assert "--max_calls) is 12" in details
        # A probe that fails would have the resource manager restarted.
        check: Any = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert check(b"", timeout=DEADLINE_S) == b"\x08\x01"


def test_it_ends_although_a_client_does_not_read(make_service: MakeService) -> None:
    service = make_service("--slow_reader_s=4", "--stop_exit_code=3", "--instance_count=64")
    wide = {"virtual_slices": [KIND] * 64, "queue_timeout_s": 1e6}
    for tenant in [service.tenant(f"t{number}", **wide) for number in range(30)]:
        tenant.expect("queued")
    with Peer(service.address) as peer:
        assert peer.want_all()
        for _ in range(50):
            peer.finish(peer.open(f"{SERVICE}/GetStatus"))
        service.rm.wait_for_line("GetStatus of .* was not read within 4 s")
        service.rm.signal(signal.SIGTERM)
        assert service.rm.wait() == 3


def _end_of_one(streams: list[Stream]) -> tuple[grpc.StatusCode, str]:
    """Waits until one of them has ended, the others going on."""
    wait_until(
        "the end of a stream", lambda: any(not stream.call.is_active() for stream in streams)
    )
    (ended,) = (stream for stream in streams if not stream.call.is_active())
    return ended.status()


# ---- tokens


def private(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


@pytest.fixture
def guarded(make_service: MakeService, own_directories: Path) -> Service:
    """A service with a token of its own, and one for tenants."""
    mine = private(own_directories / "mine", "s3cret-of-the-service")
    theirs = private(own_directories / "theirs", "s3cret-of-tenants")
    service = make_service(f"--token_file={mine}", f"--tenant_token_file={theirs}")
    service.token = "s3cret-of-the-service"
    return service


def test_a_tenants_token_is_good_for_its_slices_and_nothing_else(guarded: Service) -> None:
    theirs = bearer("s3cret-of-tenants")
    guarded.token = "s3cret-of-tenants"
    victim = guarded.tenant("victim", queue_timeout_s=1e6)
    victim.expect("queued")
    # Another's name, with an incarnation that is made up, with none, and by the operators' calls.
    thief = guarded.tenant("victim", incarnation="thief")
    assert thief.status()[0] is grpc.StatusCode.ALREADY_EXISTS
    stub = guarded.stub
    calls: list[Callable[[], Any]] = [
        lambda: stub.ReleaseTenant(pb.ReleaseTenantRequest(tenant="victim"), metadata=theirs),
        lambda: stub.GetStatus(pb.GetStatusRequest(), metadata=theirs),
        lambda: stub.CordonSlice(pb.CordonSliceRequest(slice="slice-0"), metadata=theirs),
        lambda: next(stub.Watch(pb.WatchRequest(), metadata=theirs)),
        lambda: next(stub.ExportLog(pb.ExportLogRequest(), metadata=theirs)),
        lambda: next(stub.WorkerSession(iter(()), metadata=theirs)),
    ]
    for call in calls:
        with pytest.raises(grpc.RpcError) as raised:
            call()
        assert raised.value.code() is grpc.StatusCode.PERMISSION_DENIED
    guarded.token = "s3cret-of-the-service"
    (tenant,) = guarded.status().tenants
    assert (tenant.name, tenant.connected) == ("victim", True)
    assert not [line for line in guarded.rm.lines if "s3cret" in line]


def test_guesses_are_refused_and_not_written_anywhere(guarded: Service) -> None:
    address = target(guarded)
    watched = Watched(guarded.rm.pid)
    with WrongTokens(address, 10) as attack:
        while attack.ended < 1000:
            attack.press()
        assert not guarded.status().tenants
    assert watched.grown < GROWTH
    assert not [line for line in guarded.rm.lines if "s3cret" in line or "guess" in line]


def test_a_tenants_token_needs_the_services() -> None:
    flags = [f"--instance_type={KIND}", "--instance_count=1", "--tenant_token_file=here"]
    with pytest.raises(InvalidRequestError) as raised:
        parse_flags(ResourceManagerOptions, flags, {})
    assert raised.value.field == "--tenant_token_file"


def test_tokens_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare(shown: bytes, due: bytes) -> bool:
        compared.append((shown, due))
        return shown == due

    monkeypatch.setattr(hmac, "compare_digest", compare)
    assert auth.shows("Bearer right", "right")
    assert not auth.shows("Bearer wrong", "right")
    assert compared == [(b"Bearer right", b"Bearer right"), (b"Bearer wrong", b"Bearer right")]
