"""The journal: on disk before anything is begun, and readable whatever became of its writer."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import os
import shutil
import time
from pathlib import Path

import pytest

from harness.processes import DEADLINE_S, ended_process
from shared_pathways_service.agent import session_entry
from shared_pathways_service.agent.journal import Entry
from shared_pathways_service.agent.session_entry import SessionEntry
from shared_pathways_service.homes.choice import HomeChoice
from shared_pathways_service.runtime.processes import Identity, identity_of
from shared_pathways_service.session.link_view import LinkView
from shared_pathways_service.session.messages import Phase, Snapshot
from tests.agent.support import Bench

ENTRY = Entry(
    session="5e55",
    name="isc-proxy-ada-x7k2p",
    home=HomeChoice(name="fake", options={"directory": "/d"}),
    owner=Identity(pid=1, start="a"),
    agent=Identity(pid=2, start="b"),
    since="2026-01-01T00:00:00.000Z",
    slices=("tpuv6e:2x2",),
)


def test_entries_come_back_oldest_first(bench: Bench) -> None:
    newer = dataclasses.replace(ENTRY, session="0", since="2026-01-02T00:00:00.000Z")
    bench.journal.write(newer)
    bench.journal.write(ENTRY)
    assert bench.journal.entries() == [ENTRY, newer]
    known = dataclasses.replace(ENTRY, uid="u")
    bench.journal.update(known)
    assert bench.journal.read("5e55") == known
    bench.journal.remove("5e55")
    bench.journal.remove("5e55")
    assert bench.journal.entries() == [newer]


def test_a_link_comes_back_and_entries_of_older_versions_have_none(bench: Bench) -> None:
    known = dataclasses.replace(ENTRY, link=LinkView(state="lost", lost_at=1.5, attempts=2))
    bench.journal.write(known)
    assert bench.journal.read("5e55") == known
    older = ENTRY.to_json()
    del older["link"]
    assert Entry.from_json(older) == ENTRY


def test_only_its_user_can_enter(bench: Bench) -> None:
    assert bench.journal_directory.stat().st_mode & 0o077 == 0
    assert bench.journal.write_token("5e55", "secret").stat().st_mode & 0o077 == 0
    bench.journal.remove("5e55")
    assert list(bench.journal_directory.iterdir()) == []


def test_a_file_that_is_none_of_its_entries_is_passed_over(bench: Bench) -> None:
    for name, text in (("a", ""), ("b", "[]"), ("c", "{}"), ("d", '{"version":1,"home":3}')):
        (bench.journal_directory / f"{name}.json").write_text(text)
    bench.journal.write(ENTRY)
    assert bench.journal.entries() == [ENTRY]


def test_the_drafts_of_killed_writers_alone_do_not_stay(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.journal.write(ENTRY)
    own = bench.journal_directory / f"{ENTRY.session}.new"
    own.write_text("{}")
    bench.journal.remove(ENTRY.session)
    assert list(bench.journal_directory.iterdir()) == []
    stale, fresh = (bench.journal_directory / f"{name}.new" for name in ("stale", "fresh"))
    for draft in (stale, fresh):
        draft.write_text("{}")
    os.utime(stale, (0, 0))
    # (The writer of the fresh one may be on another machine, whose clock is right.)
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 3600.0)
    bench.journal.drop_stale_drafts()
    assert list(bench.journal_directory.iterdir()) == [fresh]


def test_abandoned_is_what_neither_owner_nor_agent_looks_after() -> None:
    gone, here = ended_process(), identity_of()
    assert dataclasses.replace(ENTRY, owner=gone, agent=gone).abandoned
    assert not dataclasses.replace(ENTRY, owner=here, agent=gone).abandoned
    assert not dataclasses.replace(ENTRY, owner=gone, agent=here).abandoned


def test_what_belongs_to_another_machine_is_not_abandoned() -> None:
    gone, there = ended_process(), Identity(pid=1, start="another-boot/1")
    for owner, agent in ((there, there), (there, gone), (gone, there)):
        entry = dataclasses.replace(ENTRY, owner=owner, agent=agent)
        assert entry.is_elsewhere
        assert not entry.abandoned
    for owner in (gone, identity_of()):
        assert not dataclasses.replace(ENTRY, owner=owner, agent=gone).is_elsewhere


def test_a_touched_entry_shows_how_long_its_agent_has_been_silent(bench: Bench) -> None:
    journal = bench.journal
    assert journal.silent_s(ENTRY.session) == math.inf
    journal.write(ENTRY)
    path = bench.journal_directory / f"{ENTRY.session}.json"
    then = path.stat().st_mtime - 1000.0
    os.utime(path, (then, then))
    assert 1000.0 <= journal.silent_s(ENTRY.session) < 1000.0 + DEADLINE_S
    journal.touch(ENTRY)
    assert journal.silent_s(ENTRY.session) < DEADLINE_S
    assert list(bench.journal_directory.iterdir()) == [path]


def test_an_entry_that_others_removed_is_written_again(bench: Bench) -> None:
    bench.journal.write(ENTRY)
    shutil.rmtree(bench.journal_directory)
    bench.journal.touch(ENTRY)
    assert bench.journal.entries() == [ENTRY]


def test_a_touched_token_is_as_new_and_one_that_others_removed_is_written_again(
    bench: Bench,
) -> None:
    bench.journal.write(ENTRY)
    path = bench.journal.write_token(ENTRY.session, "secret")
    os.utime(path, (0, 0))
    bench.journal.touch(ENTRY, "secret")
    assert min(path.stat().st_mtime, path.stat().st_atime) > 0
    path.unlink()
    bench.journal.touch(ENTRY, "secret")
    assert path.read_text() == "secret"
    assert path.stat().st_mode & 0o777 == 0o600
    bench.journal.remove(ENTRY.session)
    assert list(bench.journal_directory.iterdir()) == []


def test_a_session_keeps_its_token_fresh(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    start = bench.start()
    entry = SessionEntry(start, bench.journal, metrics="")
    entry.write(Snapshot(name=start.request.name, phase=Phase.NEW))
    path = Path(entry.write_token("secret"))
    path.unlink()
    monkeypatch.setattr(session_entry, "TOUCH_INTERVAL_S", 0.01)

    async def keep_until_there() -> None:
        keeping = asyncio.create_task(entry.keep_fresh())
        async with asyncio.timeout(DEADLINE_S):
            while not path.exists():
                await asyncio.sleep(0.01)
        keeping.cancel()

    asyncio.run(keep_until_there())
    assert path.read_text() == "secret"
