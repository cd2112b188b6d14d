"""Job control: Ctrl-Z, fg, bg, the background, and programs that fill the screen."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
from pathlib import Path

import pytest

from harness.deadlines import wait_until
from tests.cli.terminals.shells import CTRL_C, CTRL_Z, Shell, needs

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
    assert "Stopped" in any_shell.prompt()
    any_shell.wait_until_stopped(*names, *others)

    any_shell.do("bg")
    any_shell.screen.expect_times("got CONT", 1)
    any_shell.wait_until_continued(*names, *others)

    any_shell.begin("fg")
    any_shell.wait_for_foreground("notes")
    any_shell.key(CTRL_Z)
    assert "Stopped" in any_shell.prompt()
    any_shell.wait_until_stopped(*names, *others)

    any_shell.begin("fg")
    any_shell.wait_until_continued(*names, *others)
    any_shell.key(CTRL_C)
    any_shell.prompt()
    any_shell.wait_until_empty()


def test_sigcont_to_the_command_alone_continues_it(bash: Shell, run: str) -> None:
    bash.begin(f"{run}notes CONT")
    bash.expect("ready")
    bash.key(CTRL_Z)
    bash.prompt()
    bash.wait_until_stopped(*names_of(run, "notes"))
    bash.do(f"kill -CONT {bash.program(names_of(run, 'notes')[-1]).pid}")
    bash.screen.expect_times("got CONT", 1)
    bash.wait_until_continued(*names_of(run, "notes"))
    bash.begin("fg")
    bash.wait_for_foreground("notes")
    bash.key(CTRL_C)
    bash.prompt()
    bash.wait_until_empty()


def test_the_background_does_not_read(any_shell: Shell, run: str) -> None:
    any_shell.do(f"{run}ask &")
    any_shell.wait_until_stopped(*names_of(run, "ask"))
    reason = " (tty input)" if any_shell.name == "dash" else ""
    assert f"Stopped{reason}" in any_shell.do("jobs")
    any_shell.begin("fg")
    any_shell.wait_until_continued(*names_of(run, "ask"))
    any_shell.key("Ada\n")
    assert "got Ada" in any_shell.prompt()


def test_the_background_writes_where_it_may(bash: Shell, run: str) -> None:
    assert "written" in bash.do(f"{run}sh -c 'echo written' & wait")
    bash.do("stty tostop")
    shown = bash.do(f"{run}says &")
    bash.wait_until_stopped(*names_of(run, "says"))
    assert "said" not in shown + bash.do("jobs")
    assert "said" in bash.do("fg")


def test_a_program_may_not_want_to_stop(bash: Shell, run: str) -> None:
    bash.begin(f"{run}notes TSTP")
    bash.expect("ready")
    for _ in range(2):
        bash.key(CTRL_Z)
        bash.expect("got TSTP")
    bash.key(CTRL_C)
    bash.prompt()
    assert bash.status() == 130
    assert bash.screen.shown.count("got TSTP") == 2


def test_a_program_stops_itself(any_shell: Shell, run: str) -> None:
    for arguments in ("self SIGSTOP", "self SIGTSTP", "group SIGTSTP", "group SIGSTOP"):
        any_shell.begin(f"{run}stops {arguments}")
        assert "Stopped" in any_shell.prompt(), arguments
        any_shell.wait_until_stopped(*names_of(run, "stops"))
        assert any_shell.do("fg").count("continued") == 1, arguments
        assert any_shell.status() == 0


def test_what_a_program_started_is_stopped_as_well(bash: Shell, run: str) -> None:
    bash.begin(f"{run}sh -c 'notes CONT; exit 4'")
    bash.expect("ready")
    bash.key(CTRL_Z)
    bash.prompt()
    bash.wait_until_stopped("notes")
    bash.begin("fg")
    bash.expect("got CONT")
    bash.program("notes").terminate()
    bash.prompt()
    assert bash.status() == 4


def test_a_program_leads_a_group_of_its_own(any_shell: Shell, run: str) -> None:
    for pipeline in ("{}", "{} | cat"):
        line = pipeline.format(f"{run}leads")
        others = ["cat"] if "cat" in pipeline else []
        any_shell.begin(line, *others)
        _wait_until_it_leads(any_shell)
        any_shell.key(CTRL_Z)
        assert "Stopped" in any_shell.prompt()
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
    shell.expect("leading")
    pid = shell.program("leads").pid
    wait_until("its group", lambda: shell.screen.foreground() == pid)


def test_a_script_has_the_terminal_again(any_shell: Shell) -> None:
    """After a program that made a group of its own, which alone could not read there."""
    any_shell.begin("sh -c 'under leads; read line; echo line=$line'")
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


def test_full_screen_programs(bash: Shell, run: str) -> None:
    bash.begin(f"{run}window")
    bash.expect("drawn")
    bash.key("x")
    bash.expect("key x")
    bash.screen.resize(31, 97)
    bash.key("r")  # (curses may miss a signal just before it reads.)
    bash.screen.expect_times("size 31 97", 1)
    bash.screen.expect_times("key r", 1)
    # (curses ignores Ctrl-Z while it draws.)
    program = bash.program("window")
    wait_until("it to have drawn", lambda: signal.SIGTSTP not in ignored_by(program.pid))
    bash.key(CTRL_Z)
    assert "Stopped" in bash.prompt()
    bash.begin("fg")
    bash.expect("drawn")
    bash.key("y")
    bash.expect("key y")
    bash.key("q")
    assert "left the window" in bash.prompt()


@needs("vim")
def test_editors(bash: Shell, run: str) -> None:
    bash.begin(f"{run}vim -u NONE -i NONE -n text")
    bash.expect("~")
    bash.key("ihello\x1b")
    bash.expect("hello")
    bash.key(CTRL_Z)
    assert "Stopped" in bash.prompt()
    bash.begin("fg")
    bash.expect("hello")
    bash.key(":wq\r")
    bash.prompt()
    assert bash.do("cat text") == "hello\n"


@needs("tmux")
def test_below_tmux(bash: Shell, run: str) -> None:
    tmux = ["tmux", "-f", "/dev/null", "-S", str(bash.directory / "socket")]
    inner = "PS1='inner: ' bash --norc --noprofile --noediting -i"
    bash.begin(shlex.join([*tmux, "new-session", inner]))
    try:
        bash.expect("inner: ")
        bash.key(f"{run}notes CONT\n")
        bash.expect("ready")
        bash.key(CTRL_Z)
        bash.expect("Stopped")
        bash.key("fg\n")
        bash.expect("got CONT")
        bash.key(CTRL_C)
        bash.expect("inner: ")
        bash.key("echo status=$?\n")
        bash.expect("status=130")
    finally:
        subprocess.run([*tmux, "kill-server"], check=True)
        bash.prompt()
