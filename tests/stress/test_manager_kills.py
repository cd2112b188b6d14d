"""The resource manager is killed at random moments, under the load of many tenants."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from harness.processes import Service
from stress.manager_kills.kills import FLAGS, Aim, Kills

pytestmark = pytest.mark.race

_AIMS: tuple[Aim, ...] = ("load", "deed", "return")


def test_kills_under_load_lose_no_message(own_directories: Path) -> None:
    with (
        Service(own_directories / "s", *FLAGS, count="8") as service,
        contextlib.closing(Kills(service, slices=8, tenants=50, seed=1)) as kills,
    ):
        kills.rest()
        for aim in _AIMS:
            kills.kill(aim)
            if aim != "deed":
                kills.rest()
        assert not kills.finish()
    # It was no empty house that was looked at.
    assert [kill.aim for kill in kills.kills] == list(_AIMS)
    assert kills.kills[0].held > 0
    assert kills.book.messages["placed"] > 8
    assert kills.book.kinds["tenant.released"] > 0
