from __future__ import annotations

import contextlib
import dataclasses
import math
import sqlite3
from pathlib import Path

import pytest

from shared_pathways_service.core.rm.messages import Persist, PersistedGrant, Restored
from shared_pathways_service.core.topology import InstanceType
from shared_pathways_service.errors import SharedPathwaysError
from shared_pathways_service.servers.resource_manager.store import Store, open_store

KIND = InstanceType.parse("tpuv6e:2x2")
RUNNING = PersistedGrant(
    tenant="ada",
    incarnation="ada-1",
    virtual_slices=(KIND, InstanceType.parse("tpuv5:2x2x2")),
    num_elastic=1,
    priority=-3,
    queue_timeout_s=math.inf,
    user="ada",
    team="t",
    host="h",
    pid=7,
    order=1,
    running=True,
    placements={0: ("slice-0", 5)},
    asked_at=12.5,
    lost=(1,),
    incarnations={"slice-0": ("w-1", "")},
)
WAITING = dataclasses.replace(
    RUNNING, tenant="bob", queue_timeout_s=None, running=False, placements={}, lost=()
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
        unwritable = dataclasses.replace(WAITING, user=object())  # type: ignore[arg-type]
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
        assert "a grant of another form" in damage
        assert store.restored == Restored(state_lost=True)
    assert len(list(tmp_path.glob("state.damaged-*"))) >= 1


def test_a_place_that_cannot_be_is_told(tmp_path: Path) -> None:
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
        large = dataclasses.replace(RUNNING, tenant="ada" * 20_000)
        with pytest.raises(sqlite3.OperationalError, match="database or disk is full"):
            _write(store, large)
