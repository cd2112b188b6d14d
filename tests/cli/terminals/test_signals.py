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
    before = bash.screen.shown.count("got ")
    process.send_signal(signal.SIGUSR2)
    bash.screen.expect_times("got 12\r", 1)
    assert bash.screen.shown.count("got ") == before + 1, bash.screen.shown


@pytest.mark.parametrize("pipeline", ["{}", "{} | cat", "sleep 600 | {} 2>&1 | cat"])
def test_the_terminals_signals_come_once(bash: Shell, run: str, pipeline: str) -> None:
    bash.begin(pipeline.format(f"{run}notes SIGINT SIGQUIT SIGWINCH SIGUSR2"))
    bash.expect("ready")
    program = bash.program("notes")
    # (`cat` would end by these.)
    keys = [] if "2>&1" in pipeline else [(CTRL_C, "got 2\r"), (CTRL_BACKSLASH, "got 3\r")]
    for key, noted in keys:
        bash.key(key)
        bash.expect(noted)
    bash.screen.resize(20, 70)
    bash.expect("got 28")
    assert_last(bash, command(bash, run, "notes"))
    program.kill()
    if "sleep" in pipeline:
        bash.program("sleep").kill()
    bash.prompt()


@pytest.mark.parametrize("number", [2, 3, 1, 15, 10, 28, 23, 14, 18, 20, 34, 64])
def test_signals_to_the_command_alone(bash: Shell, run: str, number: int) -> None:
    """By the number that a shell knows, which is that of `sps run`."""
    bash.do(f"{run}catches {number} 12 &")
    bash.expect("ready")
    bash.do(f"kill -{number} $!")
    bash.screen.expect_times(f"got {number}\r", 1)
    assert_last(bash, command(bash, run, "catches"))
    bash.program("catches").kill()
    bash.wait_until_empty()


@pytest.mark.parametrize("kill", ["kill %1", "kill -- -$!", "kill -INT %1", "kill -HUP %1"])
def test_signals_to_the_job_come_once(bash: Shell, run: str, kill: str) -> None:
    bash.do(f"{run}notes SIGTERM SIGINT SIGHUP SIGUSR2 &")
    bash.expect("ready")
    bash.do(kill)
    bash.screen.expect_times("got ", 1)
    assert_last(bash, command(bash, run, "notes"))
    bash.program("notes").kill()
    bash.wait_until_empty()


@pytest.mark.parametrize("name", ["TERM", "HUP", "INT"])
def test_a_stopped_command_gets_signals(bash: Shell, run: str, name: str) -> None:
    bash.begin(f"{run}notes SIGUSR2")
    bash.expect("ready")
    bash.key(CTRL_Z)
    bash.prompt()
    # (bash itself continues a job for two of them.)
    shown = bash.do(f"kill -{name} %1; kill -CONT %1 2>/dev/null; wait %1; echo $?")
    assert shown.splitlines()[-1] == str(128 + signal.Signals[f"SIG{name}"])
    bash.wait_until_empty()


def test_a_stopped_program_gets_signals_that_go_to_us(bash: Shell) -> None:
    """Where the program was stopped, and `sps run` continued: nothing else would continue it."""
    bash.do("under notes SIGUSR2 &")
    bash.expect("ready")
    program, under = bash.program("notes"), bash.program("under")
    # All of the group, the process included that sees its signals.
    os.killpg(os.getpgid(under.pid), signal.SIGSTOP)
    bash.wait_for_states(psutil.STATUS_STOPPED, "notes", "under")
    under.send_signal(signal.SIGTERM)
    under.send_signal(signal.SIGCONT)
    wait_until("the program's end", lambda: not program.is_running())
    bash.wait_until_empty()
    assert bash.do("wait $!; echo $?").splitlines()[-1] == "143"


def test_signals_come_where_nothing_sees_those_of_the_group(bash: Shell) -> None:
    bash.do("under notes SIGTERM SIGUSR2 &")
    bash.expect("ready")
    under = bash.program("under")
    [witness] = [child for child in under.children() if "witness" in child.cmdline()[-1]]
    witness.kill()
    under.terminate()
    bash.screen.expect_times("got 15", 1)
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
    for code in (0, 7, 130, 143):
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
    for line in (f"{run}tidies", f"{run}tidies | (trap '' INT; cat)"):
        bash.begin(line)
        bash.expect("ready")
        bash.key(CTRL_C)
        assert "tidied" in bash.prompt()
        assert bash.do("echo ${PIPESTATUS[0]}") == "5\n"


def test_a_closed_terminal_ends_programs(any_shell: Shell, run: str) -> None:
    if any_shell.name == "bash":  # (dash leaves its background alone.)
        any_shell.do(f"{run}notes SIGUSR2 | cat &")
        any_shell.expect("ready")
    any_shell.begin(f"{run}notes SIGUSR2")
    any_shell.expect("ready")
    any_shell.screen.close()
    any_shell.wait_until_empty()


def test_a_closed_terminal_ends_stopped_programs(bash: Shell, run: str) -> None:
    bash.begin(f"{run}notes SIGUSR2")
    bash.expect("ready")
    bash.key(CTRL_Z)
    bash.prompt()
    bash.screen.close()
    bash.wait_until_empty()


@needs("nohup")
def test_nohup_outlives_the_terminal(bash: Shell, run: str) -> None:
    bash.do(f"nohup {run}notes SIGTERM >/dev/null 2>notes &")
    notes = bash.directory / "notes"
    wait_until("the program", lambda: notes.exists() and "ready" in notes.read_text())
    program = bash.program("notes")
    bash.screen.close()
    wait_until("the shell's end", lambda: bash.screen.process.poll() is not None)
    program.terminate()
    wait_until("its note", lambda: "got 15" in notes.read_text())
    program.kill()
    bash.wait_until_empty()
