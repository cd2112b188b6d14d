"""What the resource manager tells of its past, over restarts and kills of it."""

from __future__ import annotations

import random
from typing import Any

import grpc
import pytest

from harness.processes import DEADLINE_S, KIND, VERSIONS, Service, Stream
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from shared_pathways_service.protocol.event_messages import event_of
from shared_pathways_service.protocol.versions import is_open
from tests.servers.conftest import MakeService


def history(service: Service, **fields: Any) -> list[pb.EventMessage]:
    """Reads the history; its numbers grow, and each is there once."""
    pages = service.stub.GetHistory(
        pb.GetHistoryRequest(**fields), wait_for_ready=True, timeout=DEADLINE_S
    )
    found = [event for page in pages for event in page.events]
    numbers = [event.sequence for event in found]
    assert numbers == sorted(set(numbers))
    return found


def kinds(found: list[pb.EventMessage]) -> list[str]:
    return [event.kind for event in found]


def explain(service: Service, tenant: str) -> pb.ExplainResponse:
    response: pb.ExplainResponse = service.stub.Explain(
        pb.ExplainRequest(tenant=tenant), wait_for_ready=True, timeout=DEADLINE_S
    )
    return response


def usage(service: Service, by: str, **fields: Any) -> pb.GetUsageResponse:
    response: pb.GetUsageResponse = service.stub.GetUsage(
        pb.GetUsageRequest(by=by, **fields), wait_for_ready=True, timeout=DEADLINE_S
    )
    return response


def release(service: Service, tenant: str, reason: str = "done") -> None:
    service.stub.ReleaseTenant(pb.ReleaseTenantRequest(tenant=tenant, reason=reason))


def follow(service: Service, after: int = 0, **fields: Any) -> Stream:
    return service.stream(
        service.stub.Watch, pb.WatchRequest(versions=VERSIONS, after=after, **fields)
    )


def claims_of(tenant: Stream, count: int = 1) -> list[pb.Claim]:
    placed = [tenant.expect("placement") for _ in range(count)]
    return [
        pb.Claim(virtual_index=p.virtual_index, slice_id=p.slice_id, generation=p.generation)
        for p in placed
    ]


def test_the_life_of_a_tenant_is_recorded_in_order(service: Service) -> None:
    workers = service.start_ready_workers("slice-0")
    ada = service.tenant("ada", team="blue")
    ada.expect("running")
    service.tenant("bob", queue_timeout_s=600).expect("queued")
    service.start_ready_workers("slice-1")
    workers[0].kill()
    lost = ada.expect("placement")
    while lost.state != pb.Placement.UNPLACED:
        lost = ada.expect("placement")
    release(service, "bob", "enough")
    ada.expect("placement")
    told = history(service, tenant="ada")
    assert kinds(told) == ["tenant.running", "slice.placed", "slice.unplaced", "slice.replaced"]
    placed, unplaced, replaced = (event_of(one) for one in told[1:])
    assert (placed.slice, unplaced.slice, replaced.slice) == ("slice-0", "slice-0", "slice-1")
    assert placed.data["generation"] == unplaced.data["generation"]
    assert placed.data["team"] == "blue"
    assert "worker 0 of slice-0 is gone" in str(unplaced.reason)
    assert unplaced.duration_s is not None
    bob = history(service, tenant="bob")
    assert kinds(bob)[0] == "tenant.queued"
    assert kinds(bob)[-2:] == ["tenant.released", "slice.freed"]
    assert "no tpuv6e:2x2 slice is free (1 wanted" in bob[0].reason
    everything = kinds(history(service))
    assert everything[0] == "rm.started"
    assert {"slice.ready", "slice.lost"} <= set(everything)
    only = history(service, kinds=["placed", "slice.freed"])
    assert set(kinds(only)) == {"slice.placed", "slice.freed"}
    assert len(history(service, limit=2)) == 2
    rest = history(service, after=told[-1].sequence)
    assert all(one.sequence > told[-1].sequence for one in rest)
    assert history(service, since=-3600.0) == history(service)
    assert not history(service, since=-7200.0, until=-3600.0)


@pytest.mark.parametrize(
    ("call", "request_", "field"),
    [
        ("GetHistory", pb.GetHistoryRequest(since=float("nan")), "since"),
        ("GetHistory", pb.GetHistoryRequest(since=-1, until=-2), "since"),
        ("GetHistory", pb.GetHistoryRequest(tenant="No Name"), "tenant"),
        ("GetUsage", pb.GetUsageRequest(by="colour"), "by"),
        ("GetUsage", pb.GetUsageRequest(by="type", until=float("inf")), "until"),
        ("GetUsage", pb.GetUsageRequest(by="type", since=1e12, until=1e13), "since"),
        ("Explain", pb.ExplainRequest(tenant=""), "tenant"),
        ("Watch", pb.WatchRequest(versions=VERSIONS, after=0, tenant="No Name"), "tenant"),
    ],
)
def test_bad_requests_are_refused_by_field(
    service: Service, call: str, request_: Any, field: str
) -> None:
    def ask() -> None:
        list(getattr(service.stub, call)(request_, timeout=DEADLINE_S))  # a stream is read

    with pytest.raises(grpc.RpcError) as raised:
        ask()
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert field in str(raised.value.details())


def test_a_waiting_tenant_is_explained_with_its_estimate(service: Service) -> None:
    service.start_ready_workers("slice-0", "slice-1")
    service.tenant("ada", virtual_slices=[KIND] * 2, queue_timeout_s=600).expect("running")
    service.tenant("bob", queue_timeout_s=600, priority=1).expect("queued")
    service.tenant("carol", queue_timeout_s=600).expect("queued")
    told = explain(service, "carol")
    assert (told.state, told.position) == ("waiting", 2)
    assert (dict(told.wants), dict(told.free)) == ({KIND: 1}, {KIND: 0})
    assert [(one.tenant, one.user, one.slice_id) for one in told.holders] == [
        ("ada", "ada", "slice-0"),
        ("ada", "ada", "slice-1"),
    ]
    assert list(told.ahead) == ["bob"]
    assert not told.HasField("expected_wait_s")
    assert "no holding of tpuv6e:2x2 has ended yet" in told.expected_wait_basis
    text = "\n".join(told.sentences)
    assert "carol waits for 1 x tpuv6e:2x2" in text
    assert "at position 2 with priority 0: no tpuv6e:2x2 slice is free (1 wanted" in text
    assert "ada (ada@laptop) holds slice-0 for" in text
    assert "Before it: bob" in text
    assert [one.kind for one in told.decisions] == ["tenant.queued"]

    release(service, "ada")
    service.tenant("dora", queue_timeout_s=600).expect("queued")
    told = explain(service, "dora")
    # One who holds now has held no longer than the two before: there is a basis, or there is none
    # because it did; never neither.
    assert "past holdings of tpuv6e:2x2" in told.expected_wait_basis
    entry = service.status().queue[0]
    assert entry.tenant == "dora"


def test_running_moved_and_ended_tenants_are_explained(make_service: MakeService) -> None:
    service = make_service("--tenant_ttl_s=0.1")
    workers = service.start_ready_workers("slice-0", "slice-1")
    ada = service.tenant("ada", virtual_slices=[KIND] * 2)
    ada.expect("running")
    workers[1].kill()
    while ada.expect("placement").state != pb.Placement.UNPLACED:
        pass
    told = explain(service, "ada")
    text = "\n".join(told.sentences)
    assert told.state == "running"
    assert "ada is running with 1 of 2 slices" in text
    assert "Its slice 1 waits for a tpuv6e:2x2, of which 0 are free" in text
    assert "ada lost slice-1 (its slice 1)" in text
    assert "worker 0 of slice-1 is gone" in text
    ada.close()
    for _ in service.statuses():
        told = explain(service, "ada")
        if told.state == "gone":
            break
    assert "ada was given up: its proxy did not come back within 0.1 s" in told.sentences[0]
    refused = service.tenant("eve", virtual_slices=["tpuv4:2x2x1"])
    refused.expect("refused")
    assert "tpuv4:2x2x1: the service has tpuv6e:2x2" in explain(service, "eve").sentences[0]
    with pytest.raises(grpc.RpcError) as raised:
        explain(service, "nobody")
    assert raised.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.race
def test_usage_goes_on_over_a_restart(make_service: MakeService) -> None:
    service = make_service("--recovering_s=600", "--tenant_ttl_s=600")
    service.start_ready_workers("slice-0", "slice-1")
    claims = claims_of(service.tenant("ada", virtual_slices=[KIND] * 2, team="blue"), 2)
    waiting = service.tenant("bob", queue_timeout_s=600, team="red")
    waiting.expect("queued")
    before = usage(service, "tenant")
    service.rm.kill()
    service.start_rm()
    service.tenant("ada", virtual_slices=[KIND] * 2, claims=claims, team="blue").expect("running")
    bob = service.tenant("bob", queue_timeout_s=600, team="red")
    bob.expect("queued")
    service.wait_for_states({"slice-0": "ready", "slice-1": "ready"})
    during = {row.name: row for row in usage(service, "tenant").rows}
    assert during["ada"].slice_s > before.rows[0].slice_s > 0
    assert during["ada"].holdings == 2
    assert during["bob"].waiting_s > 0
    release(service, "ada")
    bob.expect("running")
    after = {row.name: row for row in usage(service, "team").rows}
    assert after["blue"].slice_s >= during["ada"].slice_s
    assert after["blue"].holdings == 2
    assert after["red"].waits == 1
    types = usage(service, "type")
    assert dict(types.capacity) == {KIND: 2}
    assert types.rows[0].slice_s <= 2 * types.window_s + 1e-6
    events = history(service, tenant="ada", kinds=["freed"])
    held = sum(event.duration_s for event in events)
    assert after["blue"].slice_s == pytest.approx(held, abs=1e-3)
    assert not usage(service, "user", since=-7200.0, until=-3600.0).rows


@pytest.mark.race
def test_a_follower_misses_and_repeats_nothing(make_service: MakeService) -> None:
    service = make_service("--recovering_s=0.2", "--tenant_ttl_s=600")
    service.start_ready_workers("slice-0", "slice-1")
    heard: list[pb.EventMessage] = []
    last = 0
    for turn in range(3):
        # Two calls are not ordered: u must not come first.
        first = service.tenant(f"t{turn}", queue_timeout_s=600, virtual_slices=[KIND] * 2)
        first.expect("running")
        following = follow(service, last)
        service.tenant(f"u{turn}", queue_timeout_s=600).expect("queued")
        release(service, f"t{turn}")
        release(service, f"u{turn}")
        while not (heard and heard[-1].kind == "slice.freed" and heard[-1].tenant == f"u{turn}"):
            message = following.next()
            assert message is not None, following.status()
            heard.append(message)
            if (message.kind, message.tenant) == ("tenant.released", f"u{turn}"):
                break
        service.rm.kill()
        while (message := following.next()) is not None:
            heard.append(message)
        last = heard[-1].sequence
        service.start_rm()
        service.wait_for_states({"slice-0": "ready", "slice-1": "ready"})
    following = follow(service, last)
    # Before there is anything to tell.
    assert is_open(following.call.initial_metadata())
    everything = history(service)
    while last < everything[-1].sequence:
        heard.append(following.next())
        last = heard[-1].sequence
    assert [one.sequence for one in heard] == [one.sequence for one in everything]
    assert kinds(heard) == kinds(everything)
    # A number beyond the last is of a history that is no more.
    assert follow(service, 1_000_000).next().sequence == everything[0].sequence
    mine = follow(service, 0, tenant="u0", kinds=["released"]).next()
    assert (mine.tenant, mine.kind) == ("u0", "tenant.released")


def _generation(message: pb.EventMessage) -> int:
    generation = event_of(message).data["generation"]
    assert isinstance(generation, int)
    return generation


def _first_claim(stream: Stream) -> pb.Claim | None:
    """Waits until a tenant is placed or refused; returns what it may claim."""
    while (update := stream.next()) is not None and not update.HasField("refused"):
        if update.HasField("placement"):
            placed = update.placement
            return pb.Claim(virtual_index=0, slice_id=placed.slice_id, generation=placed.generation)
    return None


def _held(found: list[pb.EventMessage]) -> dict[str, tuple[str, int]]:
    """Returns who holds what, by the history alone."""
    held: dict[str, tuple[str, int]] = {}
    for one in found:
        if one.kind in {"slice.placed", "slice.replaced"}:
            assert one.slice not in held
            held[one.slice] = (one.tenant, _generation(one))
        elif one.kind in {"slice.freed", "slice.unplaced"}:
            assert held.pop(one.slice) == (one.tenant, _generation(one))
    return held


@pytest.mark.race
def test_messages_to_tenants_are_in_the_history_after_any_kill(
    make_service: MakeService,
) -> None:
    service = make_service("--tenant_ttl_s=600", "--recovering_s=600", count="3")
    names = ["slice-0", "slice-1", "slice-2"]
    service.start_ready_workers(*names)
    chance = random.Random(7)
    for turn in range(5):
        tenants = {f"t{turn}-{n}": service.tenant(f"t{turn}-{n}") for n in range(3)}
        # Some are read, and some are on their way when it dies.
        read = [name for name in tenants if chance.random() < 0.7]
        told = {name: _first_claim(tenants[name]) for name in read}
        service.rm.kill()
        service.start_rm()
        found = history(service)
        placements = {
            (one.tenant, one.slice, _generation(one)) for one in found if one.kind == "slice.placed"
        }
        for name, claim in told.items():
            assert claim is None or (name, claim.slice_id, claim.generation) in placements
        status, held = service.status(), _held(found)
        assert held == {one.id: (one.tenant, one.generation) for one in status.slices if one.tenant}
        # All come back with what they know, and are let go.
        for slice_id, (name, generation) in held.items():
            claim = pb.Claim(virtual_index=0, slice_id=slice_id, generation=generation)
            service.tenant(name, claims=[claim]).expect("welcome")
        for one in status.tenants:
            release(service, one.name)
        service.wait_for_states(dict.fromkeys(names, "ready"))
