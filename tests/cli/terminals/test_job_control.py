"""Job control: Ctrl-Z, fg, bg, the background, and programs that fill the screen."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
from pathlib import Path

import pytest

from harness.deadlines import wait_until
from tests.cli.terminals.shells import CTRL_C, CTRL_Z, Shell, needs, without

pytestmark = pytest.mark.race


def names_of(run: str, program: str) -> list[str]:
    """Returns the names of the processes that run a program."""
    return [program, *run.split()]


@pytest.mark.parametrize("pipeline", ["{}", "{} | cat", "sleep 600 | {} 2>&1 | tee output"])
def test_a_job_is_stopped_and_continued(any_shell: Shell, run: str, pipeline: str) -> None:
    names = names_of(run, "notes")
    others = [name for name in ("sleep", "cat", "tee") if name in pipeline]
    any_shell.begin(pipeline.format(f"{run}notes CONT"), *others)
    any_shell.expect("ready")
    any_shell.key(CTRL_Z)
    assert any_shell.dialect.stopped in any_shell.prompt()
    any_shell.wait_until_stopped(*names, *others)

    any_shell.do("bg")
    any_shell.screen.expect_times("got CONT", 1)
    any_shell.wait_until_continued(*names, *others)

    any_shell.begin("fg")
    any_shell.wait_for_foreground("notes")
    any_shell.key(CTRL_Z)
    assert any_shell.dialect.stopped in any_shell.prompt()
    any_shell.wait_until_stopped(*names, *others)

    any_shell.begin("fg")
    any_shell.wait_until_continued(*names, *others)
    any_shell.key(CTRL_C)
    any_shell.prompt()
    any_shell.wait_until_empty()


def test_sigcont_to_the_command_alone_continues_it(any_shell: Shell, run: str) -> None:
    any_shell.begin(f"{run}notes CONT")
    any_shell.expect("ready")
    any_shell.key(CTRL_Z)
    any_shell.prompt()
    any_shell.wait_until_stopped(*names_of(run, "notes"))
    any_shell.do(f"kill -CONT {any_shell.program(names_of(run, 'notes')[-1]).pid}")
    any_shell.screen.expect_times("got CONT", 1)
    any_shell.wait_until_continued(*names_of(run, "notes"))
    any_shell.begin("fg")
    any_shell.wait_for_foreground("notes")
    any_shell.key(CTRL_C)
    any_shell.prompt()
    any_shell.wait_until_empty()


def test_the_background_does_not_read(any_shell: Shell, run: str) -> None:
    any_shell.do(f"{run}ask &")
    any_shell.wait_until_stopped(*names_of(run, "ask"))
    assert any_shell.dialect.stopped in any_shell.do("jobs")
    any_shell.begin("fg")
    any_shell.wait_until_continued(*names_of(run, "ask"))
    any_shell.key("Ada\n")
    assert "got Ada" in any_shell.prompt()


@without(fish="it sets the terminal's modes itself, also `tostop`")
def test_the_background_writes_where_it_may(any_shell: Shell, run: str) -> None:
    assert "written" in any_shell.do(f"{run}sh -c 'echo written' & wait")
    any_shell.do("stty tostop")
    shown = any_shell.do(f"{run}says &")
    any_shell.wait_until_stopped(*names_of(run, "says"))
    assert "said" not in shown + any_shell.do("jobs")
    assert "said" in any_shell.do("fg")


def test_a_program_may_not_want_to_stop(any_shell: Shell, run: str) -> None:
    any_shell.begin(f"{run}notes TSTP")
    any_shell.expect("ready")
    for _ in range(2):
        any_shell.key(CTRL_Z)
        any_shell.expect("got TSTP")
    any_shell.key(CTRL_C)
    any_shell.prompt()
    assert any_shell.status() == 130
    assert any_shell.screen.shown.count("got TSTP") == 2


def test_a_program_stops_itself(any_shell: Shell, run: str) -> None:
    for arguments in ("self SIGSTOP", "self SIGTSTP", "group SIGTSTP", "group SIGSTOP"):
        any_shell.begin(f"{run}stops {arguments}")
        assert any_shell.dialect.stopped in any_shell.prompt(), arguments
        any_shell.wait_until_stopped(*names_of(run, "stops"))
        assert any_shell.do("fg").splitlines().count("continued") == 1, arguments
        assert any_shell.status() == 0


def test_what_a_program_started_is_stopped_as_well(any_shell: Shell, run: str) -> None:
    any_shell.begin(f"{run}sh -c 'notes CONT; exit 4'")
    any_shell.expect("ready")
    any_shell.key(CTRL_Z)
    any_shell.prompt()
    any_shell.wait_until_stopped("notes")
    any_shell.begin("fg")
    any_shell.expect("got CONT")
    any_shell.program("notes").terminate()
    any_shell.prompt()
    assert not any_shell.dialect.knows_after_fg or any_shell.status() == 4


def test_a_program_leads_a_group_of_its_own(any_shell: Shell, run: str) -> None:
    for pipeline in ("{}", "{} | cat"):
        line = pipeline.format(f"{run}leads")
        others = ["cat"] if "cat" in pipeline else []
        any_shell.begin(line, *others)
        _wait_until_it_leads(any_shell)
        any_shell.key(CTRL_Z)
        assert any_shell.dialect.stopped in any_shell.prompt()
        any_shell.wait_until_stopped(*names_of(run, "leads"), *others)
        any_shell.begin("fg")
        any_shell.key("Ada\nBob\n")
        assert "got Bob" in any_shell.prompt()
        any_shell.begin(line, *others)
        _wait_until_it_leads(any_shell)
        any_shell.key(CTRL_C)
        any_shell.prompt()
        any_shell.wait_until_empty()


def _wait_until_it_leads(shell: Shell) -> None:
    """Waits until the group that `leads` has made is in the foreground.

    Python may swallow a Ctrl-C that comes while it starts.
    """
    shell.expect("all there?")
    shell.key("\n")
    shell.expect("leading")
    pid = shell.program("leads").pid
    wait_until("its group", lambda: shell.screen.foreground() == pid)


def test_a_script_has_the_terminal_again(any_shell: Shell) -> None:
    """After a program that made a group of its own, which alone could not read there."""
    any_shell.begin("sh -c 'under leads; read line; echo line=$line'")
    _wait_until_it_leads(any_shell)
    for _ in range(2):
        any_shell.expect("name? ")
        any_shell.key("Ada\n")
        any_shell.expect("got Ada")
    any_shell.key("Eve\n")
    any_shell.expect("line=Eve")
    any_shell.prompt()


def ignored_by(process: int) -> set[int]:
    """Returns the signals that a process ignores."""
    [line] = re.findall(r"SigIgn:\s*(\w+)", Path(f"/proc/{process}/status").read_text())
    mask = int(line, 16)
    return {number + 1 for number in range(mask.bit_length()) if mask >> number & 1}


def test_full_screen_programs(any_shell: Shell, run: str) -> None:
    any_shell.begin(f"{run}window")
    any_shell.expect("drawn")
    any_shell.key("x")
    any_shell.expect("key x")
    any_shell.screen.resize(31, 97)
    any_shell.key("r")  # (curses may miss a signal just before it reads.)
    any_shell.screen.expect_times("size 31 97", 1)
    any_shell.screen.expect_times("key r", 1)
    # (curses ignores Ctrl-Z while it draws.)
    program = any_shell.program("window")
    wait_until("it to have drawn", lambda: signal.SIGTSTP not in ignored_by(program.pid))
    any_shell.key(CTRL_Z)
    assert any_shell.dialect.stopped in any_shell.prompt()
    any_shell.begin("fg")
    any_shell.expect("drawn")
    any_shell.key("y")
    any_shell.expect("key y")
    any_shell.key("q")
    assert "left the window" in any_shell.prompt()


@needs("vim")
def test_editors(any_shell: Shell, run: str) -> None:
    any_shell.begin(f"{run}vim -u NONE -i NONE -n text")
    any_shell.expect("~")
    any_shell.key("ihello\x1b")
    any_shell.expect("hello")
    any_shell.key(CTRL_Z)
    assert any_shell.dialect.stopped in any_shell.prompt()
    any_shell.begin("fg")
    any_shell.expect("hello")
    any_shell.key(":wq\r")
    any_shell.prompt()
    assert any_shell.do("cat text") == "hello\n"


@needs("tmux")
def test_below_tmux(any_shell: Shell, run: str) -> None:
    tmux = ["tmux", "-f", "/dev/null", "-S", str(any_shell.directory / "socket")]
    inner = "PS1='inner: ' bash --norc --noprofile --noediting -i"
    any_shell.begin(shlex.join([*tmux, "new-session", inner]))
    try:
        any_shell.expect("inner: ")
        any_shell.key(f"{run}notes CONT\n")
        any_shell.expect("ready")
        any_shell.key(CTRL_Z)
        any_shell.expect("Stopped")
        any_shell.key("fg\n")
        any_shell.expect("got CONT")
        any_shell.key(CTRL_C)
        any_shell.expect("inner: ")
        any_shell.key("echo status=$?\n")
        any_shell.expect("status=130")
    finally:
        subprocess.run([*tmux, "kill-server"], check=True)
        any_shell.prompt()
