from __future__ import annotations

import contextlib
import dataclasses
import math
import sqlite3
from pathlib import Path

import pytest

from shared_pathways_service.api.tenant_requests import TenantRequest
from shared_pathways_service.api.topology import InstanceType
from shared_pathways_service.errors import SharedPathwaysError
from shared_pathways_service.scheduling.book.persisted import (
    Persist,
    PersistedGrant,
    PersistedMark,
    PersistedNotice,
    Restored,
)
from shared_pathways_service.scheduling.book.reserved import Reservation
from shared_pathways_service.scheduling.book.states import SliceMark
from shared_pathways_service.servers.resource_manager import store as store_module
from shared_pathways_service.servers.resource_manager.store import NewerState, Store, open_store

#: Written by version 0.1.0: one that runs, one that waits.
VERSION_1 = """
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT;
INSERT INTO counters VALUES ('last_generation', 7), ('last_order', 2), ('state_lost', 0);
CREATE TABLE grants (tenant TEXT PRIMARY KEY, data TEXT NOT NULL) STRICT;
INSERT INTO grants VALUES ('ada', '{"tenant": "ada", "incarnation": "i-1", "virtual_slices":
["tpuv6e:2x2"], "num_elastic": 0, "priority": 0, "queue_timeout_s": null, "user": "u", "team": "",
"host": "h", "pid": 7, "order": 1, "running": true, "placements": [[0, "slice-0", 7]], "asked_at":
1000000000.0, "lost": [], "incarnations": {"slice-0": ["w-1"]}}');
INSERT INTO grants VALUES ('bob', '{"tenant": "bob", "incarnation": "i-1", "virtual_slices":
["tpuv6e:2x2"], "num_elastic": 0, "priority": 0, "queue_timeout_s": Infinity, "user": "u", "team":
"", "host": "h", "pid": 7, "order": 2, "running": false, "placements": [], "asked_at":
1000000000.0, "lost": [], "incarnations": {}}');
PRAGMA user_version = 1;
"""

#: Written by version 2 of the tables: one that runs and is under notice, one that was preempted.
VERSION_2 = """
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT;
INSERT INTO counters VALUES ('last_generation', 7), ('last_order', 2), ('state_lost', 0);
CREATE TABLE decisions (
  sequence INTEGER PRIMARY KEY AUTOINCREMENT, time REAL NOT NULL, kind TEXT NOT NULL,
  tenant TEXT NOT NULL, user TEXT NOT NULL, team TEXT NOT NULL, slice TEXT NOT NULL,
  virtual_index INTEGER, generation INTEGER NOT NULL, instance_type TEXT NOT NULL,
  reason TEXT NOT NULL, related TEXT NOT NULL, began REAL) STRICT;
INSERT INTO decisions VALUES
  (1, 1000000000.0, 'tenant.running', 'ada', '', '', '', NULL, 0, '', '', '', NULL);
CREATE TABLE grants (tenant TEXT PRIMARY KEY, data TEXT NOT NULL) STRICT;
INSERT INTO grants VALUES ('ada', '{"tenant": "ada", "incarnation": "i-1", "virtual_slices":
["tpuv6e:2x2"], "num_elastic": 0, "priority": 0, "queue_timeout_s": null, "user": "u", "team": "",
"host": "h", "pid": 7, "order": 1, "running": true, "placements": [[0, "slice-0", 7]], "asked_at":
1000000000.0, "waits_since": 1000000000.0, "lost": [], "incarnations": {"slice-0": ["w-1"]},
"preempted": false, "notice": {"by": "vip", "said": "vip@laptop", "ends_at": 1000000005.0},
"ends_at": 2000000000.0, "held_since": {"slice-0": 1000000000.0}}');
INSERT INTO grants VALUES ('bob', '{"tenant": "bob", "incarnation": "i-1", "virtual_slices":
["tpuv6e:2x2"], "num_elastic": 0, "priority": 0, "queue_timeout_s": Infinity, "user": "u", "team":
"", "host": "h", "pid": 7, "order": 2, "running": false, "placements": [], "asked_at": 1000000000.0,
"waits_since": 1000000000.0, "lost": [], "incarnations": {}, "preempted": true, "notice": null,
"ends_at": null, "held_since": {}}');
CREATE TABLE marks (slice TEXT PRIMARY KEY, mark TEXT NOT NULL, moves_at REAL) STRICT;
INSERT INTO marks VALUES ('slice-1', 'cordoned', NULL);
CREATE INDEX decisions_by_time ON decisions (time);
CREATE INDEX decisions_by_tenant ON decisions (tenant, sequence);
PRAGMA user_version = 2;
"""

KIND = InstanceType.parse("tpuv6e:2x2")
RESERVED = Reservation(
    name="res-1",
    instance_type="tpuv6e:2x2",
    count=2,
    user="",
    team="vision",
    starts=1e9 + 0.1,
    ends=2e9,
)
RUNNING = PersistedGrant(
    request=TenantRequest(
        name="ada",
        virtual_slices=(KIND, InstanceType.parse("tpuv5:2x2x2")),
        elastic_slices=1,
        priority=-3,
        queue_timeout_s=math.inf,
        user="ada",
        team="t",
        host="h",
    ),
    incarnation="ada-1",
    pid=7,
    order=1,
    running=True,
    placements={0: ("slice-0", 5)},
    asked_at=12.5,
    lost=(1,),
    incarnations={"slice-0": ("w-1", "")},
)
WAITING = dataclasses.replace(
    RUNNING,
    request=dataclasses.replace(RUNNING.request, name="bob", queue_timeout_s=None),
    running=False,
    placements={},
    lost=(),
)


def _write(store: Store, *grants: PersistedGrant, forgotten: tuple[str, ...] = ()) -> None:
    store.write(Persist(grants=grants, forgotten=forgotten, last_generation=9, last_order=4))


def _reopened(path: Path) -> Restored:
    store, damage = open_store(str(path), first_start=False)
    assert not damage
    with contextlib.closing(store):
        return store.restored


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "state"
    with contextlib.closing(Store(str(path), first_start=True)) as store:
        _write(store, RUNNING, WAITING)
    assert _reopened(path) == Restored(grants=(RUNNING, WAITING), last_generation=9, last_order=4)


def test_a_grant_replaces_the_older_one_and_may_be_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "state"
    later = dataclasses.replace(WAITING, running=True, placements={0: ("slice-1", 6)})
    with contextlib.closing(Store(str(path), first_start=True)) as store:
        _write(store, RUNNING, WAITING)
        _write(store, later, forgotten=("ada", "never-there"))
    restored = _reopened(path)
    assert restored.grants == (later,)


def test_a_write_that_fails_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "state"
    with contextlib.closing(Store(str(path), first_start=True)) as store:
        _write(store, RUNNING)
        request = dataclasses.replace(WAITING.request, user=object())  # type: ignore[arg-type]
        unwritable = dataclasses.replace(WAITING, request=request)
        with pytest.raises(TypeError):
            _write(store, unwritable, forgotten=("ada",))
    restored = _reopened(path)
    assert restored.grants == (RUNNING,)


def test_a_grant_of_another_form_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "state"
    with contextlib.closing(Store(str(path), first_start=True)) as store:
        _write(store, RUNNING)
        store._db.execute("UPDATE grants SET data = '{}'")
    store, damage = open_store(str(path), first_start=True)
    with contextlib.closing(store):
        assert "a PersistedGrant of another form" in damage
        assert store.restored == Restored(state_lost=True)
    assert len(list(tmp_path.glob("state.damaged-*"))) >= 1


def test_fields_of_a_newer_release_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "state"
    with contextlib.closing(Store(str(path), first_start=True)) as store:
        _write(store, RUNNING, WAITING)
        for field in ("$.newer", "$.request.newer"):
            store._db.execute("UPDATE grants SET data = json_set(data, ?, 'red')", (field,))
    assert _reopened(path).grants == (RUNNING, WAITING)


def test_an_impossible_path_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SharedPathwaysError, match="cannot open the state file"):
        open_store(str(tmp_path / "none" / "state"), first_start=True)


def test_without_its_file_only_a_first_start_knows_that_nothing_was_granted(tmp_path: Path) -> None:
    for first_start in (False, True):
        path = tmp_path / f"state-{first_start}"
        with contextlib.closing(Store(str(path), first_start=first_start)) as store:
            assert store.restored == Restored(state_lost=not first_start)
        # Nothing was written since: it is as it was, whatever the second start says of itself.
        with contextlib.closing(Store(str(path), first_start=True)) as store:
            assert store.restored == Restored(state_lost=not first_start)


def test_that_the_state_was_lost_is_known_until_it_is_whole_again(tmp_path: Path) -> None:
    path = tmp_path / "state"
    for lost in (True, False):
        with contextlib.closing(Store(str(path), first_start=True)) as store:
            store.write(
                Persist(grants=(), forgotten=(), last_generation=1, last_order=1, state_lost=lost)
            )
        assert _reopened(path).state_lost is lost


def test_a_full_disk_is_called_one(tmp_path: Path) -> None:
    with contextlib.closing(Store(str(tmp_path / "state"), first_start=True)) as store:
        # SQLite refuses to let the file grow, with the error of a full disk.
        store._db.execute("PRAGMA max_page_count = 1")
        request = dataclasses.replace(RUNNING.request, name="ada" * 20_000)
        large = dataclasses.replace(RUNNING, request=request)
        with pytest.raises(sqlite3.OperationalError, match="database or disk is full"):
            _write(store, large)


def test_a_file_of_the_first_version_is_upgraded(tmp_path: Path) -> None:
    path = tmp_path / "state"
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.executescript(VERSION_1)
    restored = _reopened(path)
    ada, bob = restored.grants
    assert (ada.running, ada.placements) == (True, {0: ("slice-0", 7)})
    assert ada.request == TenantRequest(name="ada", virtual_slices=(KIND,), user="u", host="h")
    assert (bob.request.name, bob.running) == ("bob", False)
    assert bob.request.queue_timeout_s == math.inf
    assert not ada.preempted
    assert (ada.notice, ada.ends_at) == (None, None)
    assert (restored.last_generation, restored.last_order, restored.marks) == (7, 2, ())
    with contextlib.closing(Store(str(path), first_start=False)) as store:
        mark = PersistedMark(slice_id="slice-0", mark=SliceMark.CORDONED)
        store.write(
            Persist(grants=(), forgotten=(), last_generation=7, last_order=2, marks=(mark,))
        )
    again = _reopened(path)
    assert (again.grants, again.marks) == (restored.grants, (mark,))


def test_a_file_of_the_second_version_is_upgraded(tmp_path: Path) -> None:
    path = tmp_path / "state"
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.executescript(VERSION_2)
    restored = _reopened(path)
    ada, bob = restored.grants
    assert (ada.running, ada.placements, ada.idled) == (True, {0: ("slice-0", 7)}, False)
    assert ada.notice == PersistedNotice(by="vip", said="vip@laptop", ends_at=1e9 + 5)
    assert (bob.preempted, bob.parked) == (True, None)
    assert [one.slice_id for one in restored.marks] == ["slice-1"]
    assert restored.reservations == ()
    _reserve(path, RESERVED)
    again = _reopened(path)
    assert dataclasses.replace(again, reservations=()) == restored
    assert again.reservations == (RESERVED,)
    with contextlib.closing(Store(str(path), first_start=False)) as store:
        assert [one.kind for one in store.history.last_of_served(9)] == ["tenant.running"]


def test_a_reservation_is_read_again_until_it_is_over(tmp_path: Path) -> None:
    path = tmp_path / "state"
    other = dataclasses.replace(RESERVED, name="res-2", user="ada", team="")
    _reserve(path, other, RESERVED)
    assert _reopened(path).reservations == (RESERVED, other)
    _reserve(path, over=("res-1",))
    assert _reopened(path).reservations == (other,)


def test_who_is_parked_is_read_again(tmp_path: Path) -> None:
    parked = dataclasses.replace(WAITING, idled=True, parked=7)
    with contextlib.closing(Store(str(tmp_path / "state"), first_start=True)) as store:
        _write(store, parked)
    assert _reopened(tmp_path / "state").grants == (parked,)


def _reserve(path: Path, *made: Reservation, over: tuple[str, ...] = ()) -> None:
    with contextlib.closing(Store(str(path), first_start=True)) as store:
        store.write(
            Persist(
                grants=(),
                forgotten=(),
                last_generation=7,
                last_order=2,
                reservations=made,
                reservations_over=over,
            )
        )


def test_an_upgrade_that_is_cut_off_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state"
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.executescript(VERSION_1)
    with monkeypatch.context() as patched:
        patched.setattr(store_module, "_UPGRADES", {1: "CREATE TABLE counters (again INTEGER)"})
        with pytest.raises(ValueError, match="counters"):
            Store(str(path), first_start=False)
    assert len(_reopened(path).grants) == 2


def test_a_file_of_a_later_version_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "state"
    Store(str(path), first_start=True).close()
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("PRAGMA user_version = 5")
    before = path.read_bytes()
    for is_first in (True, False):
        with pytest.raises(NewerState, match="its version is 5, and this release reads up to 4"):
            open_store(str(path), first_start=is_first)
    assert path.read_bytes() == before
    store, said = open_store(str(path), first_start=False, discard_newer=True)
    store.close()
    [aside] = tmp_path.glob("state.damaged-*")
    assert aside.read_bytes() == before
    assert said == f"state file {path} is discarded; moved to {aside}"


def test_what_operators_said_is_read_again_until_it_is_over(tmp_path: Path) -> None:
    path = tmp_path / "state"
    cordoned = PersistedMark(slice_id="slice-0", mark=SliceMark.CORDONED)
    drained = PersistedMark(slice_id="slice-1", mark=SliceMark.DRAINING, moves_at=12.5)
    over = PersistedMark(slice_id="slice-0", mark=SliceMark.NONE)

    def write(*marks: PersistedMark) -> None:
        with contextlib.closing(Store(str(path), first_start=True)) as store:
            store.write(
                Persist(grants=(), forgotten=(), last_generation=1, last_order=1, marks=marks)
            )

    write(cordoned, drained)
    assert _reopened(path).marks == (cordoned, drained)
    write(over)
    assert _reopened(path).marks == (drained,)


def test_a_notice_and_a_preemption_are_read_again(tmp_path: Path) -> None:
    path = tmp_path / "state"
    notice = PersistedNotice(by="vip", said="vip@laptop", ends_at=42.5)
    noticed = dataclasses.replace(RUNNING, notice=notice, ends_at=99.0)
    preempted = dataclasses.replace(WAITING, preempted=True)
    with contextlib.closing(Store(str(path), first_start=True)) as store:
        _write(store, noticed, preempted)
    assert _reopened(path).grants == (noticed, preempted)
