"""The history in the state file: what is kept, and how it is read."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import math
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.events.proxy import MemoryNearLimit
from shared_pathways_service.events.recorded_decisions import DecisionKind
from shared_pathways_service.scheduling.book import messages as m
from shared_pathways_service.scheduling.book.decisions import Decision
from shared_pathways_service.scheduling.book.persisted import Persist
from shared_pathways_service.scheduling.event_log import decisions_of
from shared_pathways_service.servers.resource_manager.history_table import (
    Filter,
    History,
    HistoryClosed,
)
from shared_pathways_service.servers.resource_manager.store import Store
from tests.scheduling.harness import OTHER, SMALL, Rm
from tests.scheduling.policies.idle_scenes import RELEASE_S, WARNING_S


def _decision(number: int, tenant: str = "ada", kind: str = DecisionKind.PLACED) -> Decision:
    return Decision(
        time=1000.0 + number,
        kind=kind,
        tenant=tenant,
        user="u",
        team="t",
        slice=f"slice-{number}",
        virtual_index=0,
        generation=number,
        instance_type="tpuv6e:2x2",
        reason="because",
        related="bob",
        began=3.5,
    )


def _persist(*decisions: Decision, can_wait: bool = False) -> Persist:
    return Persist(
        grants=(),
        forgotten=(),
        last_generation=1,
        last_order=1,
        decisions=decisions,
        can_wait=can_wait,
    )


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as made:
        yield made


def _read(
    history: History, wanted: Filter | None = None, *, after: int = 0, piece: int = 3
) -> list[int]:
    """Returns the numbers of what is read, in order."""

    return [number for number, _ in _numbered(history, wanted or Filter(), after, piece)]


def _numbered(
    history: History, wanted: Filter, after: int = 0, piece: int = 100
) -> list[tuple[int, Decision]]:
    async def read() -> list[list[tuple[int, Decision]]]:
        return [found async for found in history.read(wanted, after=after, piece=piece)]

    pieces = asyncio.run(read())
    assert all(pieces), "an empty piece"
    return [one for found in pieces for one in found]


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = str(tmp_path / "state")
    first, second, third = (_decision(n) for n in (1, 2, 3))
    with contextlib.closing(Store(path, first_start=True)) as store:
        number = store.history.last
        assert store.write(_persist(first, second)) == [(number + 1, first), (number + 2, second)]
    with contextlib.closing(Store(path, first_start=False)) as store:
        assert store.history.last_of_served(10) == [first, second]
        assert store.history.began == first.time
        assert store.write(_persist(third)) == [(number + 3, third)]


def test_what_can_wait_goes_with_the_next_write_in_its_order(tmp_path: Path) -> None:
    path = str(tmp_path / "state")
    ready = _decision(1, tenant="", kind=DecisionKind.READY)
    with contextlib.closing(Store(path, first_start=True)) as store:
        number = store.history.last
        assert store.write(_persist(ready, can_wait=True)) == []
        assert store.has_waiting
        assert store.history.last == number
        assert store.write(_persist(_decision(2))) == [
            (number + 1, ready),
            (number + 2, _decision(2)),
        ]
        store.write(_persist(ready, can_wait=True))
        assert store.flush() == [(number + 3, ready)]
        assert store.flush() == []


def test_a_state_file_from_before_the_history_goes_on(tmp_path: Path) -> None:
    path = str(tmp_path / "state")
    with contextlib.closing(Store(path, first_start=True)) as store:
        store.write(_persist())
    with contextlib.closing(sqlite3.connect(path)) as old:
        old.execute("DROP TABLE decisions")
        old.commit()
    with contextlib.closing(Store(path, first_start=False)) as store:
        assert store.restored.last_generation == 1
        number = store.history.last
        assert store.write(_persist(_decision(1))) == [(number + 1, _decision(1))]


def test_it_is_read_in_pages_with_filters(db: sqlite3.Connection) -> None:
    history = History(db)
    kinds = [DecisionKind.PLACED, DecisionKind.FREED]
    history.append([_decision(n, tenant="ab"[n % 2], kind=kinds[n // 2 % 2]) for n in range(1, 21)])
    assert _read(history) == list(range(1, 21))
    assert _read(history, after=17) == [18, 19, 20]
    assert _read(history, after=20) == []
    assert _read(history, Filter(tenant="b")) == list(range(1, 21, 2))
    assert _read(history, Filter(tenant="nobody")) == []
    assert _read(history, Filter(since=1015.0)) == list(range(15, 21))
    assert _read(history, Filter(since=1015.0, until=1018.0)) == [15, 16, 17]
    assert _read(history, Filter(since=2000.0)) == []
    freed = [n for n in range(1, 21) if n // 2 % 2]
    assert _read(history, Filter(kinds=("slice.freed",))) == freed
    assert _read(history, Filter(kinds=("freed",))) == freed
    assert _read(history, Filter(kinds=("slice",))) == list(range(1, 21))
    assert _read(history, Filter(kinds=("tenant", "sli"))) == []
    assert _read(history, Filter(tenant="a", kinds=("freed",))) == [n for n in freed if n % 2 == 0]
    assert [one.generation for one in history.last_of("b", 2)] == [17, 19]


def test_what_is_written_while_it_is_read_is_read_too(db: sqlite3.Connection) -> None:
    history = History(db)
    history.append([_decision(n) for n in range(1, 8)])

    async def read() -> list[int]:
        numbers: list[int] = []
        async for piece in history.read(Filter(), piece=3):
            numbers += [number for number, _ in piece]
            if history.last < 12:
                history.append([_decision(history.last + 1)])
        assert numbers[-1] == history.last, "who goes on from here misses something"
        return numbers

    assert asyncio.run(read()) == list(range(1, 13))


def test_it_is_bounded_by_number(db: sqlite3.Connection) -> None:
    history = History(db, max_rows=100)
    for number in range(1, 400):
        history.append([_decision(number)])
        assert db.execute("SELECT count(*) FROM decisions").fetchone()[0] <= 101
    assert _read(history, piece=50) == list(range(300, 400))
    assert History(db).last == 399


def test_it_is_bounded_by_age_and_each_write_stays_short(db: sqlite3.Connection) -> None:
    history = History(db, max_age_s=50.0)
    history.append([_decision(number) for number in range(1, 1001)])
    left = [db.execute("SELECT count(*) FROM decisions").fetchone()[0]]
    while left[-1] > 100:
        later = dataclasses.replace(_decision(1), time=3000.0)
        history.append([later])
        left.append(db.execute("SELECT count(*) FROM decisions").fetchone()[0])
        assert left[-2] - left[-1] < 100, "a write that took long"
    assert all(one.time >= 1000.0 for one in history.last_of_served(10))


def test_numbers_are_never_given_twice(db: sqlite3.Connection) -> None:
    history = History(db, max_age_s=50.0)
    history.append([_decision(1)])
    history.append([dataclasses.replace(_decision(1), time=9000.0)])
    db.execute("DELETE FROM decisions")
    again = History(db)
    assert again.append([_decision(5)]) == [(3, _decision(5))]


def test_a_clock_that_was_set_back_hides_nothing(db: sqlite3.Connection) -> None:
    history = History(db)
    times = [100.0, 101.0, 102.0, 50.0, 55.0, 60.0]
    history.append(
        [dataclasses.replace(_decision(n), time=at) for n, at in enumerate(times, start=1)]
    )
    assert _read(history, Filter(since=55.0)) == [1, 2, 3, 5, 6]
    assert _read(history, Filter(since=101.5)) == [3]
    assert _read(history, Filter(since=103.0)) == []


def test_the_first_of_a_time_is_found_in_a_long_history(db: sqlite3.Connection) -> None:
    history = History(db)
    late = [dataclasses.replace(_decision(n), time=9000.0 + n) for n in range(1, 3)]
    history.append([*late, *(_decision(n) for n in range(3, 5001))])
    assert _read(history, Filter(since=1001.0), piece=1000)[:3] == [1, 2, 3]
    assert _read(history, Filter(since=5999.0), piece=1000) == [1, 2, 4999, 5000]


def test_a_new_history_begins_above_all_that_another_can_have_had(tmp_path: Path) -> None:
    before = time.time_ns() // 1_000_000
    with contextlib.closing(Store(str(tmp_path / "state"), first_start=True)) as store:
        after = time.time_ns() // 1_000_000
        ((first, _), (second, _)) = store.write(_persist(_decision(1), _decision(2)))
    assert before <= first <= after
    assert second == first + 1
    with contextlib.closing(Store(str(tmp_path / "state"), first_start=True)) as store:
        assert store.write(_persist(_decision(3)))[0][0] == second + 1


def test_a_reader_during_closing_gets_an_error(db: sqlite3.Connection) -> None:
    history = History(db)
    history.append([_decision(number) for number in range(10)])

    async def read() -> None:
        async for _ in history.read(Filter(), piece=3):
            history.close()

    with pytest.raises(HistoryClosed):
        asyncio.run(read())


class _Service(Rm):
    """A service and its decisions."""

    def __init__(self, slices: int | dict[InstanceType, int] = 1, **config: Any) -> None:
        self.decided: list[Decision] = []
        self._asked = 0
        config |= {"idle_release_s": RELEASE_S, "idle_warning_s": WARNING_S}
        super().__init__(slices, preemption_grace_s=0.0, **config)

    def do(self, event: m.ResourceManagerEvent) -> list[m.Instruction]:
        said = super().do(event)
        self.decided += decisions_of(said)
        return said

    def asks(self, wants: tuple[InstanceType, ...] = (SMALL,), **request: Any) -> str:
        """Has a new tenant ask; returns its name."""
        self._asked += 1
        tenant = f"tenant-{self._asked}"
        self.ask(tenant, wants, **request)
        return tenant

    def ends(self, tenant: str) -> None:
        """Has the proxy of a tenant end for good."""
        self.cut(tenant)
        self.after(self.config.tenant_ttl_s + 1.0)

    def take_decisions(self) -> list[Decision]:
        taken, self.decided = self.decided, []
        return taken


def _is_refused_at_once(on: _Service) -> None:
    on.asks()


def _waits_in_vain(on: _Service) -> None:
    on.asks(queue=1.0)
    on.after(2.0)


def _stops_waiting(on: _Service) -> None:
    on.release(on.asks(queue=math.inf))


def _dies_as_it_waits(on: _Service) -> None:
    on.ends(on.asks(queue=math.inf))


def _takes_the_name_of_another(on: _Service) -> None:
    on.ask("holder", life="2")


def _reports_events(on: _Service) -> None:
    tenant = on.asks(queue=math.inf)
    event = json.dumps(MemoryNearLimit(tenant=tenant).to_dict())
    for _ in range(10):
        on.do(m.ProxyReported(tenant=tenant, incarnation=f"{tenant}/1", event=event))
    on.release(tenant)


def _is_forgotten(on: _Service) -> None:
    before = _Service({SMALL: 1, OTHER: 1}, now=on.now)
    before.ask("holder", (OTHER,))
    before.take_decisions()
    waits = before.asks((OTHER,), queue=math.inf)
    after = _Service({SMALL: 1}, now=on.now, ready=False, restored=before.restored)
    on.decided += before.decided + [one for one in after.decided if one.tenant == waits]


#: What tenants can do that never get slices, with the kinds of the decisions that it leads to.
_IN_VAIN: dict[Callable[[_Service], None], set[str]] = {
    _is_refused_at_once: {DecisionKind.REFUSED},
    _waits_in_vain: {DecisionKind.QUEUED, DecisionKind.REFUSED},
    _stops_waiting: {DecisionKind.QUEUED, DecisionKind.RELEASED},
    _dies_as_it_waits: {DecisionKind.QUEUED, DecisionKind.EXPIRED},
    _takes_the_name_of_another: {DecisionKind.TURNED_AWAY},
    _reports_events: {DecisionKind.QUEUED, MemoryNearLimit.kind, DecisionKind.RELEASED},
    _is_forgotten: {DecisionKind.QUEUED, DecisionKind.FORGOTTEN},
}


def _of_those_that_had_slices() -> list[Decision]:
    """Returns decisions about tenants that had slices, which they lost in every way."""
    service = _Service()
    for _ in range(4):
        first = service.asks()
        above = service.asks(priority=1, queue=math.inf)
        service.after(1.0)
        service.release(above)
        service.tell(first, 1)
        service.after(RELEASE_S - WARNING_S)
        service.tell(first, 1, RELEASE_S - WARNING_S)
        service.after(WARNING_S)
        service.release(first)
        service.ends(service.asks())
    decided = service.take_decisions()
    # (That one waited before it ran is a decision that one which never runs leads to as well.)
    decided = [one for one in decided if one.tenant and one.kind != DecisionKind.QUEUED]
    kinds = {one.kind for one in decided}
    assert kinds == {
        DecisionKind.RUNNING,
        DecisionKind.PLACED,
        DecisionKind.PREEMPTED,
        DecisionKind.UNPLACED,
        DecisionKind.IDLED,
        DecisionKind.FREED,
        DecisionKind.EXPIRED,
        DecisionKind.RELEASED,
    }
    return decided


@pytest.mark.parametrize(
    "loop",
    [*((acts,) for acts in _IN_VAIN), tuple(_IN_VAIN)],
    ids=[*(acts.__name__.strip("_") for acts in _IN_VAIN), "all_of_these"],
)
def test_tenants_without_slices_push_nothing_else_out(
    db: sqlite3.Connection, loop: tuple[Callable[[_Service], None], ...]
) -> None:
    used = _of_those_that_had_slices()
    full = len(used) * 10 // 8
    history = History(db, max_rows=full)
    history.append(used)
    service = _Service()
    service.ask("holder")
    service.take_decisions()
    written: list[Decision] = []
    while len(written) < 5 * full:
        for acts in loop:
            acts(service)
            decided = service.take_decisions()
            assert {one.kind for one in decided} == _IN_VAIN[acts]
            for one in decided:
                history.append([one])
            written += decided
    # The last of the others are there, as long as there is room for a tenth.
    left = [one for _, one in _numbered(history, Filter())]
    assert left == [*used, *written[-(full // 10) :]]
    assert len(history) == len(left)
    assert history.last_of_served(full) == used
    # Others still push out the oldest, of whichever kind.
    surplus = 5
    more = [_decision(n, kind=DecisionKind.FREED) for n in range(full - len(left) + surplus)]
    history.append(more)
    assert [one for _, one in _numbered(history, Filter())] == [*left[surplus:], *more]
    again = History(db, max_rows=full)
    assert (len(again), again.last, again.began) == (full, history.last, history.began)
    again.append([written[-1]])
    assert len(again) == full, "the others are counted again"


@pytest.mark.parametrize("other", ["refusals", "unserved_0123abcd"])
def test_a_file_of_another_release_is_counted_and_cut_anew(
    db: sqlite3.Connection, other: str
) -> None:
    """Its index held refusals alone."""
    service = _Service()
    service.ask("holder")
    service.take_decisions()
    for _ in range(50):
        _stops_waiting(service)
    waits = service.take_decisions()
    History(db).append(waits)
    [ours] = [name for name in _names(db) if name.startswith("unserved_")]
    db.execute(f"DROP INDEX {ours}")
    db.execute(f"CREATE INDEX {other} ON decisions (sequence) WHERE kind IN ('tenant.refused')")
    history = History(db, max_rows=200)
    assert len(history) == len(waits) == 100
    more = [_decision(1), _decision(2)]
    for one in more:
        history.append([one])
    assert [one for _, one in _numbered(history, Filter())] == [*waits[-20:], *more]
    assert other not in _names(db)
    assert ours in _names(db)


def _names(db: sqlite3.Connection) -> set[str]:
    return {name for (name,) in db.execute("SELECT name FROM sqlite_schema")}
