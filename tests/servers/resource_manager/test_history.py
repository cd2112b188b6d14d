"""The history in the state file: what is kept, and how it is read."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared_pathways_service.events.recorded_decisions import DecisionKind
from shared_pathways_service.scheduling.book.decisions import Decision
from shared_pathways_service.scheduling.book.persisted import Persist
from shared_pathways_service.servers.resource_manager.history_table import (
    Filter,
    History,
    HistoryClosed,
)
from shared_pathways_service.servers.resource_manager.store import Store


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

    async def read() -> list[int]:
        pieces = history.read(wanted or Filter(), after=after, piece=piece)
        return [number for found in pieces_of([p async for p in pieces]) for number in found]

    return asyncio.run(read())


def pieces_of(pieces: list[list[tuple[int, Decision]]]) -> list[list[int]]:
    assert all(pieces), "an empty piece"
    return [[number for number, _ in piece] for piece in pieces]


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = str(tmp_path / "state")
    first, second, third = (_decision(n) for n in (1, 2, 3))
    with contextlib.closing(Store(path, first_start=True)) as store:
        number = store.history.last
        assert store.write(_persist(first, second)) == [(number + 1, first), (number + 2, second)]
    with contextlib.closing(Store(path, first_start=False)) as store:
        assert store.history.tail(10) == [first, second]
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
    assert all(one.time >= 1000.0 for one in history.tail(10))


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


def test_refusals_push_nothing_else_out(db: sqlite3.Connection) -> None:
    history = History(db, max_rows=100)
    used = [_decision(n, kind=DecisionKind.PLACED) for n in range(1, 81)]
    history.append(used)
    for n in range(100, 5100):
        kind = DecisionKind.TURNED_AWAY if n % 2 else DecisionKind.REFUSED
        history.append([_decision(n, tenant="loop", kind=kind)])
    assert [number for number in _read(history) if number <= 80] == list(range(1, 81))
    # The last of them are there, as long as there is room for a tenth.
    assert history.tail(10) == [
        _decision(
            n, tenant="loop", kind=DecisionKind.TURNED_AWAY if n % 2 else DecisionKind.REFUSED
        )
        for n in range(5090, 5100)
    ]
    assert len(history) == 90 == len(_read(history))
    # Others still push out the oldest, refusals or not.
    history.append([_decision(n, kind=DecisionKind.FREED) for n in range(6000, 6015)])
    assert len(history) == 100
    assert history.began == used[5].time
    again = History(db, max_rows=100)
    assert (len(again), again.last, again.began) == (100, history.last, history.began)
