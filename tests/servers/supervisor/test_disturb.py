"""Slices of a running service that are killed, or hang, because somebody asked for it."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest

from harness.deadlines import deadline, wait_until
from harness.processes import KIND
from shared_pathways_service import errors
from shared_pathways_service.protocol import supervisor_pb2 as pb
from shared_pathways_service.protocol.auth import bearer
from shared_pathways_service.protocol.grpc_errors import error_of
from shared_pathways_service.runtime.processes import identity_of
from tests.servers.supervisor.support import EmbeddedClient, assert_clean, embedded, wait_for_end

pytestmark = pytest.mark.race

KILL, HANG, LET_GO = (
    pb.DisturbSliceRequest.KILL,
    pb.DisturbSliceRequest.HANG,
    pb.DisturbSliceRequest.LET_GO,
)
#: Longer than any test.
LONG_S = 3000.0


def disturb(
    client: EmbeddedClient,
    kind: pb.DisturbSliceRequest.Kind.ValueType,
    name: str = "slice-0",
    hold_s: float = 0.0,
) -> int:
    request = pb.DisturbSliceRequest(slice=name, kind=kind, hold_s=hold_s)
    return client.supervisor.DisturbSlice(request, **client.call).workers


def workers(client: EmbeddedClient, name: str = "slice-0") -> dict[int, int]:
    """The restarts of a slice's workers that run, by process id."""
    return {p.pid: p.restarts for p in client.processes("worker") if p.slice == name}


def state(client: EmbeddedClient, name: str = "slice-0") -> str:
    return next(s.state for s in client.status().slices if s.id == name)


def wait_for_state(client: EmbeddedClient, wanted: str, name: str = "slice-0") -> None:
    wait_until(f"{name} to be {wanted}", lambda: state(client, name) == wanted)


def status_of(pid: int) -> str:
    return str(psutil.Process(pid).status())


def test_a_slice_that_is_killed_is_lost_to_its_holder_and_back_after_the_hold() -> None:
    # Two hosts of four chips each.
    with embedded("--max_slice_restarts=0", slices="tpuv5e:4x2=2") as (_, client):
        client.create(virtual_slices=["tpuv5e:4x2"])
        held = next(id_ for id_, who in client.wait_for_holders("isc-proxy-a", "").items() if who)
        before = workers(client, held)
        assert len(before) == 2
        assert disturb(client, KILL, held, LONG_S) == 2
        wait_for_state(client, "lost", held)
        # Its holder is given the other one, as when a slice dies by itself.
        [other] = client.wait_for_holders("isc-proxy-a")
        assert other != held
        wait_until("the end of its workers", lambda: not workers(client, held))
        assert disturb(client, KILL, held, 1.0) == 0, "nobody was started again"
        assert disturb(client, LET_GO, held) == 0
        client.wait_for_holders("isc-proxy-a", "")
        after = workers(client, held)
        assert not after.keys() & before.keys()
        assert set(after.values()) == {1}, "not one restart was to be counted"


def test_a_slice_that_hangs_is_lost_if_the_hold_is_long() -> None:
    flags = ("--beat_interval_s=0.2", "--hung_after_s=4", "--max_slice_restarts=0")
    with embedded(*flags) as (_, client):
        [worker] = workers(client)
        assert disturb(client, HANG, hold_s=LONG_S) == 1
        wait_until("it to stop", lambda: status_of(worker) == psutil.STATUS_STOPPED)
        wait_for_state(client, "lost")
        assert workers(client) == {worker: 0}, "it is not known to have ended"
        assert disturb(client, LET_GO) == 1
        # The resource manager wants no worker back that it gave up: another one comes.
        client.wait_for_holders("")
        assert list(workers(client).values()) == [1]


def test_one_that_is_held_is_held_until_the_later_end() -> None:
    with embedded() as (_, client):
        [worker] = workers(client)
        assert disturb(client, HANG, hold_s=0.3) == 1
        wait_until("it to go on", lambda: status_of(worker) != psutil.STATUS_STOPPED)
        assert workers(client) == {worker: 0}, "a short one goes by unseen"
        assert client.holders() == {"slice-0": ""}
        assert disturb(client, HANG, hold_s=LONG_S) == 1
        # Its own end would be at once.
        assert disturb(client, HANG, hold_s=0.0) == 1
        wait_until("it to stop", lambda: status_of(worker) == psutil.STATUS_STOPPED)
        ended = identity_of(worker)
        assert disturb(client, KILL, hold_s=0.0) == 1, "one that stands still is killed too"
        wait_for_end([ended])
        wait_for_state(client, "lost")
        # The resource manager may hear of its end before the supervisor does.
        wait_until("the supervisor to hear of its end", lambda: not workers(client))
        assert disturb(client, HANG, hold_s=0.0) == 0, "it is kept down, not stopped"
        assert disturb(client, LET_GO) == 0
        client.wait_for_holders("")


@pytest.mark.parametrize("kind", [KILL, HANG])
def test_the_end_of_the_service_ends_a_hold(kind: pb.DisturbSliceRequest.Kind.ValueType) -> None:
    with embedded(slices=f"{KIND}=2") as (server, client):
        everything = client.all_identities()
        logs = Path(json.loads(client.paths.state.read_text())["log_dir"])
        assert disturb(client, kind, "slice-1", LONG_S) == 1
        assert server.stop() == 0
        in_order = "Pathways Server stopping" in (logs / "slice-1-0.log").read_text()
        assert in_order == (kind == HANG), "who stood still was let go, and heard that it is over"
        wait_for_end(everything)
        assert_clean(client.paths)


def test_a_worker_that_was_disturbed_is_excused_once() -> None:
    with embedded("--max_slice_restarts=0") as (_, client):
        assert disturb(client, KILL) == 1
        wait_until("another worker", lambda: 1 in workers(client).values())
        [again] = workers(client)
        psutil.Process(again).kill()
        wait_until("giving up", lambda: not workers(client))
        wait_for_state(client, "lost")
        assert disturb(client, KILL) == 0


def refused(client: EmbeddedClient, **fields: Any) -> errors.SharedPathwaysError:
    request = pb.DisturbSliceRequest(**{"slice": "slice-0", "kind": KILL, **fields})
    with pytest.raises(grpc.RpcError) as caught:
        client.supervisor.DisturbSlice(request, **client.call)
    return error_of(caught.value, service="supervisor", address="here")


def test_what_is_wrong_is_refused_and_nothing_is_disturbed() -> None:
    with embedded(slices=f"{KIND}=2") as (_, client):
        before = client.all_identities()
        for name in ("slice-7", "", "slice-0 "):
            error = refused(client, slice=name)
            assert isinstance(error, errors.ServiceNotFound)
            assert error.candidates == ("slice-0", "slice-1")
            assert "its slices are slice-0, slice-1" in str(error)
        for field, value in (
            ("kind", 0),
            ("kind", 99),
            ("hold_s", -1.0),
            ("hold_s", math.nan),
            ("hold_s", math.inf),
            ("hold_s", 3600.5),
        ):
            error = refused(client, **{field: value})
            assert isinstance(error, errors.InvalidRequestError)
            assert error.field == field
        with pytest.raises(grpc.RpcError) as caught:
            client.supervisor.DisturbSlice(
                pb.DisturbSliceRequest(slice="slice-0", kind=KILL),
                metadata=bearer("wrong"),
                timeout=deadline(60.0),
            )
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert client.all_identities() == before
