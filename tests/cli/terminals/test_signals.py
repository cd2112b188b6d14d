"""Signals of a terminal, of shells and of others: each reaches the program, and only once."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from harness.deadlines import wait_until
from tests.cli.terminals.shells import CTRL_BACKSLASH, CTRL_C, CTRL_Z, Shell, needs

pytestmark = pytest.mark.race


def command(bash: Shell, run: str, name: str) -> psutil.Process:
    """Returns the process that a shell knows: the program, or `sps run`."""
    return bash.program("under" if run else name)


def assert_last(bash: Shell, process: psutil.Process) -> None:
    """Asserts that no more signals come: one that is sent now is the next to be noted."""
    shown = bash.screen.shown
    before, marks = shown.count("got "), shown.count("got USR2\r")
    process.send_signal(signal.SIGUSR2)
    bash.screen.expect_times("got USR2\r", marks + 1)
    assert bash.screen.shown.count("got ") == before + 1, bash.screen.shown


@pytest.mark.parametrize("pipeline", ["{}", "{} | cat", "sleep 600 | {} 2>&1 | cat"])
def test_the_terminals_signals_come_once(bash: Shell, run: str, pipeline: str) -> None:
    others = [name for name in ("sleep", "cat") if name in pipeline]
    bash.begin(pipeline.format(f"{run}notes INT QUIT WINCH USR2"), *others)
    bash.expect("ready")
    # (`cat` would end by these.)
    keys = [] if "2>&1" in pipeline else [(CTRL_C, "got INT\r"), (CTRL_BACKSLASH, "got QUIT\r")]
    for key, noted in keys:
        bash.key(key)
        bash.expect(noted)
    bash.screen.resize(20, 70)
    bash.expect("got WINCH")
    assert_last(bash, command(bash, run, "notes"))
    bash.program("notes").kill()
    if "sleep" in pipeline:
        bash.program("sleep").kill()
    bash.prompt()


def test_signals_to_the_command_alone(bash: Shell, run: str) -> None:
    """By the number that a shell knows, which is that of `sps run`."""
    names = ["INT", "QUIT", "HUP", "TERM", "USR1", "WINCH", "URG", "ALRM", "TSTP", "RTMIN", "RTMAX"]
    bash.do(f"{run}notes {' '.join(names)} USR2 &")
    bash.expect("ready")
    for name in names:
        bash.do(f"kill -{name} $!")
        bash.screen.expect_times(f"got {name}\r", 1)
        assert_last(bash, command(bash, run, "notes"))
    bash.program("notes").kill()
    bash.wait_until_empty()


def test_what_the_command_started_does_not_get_its_signals(bash: Shell, run: str) -> None:
    script = "trap 'echo trapped >&2; exit 6' TERM; notes TERM USR2 & wait"
    bash.do(f'{run}sh -c "{script}" &')
    bash.expect("ready")
    assert "trapped" in bash.do("kill $!; wait $!; echo $?")
    bash.program("notes").send_signal(signal.SIGUSR2)
    bash.screen.expect_times("got USR2\r", 1)
    assert "got TERM" not in bash.screen.shown
    bash.program("notes").kill()
    bash.wait_until_empty()


def test_signals_to_the_job_come_once(bash: Shell, run: str) -> None:
    bash.do(f"{run}notes TERM INT HUP USR1 USR2 &")
    bash.expect("ready")
    for kill, name in {
        "kill %1": "TERM",
        "kill -INT %1": "INT",
        "kill -HUP %1": "HUP",
        "kill -USR1 -- -$!": "USR1",
    }.items():
        bash.do(kill)
        bash.screen.expect_times(f"got {name}\r", 1)
        assert_last(bash, command(bash, run, "notes"))
    bash.program("notes").kill()
    bash.wait_until_empty()


def test_a_stopped_command_gets_signals(bash: Shell, run: str) -> None:
    for name in ("TERM", "HUP", "INT"):
        bash.begin(f"{run}notes")
        bash.expect("ready")
        bash.key(CTRL_Z)
        bash.prompt()
        # (bash itself continues a job for two of them.)
        shown = bash.do(f"kill -{name} %1; kill -CONT %1 2>/dev/null; wait %1; echo $?")
        assert shown.splitlines()[-1] == str(128 + signal.Signals[f"SIG{name}"])
        bash.wait_until_empty()


def test_a_stopped_program_gets_signals_that_go_to_us(bash: Shell) -> None:
    """Where the program was stopped, and `sps run` continued: nothing else would continue it."""
    bash.do("under notes &")
    bash.expect("ready")
    program, under = bash.program("notes"), bash.program("under")
    # All of the group, the process included that sees its signals.
    os.killpg(os.getpgid(under.pid), signal.SIGSTOP)
    bash.wait_until_stopped("notes", "under")
    under.send_signal(signal.SIGTERM)
    under.send_signal(signal.SIGCONT)
    wait_until("the program's end", lambda: not program.is_running())
    bash.wait_until_empty()
    assert bash.do("wait $!; echo $?").splitlines()[-1] == "143"


def test_signals_come_where_nothing_sees_those_of_the_group(bash: Shell) -> None:
    bash.do("under notes TERM USR2 &")
    bash.expect("ready")
    under = bash.program("under")
    [witness] = [child for child in under.children() if "witness" in child.cmdline()[-1]]
    witness.kill()
    under.terminate()
    bash.screen.expect_times("got TERM", 1)
    assert_last(bash, under)
    bash.program("notes").kill()
    bash.wait_until_empty()


def test_programs_signal_their_group(bash: Shell, run: str) -> None:
    script = "trap 'echo trapped >&2; exit 6' TERM; notes & read line; kill 0; wait"
    bash.begin(f'{run}sh -c "{script}" | cat')
    bash.expect("ready")
    bash.key("\n")
    bash.prompt()
    assert bash.screen.shown.count("trapped") == 1
    bash.wait_until_empty()


def test_ends_by_signals_are_a_shells(any_shell: Shell, run: str) -> None:
    said = {"KILL": "Killed\n", "SEGV": "Segmentation fault", "TERM": "Terminated\n"}
    for name, words in said.items():
        shown = any_shell.do(f"{run}sh -c 'kill -{name} $$'; echo $?")
        assert words in shown
        assert shown.splitlines()[-1] == str(128 + signal.Signals[f"SIG{name}"])
    any_shell.do(f"{run}sh -c 'kill -INT $$'")
    assert any_shell.status() == 130
    for code in (0, 7, 143):
        assert any_shell.do(f"{run}sh -c 'exit {code}'; echo $?") == f"{code}\n"
    assert any_shell.do(f"{run}missing 2>/dev/null; echo $?") == "127\n"


def test_ctrl_c_ends_loops_and_scripts(any_shell: Shell, run: str) -> None:
    any_shell.begin(f"for i in 1 2 3; do {run}notes; done; echo after")
    any_shell.expect("ready")
    any_shell.key(CTRL_C)
    assert "ready" not in any_shell.prompt()
    any_shell.wait_until_empty()

    Path(any_shell.directory, "script").write_text(f"{run}notes\necho after\n{run}notes\n")
    for name in ("bash", "sh"):
        any_shell.begin(f"{name} script")
        any_shell.expect("ready")
        any_shell.key(CTRL_C)
        shown = any_shell.prompt()
        assert "after" not in shown
        assert any_shell.status() == 130
        any_shell.wait_until_empty()


def test_ctrl_c_lets_a_program_tidy_up(bash: Shell, run: str) -> None:
    for line, others in ((f"{run}tidies", []), (f"{run}tidies | (trap '' INT; cat)", ["cat"])):
        bash.begin(line, *others)
        bash.expect("ready")
        bash.key(CTRL_C)
        assert "tidied" in bash.prompt()
        assert bash.do("echo ${PIPESTATUS[0]}") == "5\n"


def test_a_closed_terminal_ends_programs(any_shell: Shell, run: str) -> None:
    if any_shell.name == "bash":  # (dash leaves its background alone.)
        any_shell.do(f"{run}notes | cat &")
        any_shell.expect("ready")
    any_shell.begin(f"{run}notes")
    any_shell.expect("ready")
    any_shell.screen.close()
    any_shell.wait_until_empty()


def test_a_closed_terminal_ends_stopped_programs(bash: Shell, run: str) -> None:
    bash.begin(f"{run}notes")
    bash.expect("ready")
    bash.key(CTRL_Z)
    bash.prompt()
    bash.screen.close()
    bash.wait_until_empty()


@needs("nohup")
def test_nohup_outlives_the_terminal(bash: Shell, run: str) -> None:
    bash.do(f"nohup {run}notes TERM >/dev/null 2>notes &")
    notes = bash.directory / "notes"
    wait_until("the program", lambda: notes.exists() and "ready" in notes.read_text())
    program = bash.program("notes")
    bash.screen.close()
    wait_until("the shell's end", lambda: bash.screen.process.poll() is not None)
    program.terminate()
    wait_until("its note", lambda: "got TERM" in notes.read_text())
    program.kill()
    bash.wait_until_empty()
