"""The owner of the core, when something goes wrong that nobody can mend while it runs."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from harness.deadlines import deadline
from harness.processes import DEADLINE_S
from shared_pathways_service.api.tenant_requests import TenantRequest
from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.events.recorded_decisions import DecisionKind
from shared_pathways_service.flags.parsing import parse_flags
from shared_pathways_service.metrics.families import Family, Sample
from shared_pathways_service.metrics.measurement_messages import message_of
from shared_pathways_service.scheduling.book import messages as m
from shared_pathways_service.scheduling.book.config import RmConfig
from shared_pathways_service.scheduling.book.decisions import Decision
from shared_pathways_service.scheduling.book.persisted import PersistedGrant, Restored
from shared_pathways_service.scheduling.core import ResourceManagerCore
from shared_pathways_service.servers.resource_manager import __main__ as manager
from shared_pathways_service.servers.resource_manager.authority import Authority
from shared_pathways_service.servers.resource_manager.flags import ResourceManagerOptions
from shared_pathways_service.servers.resource_manager.manager_metrics import families
from shared_pathways_service.servers.resource_manager.outbox import StreamEnded
from shared_pathways_service.servers.resource_manager.proxy_counters import ProxyCounters
from shared_pathways_service.servers.resource_manager.recording import Recording
from shared_pathways_service.servers.resource_manager.reported_times import ExecutorTimes
from shared_pathways_service.servers.resource_manager.steady_clock import SteadyClock
from shared_pathways_service.servers.resource_manager.store import Store
from shared_pathways_service.servers.resource_manager.streams import TenantStreams, WorkerStreams

KIND = InstanceType.parse("tpuv6e:2x2")
ADA = m.TenantAsked(
    request=TenantRequest(name="ada", virtual_slices=(KIND,), queue_timeout_s=float("inf")),
    incarnation="1",
)
BOB = dataclasses.replace(ADA.request, name="bob")
ONE_SLICE = RmConfig(slices={KIND: 1})
RELEASED = m.TenantReleased(tenant="ada", reason="done")


class Made:
    """An authority with a tenant that waits, or with what a restart left.

    Attributes:
      fatal: What it said that it cannot go on for.
      events: Kinds of what it announced.
    """

    def __init__(
        self,
        path: Path,
        config: RmConfig = ONE_SLICE,
        restored: Restored | None = None,
        *,
        is_full: bool = False,
        check_term: Callable[[], None] = lambda: None,
    ) -> None:
        clock = SteadyClock()
        self.store = Store(str(path / "state"), first_start=True)
        self.store.note(Decision(time=clock(), kind=DecisionKind.STARTED))
        if is_full:
            self.store._db.execute("PRAGMA query_only = ON")
        self.core = ResourceManagerCore(config, restored, clock())
        self.fatal: list[str] = []
        self.events: list[str] = []
        self.authority = Authority(
            self.core,
            self.store,
            WorkerStreams(10.0),
            TenantStreams(15.0),
            clock=clock,
            watcher_limit=10,
            on_event=lambda event: self.events.append(event.kind),
            on_fatal=self.fatal.append,
            recording=Recording(),
            check_term=check_term,
        )
        if restored is None and not is_full:
            self.authority.join_tenant(ADA, 1)


def test_an_unwritten_decision_is_not_answered(tmp_path: Path) -> None:
    async def work() -> None:
        made = Made(tmp_path)
        made.store._db.execute("PRAGMA query_only = ON")
        with pytest.raises(StreamEnded, match="ada is not released") as caught:
            made.authority.operators.release(RELEASED)
        assert caught.value.code is grpc.StatusCode.UNAVAILABLE
        assert made.fatal == [
            "cannot write the state file: attempt to write a readonly database",
        ]

    asyncio.run(work())


def test_where_its_start_cannot_be_written_it_says_so(tmp_path: Path) -> None:
    async def work() -> None:
        made = Made(tmp_path, is_full=True)
        assert made.fatal == [
            "cannot write the state file: attempt to write a readonly database",
        ]
        # Nothing is left that would be due.
        assert made.authority._timer._pulse_timer.cancelled()
        assert made.authority._timer._timer is None

    asyncio.run(work())


def test_a_file_is_closed_only_by_a_head_that_may_write(tmp_path: Path) -> None:
    """The log is moved to the state file then, which another head may have."""
    is_held = True

    def check_term() -> None:
        if not is_held:
            raise SystemExit("the term is over")

    async def work() -> None:
        nonlocal is_held
        made = Made(tmp_path, check_term=check_term)
        made.store._db.execute("PRAGMA query_only = ON")
        with pytest.raises(StreamEnded):
            made.authority.operators.release(RELEASED)
        is_held = False
        with pytest.raises(SystemExit, match="the term is over"):
            made.authority.close()
        is_held = True
        made.authority.close()

    asyncio.run(work())


def test_a_lease_is_renewed_while_the_state_is_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_renewed = threading.Event()
    restore = manager._restore

    def slow_restore(*arguments: Any) -> Any:
        assert is_renewed.wait(DEADLINE_S), "restoring blocks the event loop"
        return restore(*arguments)

    monkeypatch.setattr(manager, "_restore", slow_restore)
    flags = [f"--state_file={tmp_path / 'state'}", f"--instance_type={KIND}", "--instance_count=1"]
    options = parse_flags(ResourceManagerOptions, flags, {})

    async def work() -> None:
        async with contextlib.AsyncExitStack() as stack:
            fatal: list[str] = []
            # Stands for the task that keeps the Lease.
            asyncio.get_running_loop().call_soon(is_renewed.set)
            authority = await manager._make_authority(options, fatal.append, lambda: None, stack)
            # The loop's thread goes on with the file.
            authority.join_tenant(ADA, 1)
            assert authority.history.last_of("ada", 1)
            assert not fatal

    asyncio.run(work())


def test_a_history_that_cannot_be_written_is_not_looked_at(tmp_path: Path) -> None:
    async def work() -> None:
        made = Made(tmp_path)
        made.store.note(Decision(time=time.time(), kind=DecisionKind.RECOVERED))
        made.store._db.execute("PRAGMA query_only = ON")
        with pytest.raises(StreamEnded, match="the server is ending") as caught:
            _ = made.authority.history
        assert caught.value.code is grpc.StatusCode.UNAVAILABLE
        assert made.fatal == ["cannot write the state file: attempt to write a readonly database"]

    asyncio.run(work())


def test_a_core_that_stumbles_is_not_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        made = Made(tmp_path)

        def stumble(_event: object, _now: float) -> list[m.Instruction]:
            raise KeyError("slice-0")

        monkeypatch.setattr(made.core, "handle", stumble)
        with pytest.raises(KeyError):
            made.authority.join_tenant(dataclasses.replace(ADA, request=BOB), 1)
        assert made.fatal == ["cannot go on after TenantAsked: KeyError('slice-0')"]
        monkeypatch.undo()
        with pytest.raises(StreamEnded):
            made.authority.operators.release(RELEASED)
        assert made.core.knows("ada"), "nothing is handed to it any more"
        with contextlib.closing(Store(str(tmp_path / "state"), first_start=False)) as again:
            assert [grant.request.name for grant in again.restored.grants] == ["ada"]

    asyncio.run(work())


@pytest.mark.parametrize("stalled_s", [1.6, 2.5], ids=["before", "after"])
def test_a_stalled_manager_does_not_declare_workers_hung(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stalled_s: float
) -> None:
    module = "shared_pathways_service.servers.resource_manager.core_timer"
    monkeypatch.setattr(f"{module}._PULSE_INTERVAL_S", 0.1)

    async def work() -> None:
        made = Made(tmp_path, RmConfig(slices={KIND: 1}, hung_after_s=2.0))
        loop = asyncio.get_running_loop()
        joined = m.WorkerJoined(
            slice_id="slice-0", instance_type=KIND, host_index=0, incarnation="1"
        )
        made.authority.join_worker(joined, 1)
        deadline = loop.time() + 2.0
        await asyncio.sleep(0.3)
        # It stands still, and goes on shortly before the deadline, or after it.
        time.sleep(stalled_s)
        deadline = max(deadline, loop.time())
        while loop.time() < deadline + 0.3:
            await asyncio.sleep(0.05)
        beat = m.WorkerBeat(slice_id="slice-0", host_index=0, incarnation="1")
        made.authority.handle(beat)
        assert "slice.lost" not in made.events
        # Without any more beats it is hung, though later than by itself.
        while "slice.lost" not in made.events:
            await asyncio.sleep(0.05)
        made.authority.close()

    asyncio.run(asyncio.wait_for(work(), deadline(60.0)))


def test_a_slice_that_comes_back_late_behind_others_is_not_given_up(tmp_path: Path) -> None:
    async def work() -> None:
        slices = [f"slice-{number}" for number in range(3)]
        workers = [
            m.WorkerJoined(
                slice_id=one, instance_type=KIND, host_index=0, incarnation=one, welcomed_at=0
            )
            for one in slices
        ]
        grant = PersistedGrant(
            request=TenantRequest(
                name="ada",
                virtual_slices=(KIND,) * 3,
                elastic_slices=0,
                priority=0,
                queue_timeout_s=None,
                user="",
                team="",
                host="",
            ),
            incarnation="1",
            pid=1,
            order=1,
            running=True,
            placements={index: (one, index + 1) for index, one in enumerate(slices)},
            asked_at=0.0,
            incarnations={one: (one,) for one in slices},
        )
        config = RmConfig(slices={KIND: 3}, recovering_s=0.5, tenant_ttl_s=600.0)
        made = Made(tmp_path, config, Restored(grants=(grant,)))
        for worker in workers[:2]:
            made.authority.join_worker(worker, 1)
        # Its time would be over.
        await asyncio.sleep(1.0)
        made.authority.join_worker(workers[2], 1)
        made.authority.join_tenant(
            m.TenantAsked(
                request=TenantRequest(name="ada", virtual_slices=(KIND,) * 3),
                incarnation="1",
                claims=tuple(
                    m.Claim(virtual_index=index, slice_id=one, generation=index + 1)
                    for index, one in enumerate(slices)
                ),
            ),
            1,
        )
        assert "rm.recovered" in made.events
        assert "slice.lost" not in made.events
        made.authority.close()

    asyncio.run(asyncio.wait_for(work(), deadline(60.0)))


def test_a_clock_that_was_set_back_goes_on_where_the_last_one_was() -> None:
    clock = SteadyClock()
    now = clock()
    clock.go_on_from(now - 60.0)
    assert now <= clock() < now + 30.0, "it is ahead already"
    clock.go_on_from(now + 3600.0)
    assert clock() >= now + 3600.0
    clock.go_on_from(now + 10 * 86_400.0)
    assert clock() < now + 2 * 3600.0, "that one was wrong"


def test_the_counters_of_proxies_are_computed_where_they_are_read(tmp_path: Path) -> None:
    """Those of a thousand proxies take seconds, which the authority's thread does not have."""

    async def work() -> None:
        proxies = ProxyCounters()
        message = message_of([Family("sps_proxy_requests", "counter", "Requests.", [Sample(1)])])
        proxies.put("ada", object(), message)
        made = Made(tmp_path)
        found = families(made.authority, proxies, ExecutorTimes())
        # What arrives meanwhile does no harm.
        proxies.put("bob", object(), message)
        # Only what has not been computed yet sees this.
        message.families[0].samples[0].value = 2
        *own, last = found
        assert "sps_rm_streams" in {one.name for one in own}
        assert [(one.labels, one.value) for one in last.samples] == [({"connection": "ada"}, 2)]
        made.authority.close()

    asyncio.run(work())
