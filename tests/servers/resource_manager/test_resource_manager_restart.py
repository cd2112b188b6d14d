"""The resource manager is killed, and goes on from its state file."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from harness.processes import KIND, ServerProcess, Service, Stream
from shared_pathways_service.protocol import resource_manager_pb2 as pb
from tests.servers.conftest import MakeService

pytestmark = pytest.mark.race

REFUSAL = pb.TenantRefused


def _placements(tenant: Stream, count: int) -> list[pb.Claim]:
    """Waits for placements; returns them as the claims of a proxy that speaks again."""
    claims = []
    for _ in range(count):
        placement = tenant.expect("placement")
        assert placement.state == pb.Placement.PLACED
        claims.append(
            pb.Claim(
                virtual_index=placement.virtual_index,
                slice_id=placement.slice_id,
                generation=placement.generation,
            )
        )
    return claims


def _expect_nothing_new(tenant: Stream) -> None:
    """A proxy that is back is welcomed, and hears of no change."""
    updates = [tenant.next().WhichOneof("update") for _ in range(2)]
    assert updates == ["welcome", "running"]


def test_a_killed_manager_goes_on_where_it_was(make_service: MakeService) -> None:
    service = make_service("--recovering_s=600", "--tenant_ttl_s=600")
    workers = service.start_ready_workers("slice-0", "slice-1")
    ada = service.tenant("ada")
    claims = _placements(ada, 1)
    ada.expect("running")
    for name in "bcd":
        # One after the other: each has its place before the next one asks.
        waiting = service.tenant(name, virtual_slices=[KIND] * 2, queue_timeout_s=600)
        waiting.expect("queued")

    service.rm.kill()
    service.start_rm()
    status = service.status()
    assert status.state == "recovering"
    assert [t.name for t in status.tenants] == ["ada", "b", "c", "d"]
    assert [entry.tenant for entry in status.queue] == ["b", "c", "d"]
    # (A free slice is there again as soon as its worker is.)
    held = {entry.id: entry.tenant for entry in status.slices if entry.tenant}
    assert held == {claims[0].slice_id: "ada"}

    # The proxies come back in another order than they came; one tenant is new.
    again = {n: service.tenant(n, virtual_slices=[KIND] * 2, queue_timeout_s=600) for n in "dcb"}
    new = service.tenant("new", virtual_slices=[KIND] * 2, queue_timeout_s=600)
    assert new.expect("welcome").recovering
    assert service.status().state == "recovering"
    back = service.tenant("ada", claims=claims)
    _expect_nothing_new(back)
    # The workers have kept their incarnations: nothing of theirs was lost.
    service.rm.wait_for_line("rm.recovered")
    service.wait_for_states({"slice-0": "ready", "slice-1": "ready"})
    assert not [line for line in service.rm.lines if "slice.lost" in line]
    assert [entry.tenant for entry in service.status().queue] == ["b", "c", "d", "new"]
    workers[0].wait_for_line("init succeeded", times=2)

    # A slice was free all the time: a new tenant that wants one sees it.
    small = service.tenant("small", priority=1)
    generation = _placements(small, 1)[0].generation
    assert generation > claims[0].generation
    for stream in (back, small):
        stream.send(pb.TenantMessage(bye=pb.TenantBye(reason="done")))
    again["b"].expect("running")
    assert [entry.tenant for entry in service.status().queue] == ["c", "d", "new"]


def test_recovering_ends_after_its_grace_without_those_that_are_gone(
    make_service: MakeService,
) -> None:
    service = make_service("--recovering_s=0.5", "--tenant_ttl_s=0.5")
    workers = service.start_ready_workers("slice-0", "slice-1")
    ada = service.tenant("ada", virtual_slices=[KIND] * 2)
    claims = _placements(ada, 2)
    service.rm.kill()
    workers[0].kill()
    service.start_rm()
    claim = _placements(service.tenant("bob", queue_timeout_s=600), 1)[0]
    pages = service.stub.GetHistory(
        pb.GetHistoryRequest(kinds=["rm.recovering", "rm.recovered", "slice.placed"])
    )
    kinds = [event.kind for page in pages for event in page.events]
    assert kinds[-3:] == ["rm.recovering", "rm.recovered", "slice.placed"]
    assert claim.slice_id == "slice-1"
    assert claim.generation > max(c.generation for c in claims)
    back = service.tenant("ada", virtual_slices=[KIND] * 2, claims=claims)
    assert back.expect("refused").kind == REFUSAL.LOST


def test_the_loss_of_a_worker_is_announced_after_the_restart(
    make_service: MakeService,
) -> None:
    service = make_service("--recovering_s=600", "--tenant_ttl_s=600")
    workers = service.start_ready_workers("slice-0", "slice-1")
    ada = service.tenant("ada", virtual_slices=[KIND] * 2)
    claims = _placements(ada, 2)
    service.rm.kill()
    workers[0].kill()
    service.start_worker("slice-0")
    service.start_rm()
    back = service.tenant("ada", virtual_slices=[KIND] * 2, claims=claims)
    lost = back.expect("placement")
    assert (lost.state, lost.slice_id) == (pb.Placement.UNPLACED, "slice-0")
    placed = _placements(back, 1)[0]
    assert placed.slice_id == "slice-0"
    assert placed.generation > max(c.generation for c in claims)


def test_everything_answered_outlives_a_kill_in_the_midst_of_it(
    make_service: MakeService,
) -> None:
    service = make_service("--tenant_ttl_s=600", "--recovering_s=600", count="4")
    service.start_ready_workers(*(f"slice-{n}" for n in range(4)))
    claims: dict[str, pb.Claim] = {}
    for number in range(4):
        name = f"t{number}"
        (claim,) = _placements(service.tenant(name), 1)
        assert claim.generation > max((c.generation for c in claims.values()), default=0)
        claims[name] = claim
        service.rm.kill()
        service.start_rm()
        status = service.status()
        assert status.state == "recovering"
        held = {entry.tenant: entry.id for entry in status.slices if entry.tenant}
        assert held == {tenant: claim.slice_id for tenant, claim in claims.items()}
        for tenant, held_claim in claims.items():
            _expect_nothing_new(service.tenant(tenant, claims=[held_claim]))
        service.wait_for_states({f"slice-{n}": "ready" for n in range(4)})
    assert len({claim.slice_id for claim in claims.values()}) == 4


@pytest.mark.parametrize(
    "damage", [b"no database at all" * 100, b"SQLite format 3\x00" + b"\xff" * 5000]
)
def test_a_damaged_state_file_is_moved_aside_and_proxies_are_believed(
    make_service: MakeService, damage: bytes
) -> None:
    service = make_service("--recovering_s=600", "--tenant_ttl_s=600")
    service.start_ready_workers("slice-0", "slice-1")
    ada = service.tenant("ada")
    claims = _placements(ada, 1)
    service.rm.kill()
    state = service.root / "state"
    for path in service.root.glob("state-*"):
        path.unlink()
    state.write_bytes(damage)
    service.start_rm()
    service.rm.wait_for_line(r"^E.* state file \S+ is damaged")
    (aside,) = service.root.glob("state.damaged-*")
    assert aside.read_bytes() == damage
    assert service.status().state == "recovering"
    _expect_nothing_new(service.tenant("ada", claims=claims))
    (entry,) = [s for s in service.status().slices if s.id == claims[0].slice_id]
    assert (entry.tenant, entry.generation) == ("ada", claims[0].generation)


def test_a_state_file_of_a_newer_release_stops_the_start(make_service: MakeService) -> None:
    service = make_service("--recovering_s=0.2")
    service.rm.kill()
    with sqlite3.connect(service.root / "state") as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(AssertionError, match="written by a newer release: its version is 99"):
        service.start_rm()
    assert service.rm.wait() == 1
    service.rm.wait_for_line("--discard_state moves the file aside")
    service.start_rm("--discard_state")
    assert service.status().types == [KIND]


def test_two_managers_cannot_share_a_state_file(service: Service, tmp_path: Path) -> None:
    flags = [
        f"--state_file={service.root / 'state'}",
        "--server_port=0",
        f"--instance_type={KIND}",
        "--instance_count=1",
    ]
    with ServerProcess("shared_pathways_service.servers.resource_manager", flags) as second:
        assert second.ready is None
        assert second.wait() == 1
        second.wait_for_line("does another resource manager use it")
    assert service.status().state == "serving"
    assert not list(service.root.glob("state.damaged-*"))


def test_a_terminated_manager_ends_at_once_and_forgets_nothing(
    make_service: MakeService,
) -> None:
    service = make_service("--recovering_s=600")
    service.start_ready_workers("slice-0", "slice-1")
    claims = _placements(service.tenant("ada"), 1)
    assert service.rm.stop() == 0
    service.start_rm()
    _expect_nothing_new(service.tenant("ada", claims=claims))


def _lose_state(service: Service) -> None:
    service.rm.kill()
    for path in service.root.glob("state*"):
        path.unlink()


def test_without_its_state_file_a_manager_asks_for_the_holders(make_service: MakeService) -> None:
    service = make_service("--recovering_s=600", "--tenant_ttl_s=600")
    workers = service.start_ready_workers("slice-0", "slice-1")
    ada = service.tenant("ada", virtual_slices=[KIND] * 2)
    claims = _placements(ada, 2)
    ada.expect("running")
    _lose_state(service)
    workers[0].kill()
    service.start_worker("slice-0")
    service.start_rm()
    service.wait_for_states({"slice-0": "ready", "slice-1": "ready"})
    assert service.status().state == "recovering"
    back = service.tenant("ada", virtual_slices=[KIND] * 2, claims=claims, running=True)
    lost = back.expect("placement")
    assert (lost.state, lost.slice_id) == (pb.Placement.UNPLACED, "slice-0")
    held = {entry.id: entry.tenant for entry in service.status().slices}
    assert held == {"slice-0": "", "slice-1": "ada"}


def test_with_its_state_file_gone_a_manager_leaves_an_idle_tenant_idle(
    make_service: MakeService,
) -> None:
    service = make_service("--recovering_s=0.2", "--idle_release_s=600", "--idle_warning_s=1")
    service.start_ready_workers("slice-0")
    _lose_state(service)
    service.start_rm()
    service.wait_for_states({"slice-0": "ready"})
    back = service.tenant("ada", last_generation=1, idle_count=5)
    assert back.expect("idle").released
    (status,) = service.status().tenants
    assert status.state == "idle"
    back.send(pb.TenantMessage(activity=pb.TenantActivity(count=6)))
    back.expect("running")


def test_a_manager_killed_while_it_asks_asks_again(make_service: MakeService) -> None:
    service = make_service("--recovering_s=600", "--tenant_ttl_s=600")
    service.start_ready_workers("slice-0", "slice-1")
    claims = _placements(service.tenant("ada"), 1)
    _lose_state(service)
    service.start_rm()
    service.rm.kill()
    service.start_rm()
    _expect_nothing_new(service.tenant("ada", claims=claims))
    (entry,) = [s for s in service.status().slices if s.id == claims[0].slice_id]
    assert (entry.tenant, entry.generation) == ("ada", claims[0].generation)


def test_after_a_lost_state_new_placements_have_new_generations(make_service: MakeService) -> None:
    service = make_service("--recovering_s=0.2", "--tenant_ttl_s=600")
    service.start_ready_workers("slice-0", "slice-1")
    claims = _placements(service.tenant("ada"), 1)
    _lose_state(service)
    service.start_rm()
    (claim,) = _placements(service.tenant("bob", queue_timeout_s=600), 1)
    assert claim.generation > claims[0].generation


def test_a_service_is_new_when_all_its_workers_are(make_service: MakeService) -> None:
    service = make_service("--recovering_s=600")
    _lose_state(service)
    service.start_rm()
    assert service.status().state == "recovering"
    service.start_worker("slice-0")
    service.start_worker("slice-1")
    service.tenant("ada").expect("running")
    assert service.status().state == "serving"
