"""What a command does about SIGTERM while something is half done."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest
import typer

from shared_pathways_service.cli.undoing import run_undoing


async def _killed(done: list[str]) -> str:
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0)
        done.append("undone")
    return "the end"


def test_what_is_half_done_is_undone() -> None:
    before, done = signal.getsignal(signal.SIGTERM), list[str]()
    with pytest.raises(typer.Exit) as ended:
        run_undoing(_killed(done))
    assert ended.value.exit_code == 143
    assert done == ["undone"]
    assert signal.getsignal(signal.SIGTERM) is before


def test_else_it_is_as_asyncio_runs_it() -> None:
    async def refuse() -> None:
        raise ValueError("no")

    assert run_undoing(asyncio.sleep(0, "the end")) == "the end"
    with pytest.raises(ValueError, match="no"):
        run_undoing(refuse())
