from __future__ import annotations

import contextlib
import dataclasses
import math
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


def _reopened(path: Path) -> Restored | None:
    store, damage = open_store(str(path))
    assert not damage
    with contextlib.closing(store):
        return store.restored


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "state"
    assert _reopened(path) is None
    with contextlib.closing(Store(str(path))) as store:
        _write(store, RUNNING, WAITING)
    assert _reopened(path) == Restored(grants=(RUNNING, WAITING), last_generation=9, last_order=4)


def test_a_grant_replaces_the_older_one_and_may_be_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "state"
    later = dataclasses.replace(WAITING, running=True, placements={0: ("slice-1", 6)})
    with contextlib.closing(Store(str(path))) as store:
        _write(store, RUNNING, WAITING)
        _write(store, later, forgotten=("ada", "never-there"))
    restored = _reopened(path)
    assert restored is not None
    assert restored.grants == (later,)


def test_a_write_that_fails_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "state"
    with contextlib.closing(Store(str(path))) as store:
        _write(store, RUNNING)
        unwritable = dataclasses.replace(WAITING, user=object())  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            _write(store, unwritable, forgotten=("ada",))
    restored = _reopened(path)
    assert restored is not None
    assert restored.grants == (RUNNING,)


def test_a_grant_of_another_form_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "state"
    with contextlib.closing(Store(str(path))) as store:
        _write(store, RUNNING)
        store._db.execute("UPDATE grants SET data = '{}'")
    store, damage = open_store(str(path))
    with contextlib.closing(store):
        assert "a grant of another form" in damage
        assert store.restored is None
    assert len(list(tmp_path.glob("state.damaged-*"))) >= 1


def test_a_place_that_cannot_be_is_told(tmp_path: Path) -> None:
    with pytest.raises(SharedPathwaysError, match="cannot open the state file"):
        open_store(str(tmp_path / "none" / "state"))
