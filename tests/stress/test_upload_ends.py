"""The short form of `stress.upload_ends`: with its control, tunnels end while a program uploads."""

from __future__ import annotations

import platform
from importlib.metadata import version

import pytest

from harness.processes import run_async
from stress.upload_ends.rounds import Load, Outcome, rounds_of, unguarded
from stress.upload_ends.tunnels import ENDINGS

#: Whose code `stress.upload_ends.race_window` changes.
_JAXLIB, _MACHINE = "0.12.0.1", "x86_64"
#: Of the control; nineteen of twenty race.
_MOST_ROUNDS = 10

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.race,
    pytest.mark.skipif(
        version("jaxlib") != _JAXLIB or platform.machine() != _MACHINE,
        reason=f"the race is held open in the code of jaxlib {_JAXLIB} for {_MACHINE}",
    ),
]


def test_programs_survive_each_ending() -> None:
    async def test() -> list[Outcome]:
        async with rounds_of(Load()) as [rounds]:
            return [await rounds.play(ending) for ending in 2 * list(ENDINGS)]

    outcomes = run_async(test())
    assert [(one.end, one.raced) for one in outcomes] == [("errors", False)] * len(outcomes)


def test_all_uploads_fail_together_where_all_connections_are_closed_at_once() -> None:
    async def test() -> bool:
        async with rounds_of(Load()) as [rounds]:
            for _ in range(_MOST_ROUNDS):
                if (await rounds.play("lost")).raced:
                    return True
        return False

    with unguarded():
        assert run_async(test())
