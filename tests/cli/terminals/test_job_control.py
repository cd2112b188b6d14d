"""Job control: Ctrl-Z, fg, bg, the background, and programs that fill the screen."""

from __future__ import annotations

import shlex
import subprocess

import psutil
import pytest

from tests.cli.terminals.shells import CTRL_C, CTRL_Z, Shell, needs

pytestmark = pytest.mark.race

PIPELINES = ["{}", "{} | cat", "sleep 600 | {}", "sleep 600 | {} 2>&1 | tee output"]


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_a_job_is_stopped_and_continued(any_shell: Shell, run: str, pipeline: str) -> None:
    any_shell.begin(pipeline.format(f"{run}notes SIGCONT"))
    any_shell.expect("ready")
    any_shell.key(CTRL_Z)
    assert "Stopped" in any_shell.prompt()
    names = ["notes", "under"] if run else ["notes"]
    any_shell.wait_for_states(psutil.STATUS_STOPPED, *names)

    any_shell.do("bg")
    any_shell.screen.expect_times("got 18", 1)
    any_shell.wait_for_states(psutil.STATUS_SLEEPING, *names)

    # (dash sends SIGCONT with each fg, bash only to a stopped job.)
    times = 2 if any_shell.name == "dash" else 1
    any_shell.begin("fg")
    any_shell.wait_for_foreground("notes")
    any_shell.screen.expect_times("got 18", times)
    any_shell.key(CTRL_Z)
    assert "Stopped" in any_shell.prompt()
    any_shell.begin("fg")
    times += 1
    any_shell.screen.expect_times("got 18", times)
    any_shell.key(CTRL_C)
    any_shell.prompt()
    any_shell.wait_until_empty()
    assert any_shell.screen.shown.count("got 18") == times


def test_sigcont_to_the_command_alone_continues_it(bash: Shell, run: str) -> None:
    bash.begin(f"{run}notes SIGCONT")
    bash.expect("ready")
    bash.key(CTRL_Z)
    bash.prompt()
    bash.do(f"kill -CONT {bash.program('under' if run else 'notes').pid}")
    bash.screen.expect_times("got 18", 1)
    bash.begin("fg")
    bash.wait_for_foreground("notes")
    bash.key(CTRL_C)
    bash.prompt()
    assert bash.screen.shown.count("got 18") <= 2  # (bash may send another.)


def test_the_background_does_not_read(any_shell: Shell, run: str) -> None:
    any_shell.do(f"{run}ask &")
    names = ["ask", "under"] if run else ["ask"]
    any_shell.wait_for_states(psutil.STATUS_STOPPED, *names)
    reason = " (tty input)" if any_shell.name == "dash" else ""
    assert f"Stopped{reason}" in any_shell.do("jobs")
    any_shell.begin("fg")
    any_shell.wait_for_states(psutil.STATUS_SLEEPING, *names)
    any_shell.key("Ada\n")
    assert "got Ada" in any_shell.prompt()


def test_the_background_writes_where_it_may(bash: Shell, run: str) -> None:
    assert "written" in bash.do(f"{run}sh -c 'echo written' & wait")
    bash.do("stty tostop")
    shown = bash.do(f"{run}says &")
    bash.wait_for_states(psutil.STATUS_STOPPED, *(["under"] if run else []), "says")
    assert "said" not in shown + bash.do("jobs")
    assert "said" in bash.do("fg")


def test_a_program_may_not_want_to_stop(bash: Shell, run: str) -> None:
    bash.begin(f"{run}notes SIGTSTP")
    bash.expect("ready")
    for _ in range(2):
        bash.key(CTRL_Z)
        bash.expect("got 20")
    bash.key(CTRL_C)
    bash.prompt()
    assert bash.status() == 130
    assert bash.screen.shown.count("got 20") == 2


@pytest.mark.parametrize(
    "arguments", ["self SIGSTOP", "self SIGTSTP", "group SIGTSTP", "group SIGSTOP"]
)
def test_a_program_stops_itself(any_shell: Shell, run: str, arguments: str) -> None:
    any_shell.begin(f"{run}stops {arguments}")
    assert "Stopped" in any_shell.prompt()
    any_shell.wait_for_states(psutil.STATUS_STOPPED, *(["under"] if run else []), "stops")
    assert "continued" in any_shell.do("fg")
    assert any_shell.screen.shown.count("continued") == 1
    assert any_shell.status() == 0


def test_what_a_program_started_is_stopped_as_well(bash: Shell, run: str) -> None:
    bash.begin(f"{run}sh -c 'notes SIGCONT; exit 4'")
    bash.expect("ready")
    bash.key(CTRL_Z)
    bash.prompt()
    bash.wait_for_states(psutil.STATUS_STOPPED, "notes")
    bash.begin("fg")
    bash.expect("got 18")
    bash.program("notes").terminate()
    bash.prompt()
    assert bash.status() == 4


@pytest.mark.parametrize("pipeline", ["{}", "{} | cat"])
def test_a_program_leads_a_group_of_its_own(any_shell: Shell, run: str, pipeline: str) -> None:
    def wait_until_it_reads() -> None:
        any_shell.wait_for_foreground("leads")
        any_shell.wait_for_states(psutil.STATUS_SLEEPING, "leads")

    any_shell.begin(pipeline.format(f"{run}leads"))
    wait_until_it_reads()
    any_shell.key(CTRL_Z)
    assert "Stopped" in any_shell.prompt()
    any_shell.begin("fg")
    any_shell.key("Ada\nBob\n")
    assert "got Bob" in any_shell.prompt()
    any_shell.begin(pipeline.format(f"{run}leads"))
    wait_until_it_reads()
    any_shell.key(CTRL_C)
    any_shell.prompt()
    any_shell.wait_until_empty()


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
    bash.wait_for_states(psutil.STATUS_SLEEPING, "window")
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
        bash.key(f"{run}notes SIGCONT\n")
        bash.expect("ready")
        bash.key(CTRL_Z)
        bash.expect("Stopped")
        bash.key("fg\n")
        bash.expect("got 18")
        bash.key(CTRL_C)
        bash.expect("inner: ")
        bash.key("echo status=$?\n")
        bash.expect("status=130")
    finally:
        subprocess.run([*tmux, "kill-server"], check=True)
        bash.prompt()
