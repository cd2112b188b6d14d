"""`sps run` at a terminal, on a real service: what people type, and that its slices are free after.

More cases, without a service: tests/cli/terminals.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.embedded import KIND, embedded, eventually, nothing_left
from harness.programs import sps, status
from tests.cli.terminals.shells import CTRL_C, CTRL_Z, DIALECTS, Shell, make_programs, shell

pytestmark = pytest.mark.race

RUN = f"sps run --slices={KIND}=1 --"


@contextlib.contextmanager
def on_a_service(name: str, directory: Path) -> Iterator[Shell]:
    """Runs a shell beside a service with one slice."""
    programs = directory / "programs"
    programs.mkdir()
    with embedded(1), shell(name, make_programs(programs), directory) as started:
        yield started


@pytest.fixture
def bash(tmp_path: Path) -> Iterator[Shell]:
    with on_a_service("bash", tmp_path) as started:
        yield started


@pytest.mark.parametrize("name", DIALECTS)
def test_a_program_asks_in_a_pipeline(name: str, tmp_path: Path) -> None:
    with on_a_service(name, tmp_path) as started:
        started.begin(f"{RUN} ask 2>&1 | tee train.log", "ask")
        started.key("Ada\n")
        started.expect("got Ada")
        started.prompt()
        # (dash knows that of `tee` only.)
        code = started.dialect.first_status or started.dialect.status
        assert started.do(f"echo {code}") == "0\n"
        assert nothing_left()
        # It has no descriptors of ours. (The last one is that of the listing.)
        listed = started.do(f"{RUN} {shutil.which('ls')} /proc/self/fd 2>/dev/null")
        assert listed.split() == ["0", "1", "2", "3"]


def test_it_is_stopped_and_continued_while_it_waits_for_slices(bash: Shell) -> None:
    sps("submit", "--name=holds", f"--slices={KIND}=1", "--", "sleep", "3600")
    eventually(lambda: status()["tenants"], "the slice to be held")
    bash.begin(f"sps run --slices={KIND}=1 --queue-timeout=600 -- says", "sps")
    [waiting] = eventually(lambda: status()["queue"], "it to wait in the queue")
    bash.key(CTRL_Z)
    bash.expect("Stopped")
    bash.prompt()
    bash.wait_until_stopped("sps")
    # It keeps its place: what talks to the service is not of the terminal.
    assert [one["tenant"] for one in status()["queue"]] == [waiting["tenant"]]
    bash.begin("fg")
    bash.wait_for_foreground("sps")
    bash.wait_until_continued("sps")
    assert [one["tenant"] for one in status()["queue"]] == [waiting["tenant"]]
    bash.key(CTRL_C)
    assert "said" not in bash.prompt()
    assert bash.status() == 130
    bash.wait_until_empty()
    assert not status()["queue"]
    sps("cancel", "holds")
    eventually(nothing_left, "the slice to be free")


def test_a_training_run_is_stopped_continued_and_interrupted(bash: Shell) -> None:
    bash.begin(f"{RUN} notes CONT | tee train.log", "tee")
    bash.expect("ready")
    bash.key(CTRL_Z)
    bash.expect("Stopped")
    bash.prompt()
    bash.wait_until_stopped("sps", "notes", "tee")
    assert [tenant["state"] for tenant in status()["tenants"]] == ["running"]
    bash.begin("fg")
    bash.expect("got CONT")
    bash.wait_until_continued("sps", "notes", "tee")
    bash.key(CTRL_C)
    bash.prompt()
    assert bash.do("echo ${PIPESTATUS[0]}") == "130\n"
    assert nothing_left()

    # A stopped one.
    bash.begin(f"{RUN} notes")
    bash.expect("ready")
    bash.key(CTRL_Z)
    bash.prompt()
    shown = bash.do("kill %1; kill -CONT %1 2>/dev/null; wait %1; echo $?")
    assert shown.splitlines()[-1] == "143"
    assert nothing_left()


def test_ctrl_c_and_a_closed_terminal_end_it_at_any_time(bash: Shell) -> None:
    bash.begin(f"for i in 1 2 3; do {RUN} notes; done; echo next line")
    bash.expect("ready")
    bash.key(CTRL_C)
    shown = bash.prompt()
    assert "ready" not in shown
    assert "next line" not in shown
    assert nothing_left()

    # While it waits for slices, too.
    bash.do(f"{RUN} notes | tee train.log &")
    bash.program("notes")
    waiting = f"sps run --slices={KIND}=1 --queue-timeout=600 -- notes"
    bash.begin(f"for i in 1 2 3; do {waiting}; done; echo next line")
    eventually(lambda: status()["queue"], "it to wait in the queue")
    bash.key(CTRL_C)
    assert "next line" not in bash.prompt()
    assert not status()["queue"]

    bash.begin("fg", "tee")
    bash.wait_for_foreground("tee")
    bash.screen.close()
    bash.wait_until_empty()
    eventually(nothing_left, "the slices to be free")
