"""What a command does about SIGTERM while something is half done."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest
import typer

from shared_pathways_service.cli.undoing import run_undoing


async def _killed(done: list[str], by: signal.Signals) -> str:
    try:
        os.kill(os.getpid(), by)
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0)
        done.append("undone")
    return "the end"


@pytest.mark.parametrize(("by", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_what_is_half_done_is_undone(by: signal.Signals, code: int) -> None:
    before, done = signal.getsignal(by), list[str]()
    with pytest.raises(typer.Exit) as ended:
        run_undoing(_killed(done, by))
    assert ended.value.exit_code == code
    assert done == ["undone"]
    assert signal.getsignal(by) is before


def test_a_hang_up_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:

        async def hung_up() -> str:
            os.kill(os.getpid(), signal.SIGHUP)
            await asyncio.sleep(0)
            return "the end"

        assert run_undoing(hung_up()) == "the end"
    finally:
        signal.signal(signal.SIGHUP, before)


def test_else_it_is_as_asyncio_runs_it() -> None:
    async def refuse() -> None:
        raise ValueError("no")

    assert run_undoing(asyncio.sleep(0, "the end")) == "the end"
    with pytest.raises(ValueError, match="no"):
        run_undoing(refuse())
