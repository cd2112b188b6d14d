"""What a command does about SIGTERM while something is half done."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

import pytest
import typer

from harness.terminals import terminal
from shared_pathways_service.cli.display.deploy_display import display
from shared_pathways_service.cli.display.output import print_note
from shared_pathways_service.cli.undoing import run_undoing
from shared_pathways_service.cluster_state.readiness import Look
from shared_pathways_service.errors import ServiceNotReady
from shared_pathways_service.operations.cluster_access import Cluster
from shared_pathways_service.operations.draining import drained
from tests.cli.starting_service import FIRST, HEAD, readiness
from tests.kube.nowhere import NowhereApi


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


@pytest.mark.parametrize(
    ("first", "second", "code"),
    [
        (signal.SIGHUP, signal.SIGHUP, 129),
        (signal.SIGHUP, signal.SIGTERM, 129),
        (signal.SIGTERM, signal.SIGHUP, 143),
    ],
)
def test_two_at_once_are_one(first: signal.Signals, second: signal.Signals, code: int) -> None:
    done: list[str] = []

    async def killed() -> None:
        try:
            # Both are heard before either is seen to.
            os.kill(os.getpid(), first)
            os.kill(os.getpid(), second)
            await asyncio.Event().wait()
        finally:
            for _ in range(3):
                await asyncio.sleep(0)
            done.append("undone")

    with pytest.raises(typer.Exit) as ended:
        run_undoing(killed())
    assert ended.value.exit_code == code
    assert done == ["undone"]


@pytest.mark.parametrize("first", [signal.SIGHUP, signal.SIGTERM])
def test_a_hang_up_while_it_is_undone_is_nothing(first: signal.Signals) -> None:
    done: list[str] = []

    async def killed() -> None:
        try:
            os.kill(os.getpid(), first)
            await asyncio.Event().wait()
        finally:
            # (Else it would be the end of the tests.)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            os.kill(os.getpid(), signal.SIGHUP)
            await asyncio.sleep(0)
            # Who does not want to wait can end it.
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
            done.append("undone")

    with pytest.raises(typer.Exit):
        run_undoing(killed())
    assert done == ["undone"]
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL


class OneService(NowhereApi):
    """A cluster in which a service can be marked, and never unmarked."""

    def __init__(self) -> None:
        super().__init__()
        self.marks = 0

    async def patch(self, *_: object, **__: object) -> dict[str, Any]:
        self.marks += 1
        if self.marks > 1:
            raise ServiceNotReady("the server is away")
        return {}

    async def get(self, *_: object, **__: object) -> dict[str, Any]:
        return {"items": []}


def test_a_terminal_that_is_gone_does_not_become_the_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = OneService()
    jobset = {"metadata": {"name": "pw", "uid": "u"}}

    async def drain() -> None:
        cluster = Cluster(there, "n")
        async with drained(cluster, jobset, why="", timeout_s=0, evict=False, note=print_note):
            os.kill(os.getpid(), signal.SIGHUP)
            await asyncio.Event().wait()

    with terminal() as (stream, close), monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", stream)
        close()
        with pytest.raises(typer.Exit) as ended:
            run_undoing(drain())
    assert ended.value.exit_code == 129
    assert there.marks == 2


def test_nor_does_it_where_something_is_being_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    with terminal() as (stream, close), monkeypatch.context() as patched:

        async def show(look: Look) -> None:
            pods = [HEAD, FIRST]
            try:
                look(readiness(pods), pods)
                close()
                os.kill(os.getpid(), signal.SIGHUP)
                await asyncio.Event().wait()
            finally:
                look(readiness([HEAD]), [HEAD])
                print_note("the old one was made, again")
                done.append("undone")

        patched.setattr(sys, "stderr", stream)
        with pytest.raises(typer.Exit) as ended, display(quiet=False) as look:
            run_undoing(show(look))
        assert sys.stderr is stream
    assert ended.value.exit_code == 129
    assert done == ["undone"]


def test_a_hang_up_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:

        async def hung_up() -> str:
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            os.kill(os.getpid(), signal.SIGHUP)
            await asyncio.sleep(0)
            return "the end"

        assert run_undoing(hung_up()) == "the end"
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_else_it_is_as_asyncio_runs_it() -> None:
    async def refuse() -> None:
        raise ValueError("no")

    assert run_undoing(asyncio.sleep(0, "the end")) == "the end"
    with pytest.raises(ValueError, match="no"):
        run_undoing(refuse())
